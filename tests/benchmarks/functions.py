"""What functions cost: `python -m tests.benchmarks.functions [SECONDS] [WORKERS]`. By hand, on a quiet machine.

A warm function that adds two numbers, asked by 16 clients over HTTP with a server key, beside the endpoint that knows its
caller and does nothing, on the same server in the same run; one that reads a row as its caller; the first call of a
function that no process is warm for; and the memory of the service with 100 functions deployed, of which 20 are called.
Figures: docs/explanation/performance.md.
"""

import logging
import statistics
import time
from collections.abc import Iterator

import httpx
import psutil

from tests.benchmarks.measured_service import HEAD, Figures, Stage, line, seconds_and_workers, stage
from tests.benchmarks.rows import request

SUM = "export default ({ a, b }: { a: number; b: number }) => ({ sum: a + b })"
READ = "export default ({ id }: any, ctx: any) => ctx.rows.get('tasks', id)"
COLD, DEPLOYED, HOT = 20, 100, 20


def workloads(on: Stage, seconds: float) -> Iterator[Figures]:
    """The bare view, nothing as a key, and what a function makes of it."""
    key, client = _door(on)
    _deploy(client, "sum", SUM)
    _deploy(client, "read", READ)
    warm, task = "/v1/functions/sum/invoke", {"input": {"id": on.setting.tasks[0]}}
    yield on.measure("bare view", [request(on.port, "GET", "/v1/bench/bare", None)], seconds)
    yield on.measure("nothing, as a key", [request(on.port, "GET", "/v1/bench/nothing-somewhere", key)], seconds)
    for what, clients in (("invoke, warm", 16), ("invoke, warm, one client", 1)):
        asked = [request(on.port, "POST", warm, key, {"input": {"a": 2, "b": 3}})]
        yield on.measure(what, asked, seconds, clients=clients, warm=1.5)
    asked = [request(on.port, "POST", "/v1/functions/read/invoke", key, task)]
    yield on.measure("invoke, reads a row", asked, seconds, warm=1.5)


def cold(on: Stage) -> str:
    """First calls, each of a function that was deployed long enough ago for its first process to be gone."""
    _, client = _door(on)
    with client:
        # Deployed in one web process, called over a connection of its own in each: most calls find nothing warm.
        for number in range(COLD):
            _deploy(client, f"cold-{number}", SUM + f" // {number}")
        took = []
        for number in range(COLD):
            for _ in range(on.workers):
                with httpx.Client(base_url=client.base_url, headers=client.headers, timeout=30) as fresh:
                    began = time.perf_counter()
                    answer = fresh.post(f"/v1/functions/cold-{number}/invoke", json={"input": {"a": 1, "b": 2}})
                    took.append((time.perf_counter() - began) * 1000)
                    assert answer.json()["output"] == {"sum": 3}, answer.text
    took.sort()
    return (
        f"first call of a process: median {statistics.median(took):.0f} ms, worst {took[-1]:.0f} ms ({len(took)} calls)"
    )


def memory(on: Stage) -> str:
    """100 functions deployed, 20 called again and again: processes and megabytes, pages that they share counted
    once."""
    _, client = _door(on)
    with client:
        for number in range(DEPLOYED):
            _deploy(client, f"many-{number}", SUM + f" // {number}")
        for _ in range(5):
            for number in range(HOT):
                assert (
                    client.post(f"/v1/functions/many-{number}/invoke", json={"input": {"a": 1, "b": 2}}).status_code
                    == 200
                )
    time.sleep(1)
    found = [child for child in psutil.Process(on.up.process.pid).children(recursive=True) if child.name() == "deno"]
    from django.conf import settings

    bound = settings.FUNCTION_POOL_SIZE * on.workers
    total = sum(each.memory_full_info().pss for each in found) / 1e6
    return (
        f"{DEPLOYED} functions deployed, {HOT} hot: {len(found)} processes of at most {bound}, {total:.0f} MB in all,"
        f" {total / max(1, len(found)):.0f} MB each"
    )


def _door(on: Stage) -> tuple[str, httpx.Client]:
    from tests.projects.conftest import key_for

    scopes = ("functions:deploy", "functions:invoke", "functions:read", "rows:read", "rows:bypass_rules")
    key = key_for(on.setting.environment.environment_id, *scopes)
    return key, httpx.Client(base_url=on.up.base_url, headers={"Authorization": f"Bearer {key}"}, timeout=60)


def _deploy(client: httpx.Client, name: str, source: str) -> None:
    answer = client.put(f"/v1/functions/{name}", json={"source": source})
    assert answer.status_code in (200, 201), answer.text


def main(seconds: float = 3.0, workers: int = 2) -> None:
    logging.getLogger("httpx").setLevel(logging.WARNING)
    with stage(workers) as on:
        print(HEAD)
        for made in workloads(on, seconds):
            print(line(made, on.figures[0].per_second), flush=True)
        print(cold(on), flush=True)
        print(memory(on), flush=True)


if __name__ == "__main__":
    main(*seconds_and_workers(__doc__))
