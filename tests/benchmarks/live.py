"""What live changes cost: `python -m tests.benchmarks.live [STREAMS] [--idle]`. By hand, on a quiet machine.

Starts the whole service, opens streams of USERS users and measures what a stream takes of memory, what a write costs
where the table is watched, what retrieves cost beside the streams, and the time from a write's request to each client
that sees the change. `--idle` leaves out the last. The clients run beside the service, on the same cores. Each 10,000
streams are of an environment of their own, as many as one may have, and of a process of their own.
Figures: docs/explanation/performance.md.
"""

import asyncio
import contextlib
import copy
import json
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.benchmarks.load_generator import hammer
from tests.benchmarks.rows import request
from tests.support.live_changes import DOCUMENT, App
from tests.support.service import start_up

USERS = 10
SINGLE_WRITES = 100
PAUSES = (0.3, 0.0)
"""Between single writes: while nothing else happens, and one after the other."""
BURST_SECONDS = 5.0
EVENTS = 2_000
"""Events a second, over all streams, that the burst aims at."""
WRITES = 100
ROUNDS = 4
RETRIEVE_SECONDS = 4.0
AT_ONCE = 16
"""Streams that open at the same time."""
PER_ENVIRONMENT = 10_000
"""Streams that the largest plan allows."""
UNCACHED_SECONDS = 120
"""After a change of the project its environments' records are not cached for so long."""
FIRST = 100
"""Streams before memory is measured: what a process needs for any number of them is no part of one."""


@dataclass
class Clients:
    """Open streams. `arrivals` has for each title when a client got it."""

    app: App
    address: str = "127.0.0.1"
    """Of the clients: one address has ports for 28,000."""
    arrivals: dict[str, list[float]] = field(default_factory=dict)
    ready: int = 0
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    refused: int = 0
    ended: int = 0
    opening: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    async def open(self, users: list[str], until: int) -> float:
        """Open streams until there are so many. Returns the seconds that it took."""
        began = time.perf_counter()
        for number in range(len(self.tasks), until):
            self.tasks.append(asyncio.create_task(self._follow(users[number % len(users)])))
        await wait_until(f"{until} streams", lambda: self.ready >= until, 60 + until / 10)
        return time.perf_counter() - began

    async def _follow(self, who: str) -> None:
        async with self.opening:
            reader = await self._opened(who)
        while line := await reader.readline():
            if line.startswith(b'data: {"subscription"'):
                title = json.loads(line[6:]).get("row", {}).get("title")
                self.arrivals.setdefault(title, []).append(time.perf_counter())
        self.ended += 1

    async def _opened(self, who: str) -> asyncio.StreamReader:
        """A stream that is ready."""
        client = self.app.clients[who]
        url = client.base_url
        body = json.dumps({"subscriptions": {"tasks": {"table": "tasks", "columns": "title"}}})
        while True:
            reader, writer = await asyncio.open_connection(url.host, url.port, local_addr=(self.address, 0))
            writer.write(
                f"POST /v1/changes HTTP/1.1\r\nHost: {url.host}:{url.port}\r\nContent-Type: application/json\r\n"
                f"Authorization: {client.headers['Authorization']}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
            )
            if b" 200 " in await reader.readline():
                break
            self.refused += 1
            writer.close()
            await asyncio.sleep(0.5)
        while await reader.readline() != b"event: ready\n":
            pass
        self.ready += 1
        self.writers.append(writer)
        return reader


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


async def write(client: httpx.AsyncClient, title: str, owner: str | None, table: str = "tasks") -> None:
    answer = await client.post(f"/rows/{table}", json={"title": title, "owner_id": owner})
    answer.raise_for_status()


def server(app: App) -> httpx.AsyncClient:
    client = app.clients["server"]
    return httpx.AsyncClient(base_url=client.base_url, headers=client.headers, timeout=30)


def cpu(app: App) -> float:
    """Seconds that all processes of the service have spent, PostgreSQL and Valkey among them."""
    spent = 0.0
    for each in app.served.children():
        with contextlib.suppress(psutil.NoSuchProcess):  # a worker of PostgreSQL that has ended meanwhile
            spent += sum(each.cpu_times()[:2])
    return spent


async def cost_of_writes(app: App) -> None:
    """One client changes a row of a table without streams and of one with, in turns. Pauses let what a write leaves
    behind end before the next one, so that only the write itself is measured; without them both share the cores."""
    rows = {table: app.put(table, title="cost")["id"] for table in ("plain", "tasks")}
    async with server(app) as client:
        for pause in (0.03, 0.0):
            medians: dict[str, list[float]] = {table: [] for table in rows}
            spent = dict.fromkeys(rows, 0.0)
            for _ in range(ROUNDS):
                for table, row_id in rows.items():
                    taken, before = [], cpu(app)
                    for number in range(WRITES):
                        began = time.perf_counter()
                        answer = await client.patch(f"/rows/{table}/{row_id}", json={"title": f"{number}"})
                        taken.append(time.perf_counter() - began)
                        answer.raise_for_status()
                        await asyncio.sleep(pause)
                    medians[table].append(statistics.median(taken) * 1e3)
                    spent[table] += (cpu(app) - before) * 1e3 / WRITES / ROUNDS
            plain, watched = (statistics.median(each) for each in medians.values())
            how = f"with pauses of {pause * 1e3:.0f} ms" if pause else "one after the other"
            print(f"a write, {how}: {plain:.2f} ms, of a watched table {watched:.2f} ms ({watched / plain:.2f});")
            print(
                f"  CPU {spent['plain']:.2f} ms, of a watched table {spent['tasks']:.2f} ms, in all processes of the service"
            )


async def retrieves(app: App) -> float:
    """Retrieves a second, by eight clients in a process of their own."""
    client, row_id = app.clients["server"], app.put("plain", title="retrieved")["id"]
    asked = request(
        client.base_url.port or 80,
        "GET",
        f"/v1/rows/plain/{row_id}",
        client.headers["Authorization"].removeprefix("Bearer "),
    )
    load = await asyncio.to_thread(hammer, client.base_url.port or 80, [asked], seconds=RETRIEVE_SECONDS, connections=8)
    if load.statuses.keys() != {200}:
        raise RuntimeError(f"retrieves were answered {load.statuses}")
    return load.per_second


async def cpu_of_web(app: App, seconds: float = 5.0) -> float:
    """Of one core, while nothing is asked."""

    def spent() -> float:
        return sum(sum(worker.cpu_times()[:2]) for worker in app.served.web_workers())

    before = spent()
    await asyncio.sleep(seconds)
    return (spent() - before) / seconds


def add_users(app: App, streams: int) -> list[str]:
    users = [f"user{number}" for number in range(max(USERS, streams // 90))]
    for name in users:
        app.add_user(name)
    return users


def hold(app: App, streams: int, number: int, opened: Any, is_over: Any) -> None:
    """In a process of its own: open the streams of another environment, say how many open in which time, and keep
    them."""

    async def run() -> None:
        users = add_users(app, streams)
        clients = Clients(app, f"127.0.0.{2 + number}")
        try:
            opened.put(f"{streams} more streams, opened {streams / await clients.open(users, streams):.0f} a second")
        except TimeoutError:
            opened.put(f"{clients.ready} of {streams} more streams; {clients.refused} times refused")
        await asyncio.to_thread(is_over.wait)
        print(f"{clients.ended} of {clients.ready} streams of environment {2 + number} ended")
        for task in clients.tasks:
            task.cancel()

    asyncio.run(run())


async def measure(app: App, streams: int, idle: bool) -> None:
    users = add_users(app, streams)
    clients = Clients(app)
    await retrieves(app)
    alone = await retrieves(app)
    await clients.open(users, min(FIRST, streams // 2))
    before, first = memory(app), clients.ready
    seconds = await clients.open(users, streams)
    await asyncio.sleep(3)
    each = (memory(app) - before) / (streams - first) / 1024
    print(
        f"{streams} streams of {len(users)} users, opened {(streams - first) / seconds:.0f} a second: {each:.1f} KB each"
    )
    print(f"CPU of the web processes with idle streams: {await cpu_of_web(app) * 100:.0f} % of one core")
    beside = await retrieves(app)
    print(f"retrieves: {alone:.0f}/s, beside the streams {beside:.0f}/s ({beside / alone:.0%}); {clients.ended} ended")
    await cost_of_writes(app)
    if not idle:
        await arrivals(app, clients, users)
    for task in clients.tasks:
        task.cancel()


async def arrivals(app: App, clients: Clients, users: list[str]) -> None:
    streams = len(clients.tasks)
    each = streams // len(users)
    async with server(app) as client:
        for pause in PAUSES:
            latencies: list[float] = []
            for number in range(SINGLE_WRITES):
                title = f"single {number} {pause}"
                await asyncio.sleep(pause)
                began = time.perf_counter()
                await write(client, title, app.users[users[number % len(users)]])
                await wait_until("arrivals", lambda: len(clients.arrivals.get(title, [])) >= each)  # noqa: B023
                latencies += [at - began for at in clients.arrivals[title]]
            print(f"one write at a time, pauses of {pause} s, to {each} of {streams} streams: {spread(latencies)}")
        begun: dict[str, float] = {}
        starts = time.perf_counter()

        async def burst(worker: int) -> None:
            """Every eighth of the writes, each at its time, or as soon as the one before has ended."""
            for number in range(worker, int(BURST_SECONDS * EVENTS / each), 8):
                title = f"burst {number}"
                await asyncio.sleep(max(0.0, starts + number * each / EVENTS - time.perf_counter()))
                begun[title] = time.perf_counter()
                await write(client, title, app.users[users[number % len(users)]])

        await asyncio.gather(*(burst(worker) for worker in range(8)))
        taken = time.perf_counter() - starts
        await wait_until("arrivals", lambda: all(len(clients.arrivals.get(title, [])) >= each for title in begun))
        latencies = [at - begun[title] for title in begun for at in clients.arrivals[title]]
        rate = len(begun) / taken
        print(f"{rate:.0f} writes/s, {len(latencies) / taken:.0f} events/s in all: {spread(latencies)}")


def main(streams: int = 200, *, idle: bool = False) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # the service inherits it
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2 * streams + 1_000)), hard))
    DOCUMENT["tables"]["plain"] = copy.deepcopy(DOCUMENT["tables"]["tasks"])
    with tempfile.TemporaryDirectory() as directory:
        up = start_up(Path(directory) / "data", environment={"RATE_LIMIT_FACTOR": "1000"})
        try:
            apps = []
            for _ in range(-(-streams // PER_ENVIRONMENT)):
                apps.append(App(up))
                apps[-1].ok("owner", "PATCH", f"/projects/{apps[-1].project_id}", plan="team")
            time.sleep(UNCACHED_SECONDS)
            opened, is_over = multiprocessing.Queue(), multiprocessing.Event()
            others = [
                multiprocessing.Process(target=hold, args=(other, PER_ENVIRONMENT, number, opened, is_over))
                for number, other in enumerate(apps[1:])
            ]
            for process in others:
                process.start()
                print(opened.get())
            asyncio.run(measure(apps[0], min(streams, PER_ENVIRONMENT), idle))
            is_over.set()
            for process in others:
                process.join()
        finally:
            up.stop()


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:] if argument.isdigit()]
    main(*numbers, idle="--idle" in sys.argv)
