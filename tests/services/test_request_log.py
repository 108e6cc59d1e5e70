"""The request log of the service as `manage.py up` starts it: web processes write what members read."""

import httpx
import pytest

from tests.support.client import Api
from tests.support.service import Up, wait_for

pytestmark = pytest.mark.served


def test_what_any_process_answered_is_in_the_log_soon(served: Up) -> None:
    api, maker = Api(served.base_url), served.facts["server_key"]
    made = api.post("/v1/keys", token=maker, json={"name": "logs", "scopes": ["logs:read", "schema:read"]})
    assert made.status == 201, made.json
    token = made.json["secret"]
    sent = []
    for number in range(6):  # over connections of their own, which spread over the web processes
        with httpx.Client(base_url=served.base_url, timeout=30) as client:
            answer = client.get(f"/v1/schema/versions?limit=no{number}", headers={"Authorization": f"Bearer {token}"})
            assert answer.status_code == 422
            sent.append(answer.headers["X-Request-Id"])

    def logged() -> list[str]:
        page = api.get(f"/v1/logs?status=422&caller={made.json['id']}", token=token)
        assert page.status == 200, page.json
        return [entry["request_id"] for entry in page.json["data"]]

    wait_for("all of them are in the log", lambda: sorted(logged()) == sorted(sent), 15, every=0.3)
    wait_for("the terminal says what was wrong", lambda: "validation_failed limit:out_of_range" in served.output, 5)
