"""What webhooks cost: `python -m tests.benchmarks.webhooks [PART…]`. By hand, on a quiet machine. Results: docs/explanation/performance.md.

The service as `manage.py up` runs it, one worker, and a receiver in a process of its own that answers at once. Parts:
throughput (a backlog, as fast as it goes), arrival (one write at a time, an idle service), cost (a write with and
without a subscriber), hanging (50 receivers that never answer beside a quick one), list (1,000,000 deliveries).
"""

import contextlib
import json
import multiprocessing
import re
import selectors
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx
import psutil

from platform_site.embedded import postgres as embedded_postgres
from platform_site.embedded.data_dir import Layout, region_database
from tests.support.service import Up, start_up, wait_for

BACKLOG = 5_000
ARRIVALS = 100
WRITES = 2_000
HANGING = 50
WEBHOOKS, DELIVERIES = 200, 1_000_000

# ── The receiver ────────────────────────────────────────────────────────────────────────────────────────────────────

_ROW = re.compile(rb'"data":\{"table":"[a-z]+","id":"([^"]+)"')
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def serve(pipe: "Connection[Any, Any]") -> None:
    """Answers everything at once. What came, as (monotonic time, row id), is handed over when something is sent
    here."""
    selector, came = selectors.DefaultSelector(), []
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    selector.register(listener, selectors.EVENT_READ, None)
    selector.register(pipe, selectors.EVENT_READ, None)
    pipe.send(listener.getsockname()[1])
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(connection, selectors.EVENT_READ, bytearray())
            elif key.fileobj is pipe:
                if pipe.recv() is None:
                    return
                pipe.send(came)
                came = []
            else:
                came += _answered(selector, key)


def _answered(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> list[tuple[float, str]]:
    connection, received = key.fileobj, key.data
    assert isinstance(connection, socket.socket)
    try:
        data = connection.recv(262_144)
    except ConnectionError:
        data = b""
    if not data:
        selector.unregister(connection)
        connection.close()
        return []
    received += data
    came = []
    while (head := received.find(b"\r\n\r\n")) >= 0:
        at = received.lower().find(b"content-length: ") + 16
        end = head + 4 + int(received[at : received.index(b"\r", at)])
        if len(received) < end:
            break
        found = _ROW.search(received, head)
        came.append((time.monotonic(), found[1].decode() if found else ""))
        del received[:end]
        connection.sendall(_OK)
    return came


class Sink:
    """The receiver's process, and what has come so far by the id of the row."""

    def __init__(self) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.Process(target=serve, args=(theirs,), daemon=True)
        self._process.start()
        self.url = f"http://127.0.0.1:{self._pipe.recv()}/hook"
        self.came: dict[str, float] = {}

    def look(self) -> dict[str, float]:
        self._pipe.send("what came?")
        for at, row_id in self._pipe.recv():
            self.came.setdefault(row_id, at)
        return self.came

    def close(self) -> None:
        self._pipe.send(None)
        self._process.join(5)


# ── The place ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Bench:
    up: Up
    sink: Sink
    client: httpx.Client
    _number: int = field(default=0)

    @property
    def environment(self) -> str:
        return str(self.up.facts["environments"]["production"])

    def subscribe(self, url: str = "", **values: Any) -> str:
        body = {"url": url or self.sink.url, "events": ["lists.insert"], **values}
        made = self.client.post("/v1/webhooks", json=body)
        assert made.status_code == 201, made.text
        return str(made.json()["id"])

    def unsubscribe(self, webhook_id: str) -> None:
        assert self.client.delete(f"/v1/webhooks/{webhook_id}").status_code == 204

    def rows(self, count: int) -> list[dict[str, str]]:
        self._number += count
        owner = self.up.facts["app_users"][0]["id"]
        return [{"id": f"bench-{self._number - n}", "name": "Bench", "owner_id": owner} for n in range(count)]

    def write(self, body: Any) -> None:
        answer = self.client.post("/v1/rows/lists", json=body)
        assert answer.status_code == 201, answer.text

    def worker(self) -> psutil.Process:
        return self.up.part("platform-worker")

    def sql(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with embedded_postgres.connect(Layout(self.up.data_dir), region_database("us-east-1")) as connection:
            cursor = connection.execute(query, values)  # type: ignore[call-overload]
            return list(cursor.fetchall()) if cursor.description else []

    def arrived(self, rows: list[dict[str, str]], seconds: float = 120) -> None:
        wanted = {row["id"] for row in rows}
        wait_for("all arrive", lambda: wanted <= self.sink.look().keys(), seconds, every=0.05)


@contextlib.contextmanager
def bench() -> Iterator[Bench]:
    directory = Path(tempfile.mkdtemp(prefix="bp-bench-"))
    up = start_up(directory / "data", environment={"RATE_LIMIT_FACTOR": "1000000"})
    sink = Sink()
    try:
        headers = {"Authorization": f"Bearer {up.facts['server_key']}"}
        with httpx.Client(base_url=up.base_url, headers=headers, timeout=30) as client:
            for known in client.get("/v1/webhooks").json()["data"]:
                client.delete(f"/v1/webhooks/{known['id']}")
            yield Bench(up, sink, client)
    finally:
        sink.close()
        up.stop()
        shutil.rmtree(directory, ignore_errors=True)


def cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def cpu_of_postgres(up: Up) -> float:
    server = up.part("postgres", "-D")
    spent = cpu(server)
    for child in server.children():
        with contextlib.suppress(psutil.NoSuchProcess):
            spent += cpu(child)
    return spent + server.cpu_times().children_user + server.cpu_times().children_system


# ── The parts ───────────────────────────────────────────────────────────────────────────────────────────────────────


def throughput(bench: Bench) -> None:
    """A backlog of events, written while the worker is stopped; then from the first arrival to the last."""
    webhook = bench.subscribe()
    worker = bench.worker()
    rows = bench.rows(BACKLOG)
    worker.send_signal(signal.SIGSTOP)
    for start in range(0, BACKLOG, 100):
        bench.write(rows[start : start + 100])
    spent, spent_postgres = cpu(worker), cpu_of_postgres(bench.up)
    worker.send_signal(signal.SIGCONT)
    bench.arrived(rows)
    times = sorted(bench.sink.came[row["id"]] for row in rows)
    query = "SELECT count(*) FROM platform.webhooks_delivery WHERE webhook_id = %s AND status = 'delivered'"
    wait_for("all is recorded", lambda: bench.sql(query, webhook)[0][0] == BACKLOG, 30)
    spent, spent_postgres = cpu(worker) - spent, cpu_of_postgres(bench.up) - spent_postgres
    print(f"throughput: {BACKLOG / (times[-1] - times[0]):,.0f} deliveries/s;", end=" ")
    print(f"CPU for each {spent / BACKLOG * 1e6:,.0f} µs worker, {spent_postgres / BACKLOG * 1e6:,.0f} µs PostgreSQL")
    bench.unsubscribe(webhook)


def arrival(bench: Bench) -> None:
    """From sending the request, and from its answer, to the arrival of the event; one at a time."""
    webhook = bench.subscribe()
    since_sent, since_answered = [], []
    for row in bench.rows(ARRIVALS):
        time.sleep(0.5)  # longer than the dispatcher lingers
        sent = time.monotonic()
        bench.write(row)
        answered = time.monotonic()
        bench.arrived([row], 30)
        since_sent.append(bench.sink.came[row["id"]] - sent)
        since_answered.append(bench.sink.came[row["id"]] - answered)
    for name, took in (("the request", since_sent), ("the answer", since_answered)):
        took.sort()
        print(f"arrival after {name}: p50 {statistics.median(took) * 1000:.1f} ms, p95 {took[94] * 1000:.1f} ms")
    bench.unsubscribe(webhook)


def cost(bench: Bench) -> None:
    """Single writes, blocks of them with and without a subscriber by turns, the worker standing still."""
    worker = bench.worker()
    worker.send_signal(signal.SIGSTOP)
    took: dict[bool, list[float]] = {True: [], False: []}
    spent: dict[bool, float] = {True: 0.0, False: 0.0}
    webs = bench.up.web_workers()
    try:
        for block in range(20):
            told = block % 2 == 1
            webhook = bench.subscribe() if told else ""
            before = sum(map(cpu, webs)) + cpu_of_postgres(bench.up)
            for row in bench.rows(WRITES // 20):
                begun = time.monotonic()
                bench.write(row)
                took[told].append(time.monotonic() - begun)
            spent[told] += sum(map(cpu, webs)) + cpu_of_postgres(bench.up) - before
            if told:
                bench.unsubscribe(webhook)
    finally:
        worker.send_signal(signal.SIGCONT)
    without, with_one = (statistics.median(took[told]) * 1000 for told in (False, True))
    print(
        f"a write: p50 {without:.2f} ms without, {with_one:.2f} ms with a subscriber: × {with_one / without:.2f};",
        end=" ",
    )
    print(
        f"CPU × {spent[True] / spent[False]:.2f} ({spent[False] / WRITES * 2e6:,.0f} µs, {spent[True] / WRITES * 2e6:,.0f} µs)"
    )


def hanging(bench: Bench) -> None:
    """A quick receiver beside many that take the connection and never answer."""
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=128)) for _ in range(HANGING)]
        quick = bench.subscribe()
        first = bench.subscribe(f"http://127.0.0.1:{silent[0].getsockname()[1]}/hook")
        copy = """INSERT INTO platform.webhooks_webhook (id, environment_id, url, host, events, ordering, description, enabled,
                      sealed_secret) SELECT %s, environment_id, %s, %s, events, ordering, description, enabled, sealed_secret
                      FROM platform.webhooks_webhook WHERE id = %s"""
        for number, each in enumerate(silent[1:]):
            host = f"127.0.0.1:{each.getsockname()[1]}"
            bench.sql(copy, f"wh_hangs{number}", f"http://{host}/hook", host, first)
        took = []
        for row in bench.rows(200):
            bench.write(row)
            answered = time.monotonic()
            bench.arrived([row], 30)
            took.append(bench.sink.came[row["id"]] - answered)
            time.sleep(0.1)
        took.sort()
        print(f"beside {HANGING} that hang: p50 {took[100] * 1000:.0f} ms, p95 {took[190] * 1000:.0f} ms", end=", ")
        print(f"worker {bench.worker().memory_info().rss / 2**20:.0f} MB in {bench.worker().num_threads()} threads")
        assert {quick, first} <= {known["id"] for known in bench.client.get("/v1/webhooks").json()["data"]}
        for known in bench.client.get("/v1/webhooks").json()["data"]:
            bench.unsubscribe(known["id"])


def listing(bench: Bench) -> None:
    """`GET /v1/webhooks` of 200 webhooks, while their deliveries grow."""
    first = bench.subscribe(enabled=False)
    bench.sql(
        """INSERT INTO platform.webhooks_webhook (id, environment_id, url, host, events, ordering, description, enabled,
               sealed_secret) SELECT 'wh_list' || n, environment_id, url, host, events, ordering, description, false,
               sealed_secret FROM platform.webhooks_webhook, generate_series(1, %s::bigint) n WHERE id = %s""",
        WEBHOOKS - 1,
        first,
    )
    insert = """INSERT INTO platform.webhooks_delivery (id, environment_id, webhook_id, event_id, event_type, sequence,
                    depth, body, status, attempts, schedule_from, last_attempt_at, has_succeeded)
                SELECT 'dlv_' || lpad(n::text, 20, '0'), %s, 'wh_list' || 1 + n %% %s, 'evt_' || n, 'lists.insert', n, 0,
                       repeat('x', 400), 'delivered', 1, 0, now() - n * interval '1 second', n %% 10 > 0
                  FROM generate_series(%s::bigint, %s::bigint) n"""
    made = 0
    for total in (0, DELIVERIES // 100, DELIVERIES // 10, DELIVERIES):
        while made < total:
            upto = min(total, made + 100_000)
            bench.sql(insert, bench.environment, WEBHOOKS - 1, made + 1, upto)
            made = upto
        bench.sql("ANALYZE platform.webhooks_delivery")
        took = []
        for _ in range(40):
            begun = time.monotonic()
            answer = bench.client.get("/v1/webhooks")
            took.append(time.monotonic() - begun)
        assert len(answer.json()["data"]) == WEBHOOKS
        print(f"list of {WEBHOOKS} with {total:>9,} deliveries: p50 {statistics.median(took) * 1000:.1f} ms")
    print(json.dumps(answer.json()["data"][1]))


PARTS = {"throughput": throughput, "arrival": arrival, "cost": cost, "hanging": hanging, "list": listing}

if __name__ == "__main__":
    with bench() as made:
        for part in sys.argv[1:] or PARTS:
            PARTS[part](made)
            sys.stdout.flush()
