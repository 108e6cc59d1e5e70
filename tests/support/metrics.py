"""The samples of `/metrics`."""

from tests.support.client import Api


def read_metrics(api: Api) -> dict[str, float]:
    answer = api.get("/metrics")
    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith("text/plain")
    lines = [line for line in answer.body.decode().splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}
