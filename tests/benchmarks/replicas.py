"""What a read replica spares its primary: `python -m tests.benchmarks.replicas [SECONDS] [WORKERS]`. By hand.

The list of 20 as `tests.benchmarks.rows` asks for it, by 16 clients, of a service for which a replica is named: before
there is one, so that the primary answers, and beside a real streaming replica that follows it on the same machine. `pg µs`
is the primary's. docs/explanation/performance.md has the results.
"""

from pathlib import Path

import httpx

from platform_site.embedded.data_dir import Layout, region_variable
from tests.benchmarks.measured_service import HEAD, Stage, line, seconds_and_workers, stage
from tests.benchmarks.rows import questions
from tests.support.service import wait_for
from tests.support.standby import Standby, counted

REGION = "us-east-1"
REPLICA = f"{REGION}-replica-1"
LIST = "list 20 of one's own"


def main(seconds: float = 3.0, workers: int = 2) -> None:
    named: list[Standby] = []

    def name(directory: Path) -> dict[str, str]:
        directory.chmod(0o755)  # the server's user has to reach it
        (directory / "standby").mkdir(mode=0o755)
        named.append(Standby(Layout(directory / "data"), directory / "standby"))
        return {region_variable(REGION).replace("_URL", "_REPLICA_URLS"): named[0].url(REGION)}

    with stage(workers, name) as on:
        [standby] = named
        asked = questions(on.setting, on.port)
        [bare, lists] = [asked[what][0] for what in ("bare view", LIST)]
        print(HEAD)
        print(line(on.measure("bare view", bare, seconds), on.figures[0].per_second), flush=True)
        print(line(on.measure("list 20, no replica there", lists, seconds), on.figures[0].per_second), flush=True)
        standby.make()
        standby.start()
        try:
            wait_for("the replica answers", lambda: _answered(on) > 0 or _ask(on, lists[0]), 60, every=0.2)
            before = _answered(on), _asked_for(on)
            made = on.measure("list 20, beside a replica", lists, seconds)
            spared = (_answered(on) - before[0]) / max(1, _asked_for(on) - before[1])
            print(line(made, on.figures[0].per_second) + f"   {spared:.1%} answered by the replica", flush=True)
        finally:
            standby.stop()


def _ask(on: Stage, request: bytes) -> None:
    on.measure("to see who answers", [request], 0.2, warm=0)
    on.figures.pop()


def _metrics(on: Stage) -> str:
    return httpx.get(f"{on.up.base_url}/metrics").text


def _answered(on: Stage) -> int:
    return counted(_metrics(on), REPLICA, "answered")


def _asked_for(on: Stage) -> int:
    """How many lists the service has answered."""
    found = [
        row for row in _metrics(on).splitlines() if row.startswith("platform_requests_total{") and "/v1/rows/" in row
    ]
    return int(sum(float(row.rpartition(" ")[2]) for row in found))


if __name__ == "__main__":
    main(*seconds_and_workers(__doc__))
