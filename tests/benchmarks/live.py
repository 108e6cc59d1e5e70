"""What live changes cost: `python -m tests.benchmarks.live [STREAMS]`. By hand, on a quiet machine.

Starts the whole service, opens streams of ten users and measures the time from a write's request to each client that
sees the change, what an idle stream takes of memory, and what a write costs where the table is watched.
Figures: docs/explanation/performance.md.
"""

import asyncio
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.support.live_changes import App
from tests.support.service import start_up

USERS = 10
SINGLE_WRITES = 200
BURST_SECONDS = 5.0


@dataclass
class Clients:
    """Open streams. `arrivals` has for each title when a client got it."""

    app: App
    arrivals: dict[str, list[float]] = field(default_factory=dict)
    ready: int = 0
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def open(self, who: str) -> None:
        self.tasks.append(asyncio.create_task(self._follow(who)))

    async def _follow(self, who: str) -> None:
        client = self.app.clients[who]
        url = client.base_url
        body = json.dumps({"subscriptions": {"tasks": {"table": "tasks", "columns": "title"}}})
        while True:
            reader, writer = await asyncio.open_connection(url.host, url.port)
            writer.write(
                f"POST /v1/changes HTTP/1.1\r\nHost: {url.host}:{url.port}\r\nContent-Type: application/json\r\n"
                f"Authorization: {client.headers['Authorization']}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
            )
            if b" 200 " in await reader.readline():
                break
            writer.close()  # 503 while many open at once
            await asyncio.sleep(0.5)
        while line := await reader.readline():
            if line.startswith(b'data: {"subscription"'):
                title = json.loads(line[6:]).get("row", {}).get("title")
                self.arrivals.setdefault(title, []).append(time.perf_counter())
            elif line == b"event: ready\n":
                self.ready += 1


def spread(values: list[float]) -> str:
    ordered = sorted(values)
    return f"p50 {statistics.median(ordered) * 1e3:7.1f} ms   p99 {ordered[int(len(ordered) * 0.99)] * 1e3:7.1f} ms"


def memory(app: App) -> int:
    return sum(worker.memory_full_info().pss for worker in app.served.web_workers())


async def wait_until(what: str, condition: Any, seconds: float = 60) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > ends:
            raise TimeoutError(what)
        await asyncio.sleep(0.01)


async def write(client: httpx.AsyncClient, title: str, owner: str | None) -> None:
    answer = await client.post("/rows/tasks", json={"title": title, "owner_id": owner})
    answer.raise_for_status()


async def cost_of_writes(app: App) -> float:
    """Milliseconds of a write, by one client."""
    async with httpx.AsyncClient(
        base_url=app.clients["server"].base_url, headers=app.clients["server"].headers
    ) as client:
        taken = []
        for number in range(300):
            began = time.perf_counter()
            await write(client, f"cost {number}", None)
            taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1e3


async def measure(app: App, streams: int) -> None:
    users = [f"user{number}" for number in range(USERS)]
    for name in users:
        app.add_user(name)
    unwatched = await cost_of_writes(app)
    before = memory(app)
    clients = Clients(app)
    for number in range(streams):
        await clients.open(users[number % USERS])
    await wait_until("all streams", lambda: clients.ready == streams)
    await asyncio.sleep(2)
    print(f"{streams} streams: {(memory(app) - before) / streams / 1024:.1f} KB each")
    print(f"a write: {unwatched:.2f} ms, of a watched table {await cost_of_writes(app):.2f} ms")
    async with httpx.AsyncClient(
        base_url=app.clients["server"].base_url, headers=app.clients["server"].headers
    ) as client:
        each = streams // USERS
        latencies: list[float] = []
        for number in range(SINGLE_WRITES):
            began = time.perf_counter()
            await write(client, f"single {number}", app.users[users[number % USERS]])
            await wait_until("arrivals", lambda: len(clients.arrivals.get(f"single {number}", [])) >= each)  # noqa: B023
            latencies += [at - began for at in clients.arrivals[f"single {number}"]]
        print(f"one write at a time, to {each} of {streams} streams: {spread(latencies)}")
        begun: dict[str, float] = {}
        ends = time.perf_counter() + BURST_SECONDS

        async def burst(worker: int) -> None:
            number = 0
            while time.perf_counter() < ends:
                title = f"burst {worker} {number}"
                begun[title] = time.perf_counter()
                await write(client, title, app.users[users[number % USERS]])
                number += 1

        await asyncio.gather(*(burst(worker) for worker in range(8)))
        await wait_until("arrivals", lambda: all(len(clients.arrivals.get(title, [])) >= each for title in begun))
        latencies = [at - begun[title] for title in begun for at in clients.arrivals[title]]
        rate = len(begun) / BURST_SECONDS
        print(f"{rate:.0f} writes/s, {len(latencies) / BURST_SECONDS:.0f} events/s in all: {spread(latencies)}")
    for task in clients.tasks:
        task.cancel()


def main(streams: int = 200) -> None:
    with tempfile.TemporaryDirectory() as directory:
        up = start_up(Path(directory) / "data", environment={"RATE_LIMIT_FACTOR": "1000"})
        try:
            app = App(up)
            app.ok("owner", "PATCH", f"/projects/{app.project_id}", plan="team")
            asyncio.run(measure(app, streams))
        finally:
            up.stop()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
