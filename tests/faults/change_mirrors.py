"""Live changes while parts of the service fail: clients with a copy of the rows, writers, and what became of them."""

import contextlib
import json
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import Empty
from typing import Any

import httpx

from tests.faults import inject
from tests.faults.conftest import OwnValkey
from tests.support.cuttable_network import CuttableNetwork
from tests.support.live_changes import App, Live
from tests.support.service import Up, wait_for

BATCH = 20
"""Rows that a batch changes at most."""
ROWS = 200
"""That a writer keeps: a client that lists them must not take so long that it has to list them again."""
COLUMNS = "title,rank,owner_id"
SUBSCRIPTIONS = {"tasks": {"table": "tasks", "where": {"rank": {"$lt": 8}}, "columns": COLUMNS}}


class Mirror(threading.Thread):
    """A client with a copy of the rows, kept up to date by the stream. Its connection breaks now and then.

    `client` reads the stream, which may lead through a network that fails.
    """

    pause = 0.0
    """After each line, in seconds."""
    longest = 2.0
    """Seconds until its connection breaks, at most."""

    def __init__(self, app: App, who: str, client: httpx.Client, stopping: threading.Event) -> None:
        super().__init__(daemon=True)
        self.app, self.who, self.client, self.stopping = app, who, client, stopping
        self.sent: dict[str, tuple[int, str | None]] = {}
        """The last title of each row that the stream has sent, and the id of the message."""
        self.events = self.duplicates = self.renamed = self.unauthorized = self.out_of_order = 0
        self.rows: dict[str, Any] = {}
        self.last_id: str | None = None
        self.opened = 0

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                self._follow(Live(self.client, SUBSCRIPTIONS, self.last_id, self.pause))
            except httpx.HTTPError:
                pass
            time.sleep(0.1)

    def _follow(self, stream: Live) -> None:
        breaks_at = time.monotonic() + random.uniform(self.longest / 4, self.longest)
        try:
            if stream.response.status_code != 200:
                assert stream.response.status_code in (429, 500, 502, 503), stream.response.read()
                return
            self.opened += 1
            while not self.stopping.is_set() and time.monotonic() < breaks_at:
                try:
                    kind, data, last_id = stream.next_with_id(0.2)
                except Empty:
                    continue
                if kind in ("bye", "closed"):
                    return
                self._apply(kind, data, last_id)
                self.last_id = last_id or self.last_id
        finally:
            stream.close()

    def _apply(self, kind: str, data: Any, message_id: str | None) -> None:
        if kind in ("ready", "reset"):
            self.rows = self.list()
        elif kind == "row":
            row, title = data["row"], int(data["row"]["title"])
            before, id_before = self.sent.get(data["id"], (0, None))
            self.events += 1
            self.duplicates += title == before
            self.renamed += title == before and message_id != id_before
            self.unauthorized += row["owner_id"] != self.app.users[self.who] or row["rank"] >= 8
            self.out_of_order += title < before
            self.sent[data["id"]] = title, message_id
            self.rows[data["id"]] = data["row"]
        elif kind == "gone":
            self.rows.pop(data["id"], None)

    def is_current(self) -> bool:
        return self.rows == self.list()

    def list(self) -> dict[str, Any]:
        """Raises httpx.HTTPError while the service fails: the position stays, and so nothing is lost."""
        found: dict[str, Any] = {}
        cursor = None
        while True:
            query = {"where": '{"rank":{"$lt":8}}', "columns": COLUMNS, "limit": "100"}
            answer = self.app.clients[self.who].get(
                "/rows/tasks", params=query | ({"cursor": cursor} if cursor else {})
            )
            answer.raise_for_status()
            page = answer.json()
            found |= {row["id"]: row for row in page["data"]}
            cursor = page["next_cursor"]
            if cursor is None:
                return found


class SlowMirror(Mirror):
    """Reads slower than the writers write, and is cut off within every batch."""

    pause = 0.005


class Writer(threading.Thread):
    """Inserts, changes and deletes rows of both users, one by one and in batches, and moves some from one to the other.
    The titles of a row grow: no other writer changes it."""

    def __init__(self, app: App, stopping: threading.Event) -> None:
        super().__init__(daemon=True)
        self.app, self.stopping = app, stopping
        self.written = self.number = 0
        self.known: list[str] = []
        self.owners = [app.users["ada"], app.users["bob"]]

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                if random.random() < 0.5:
                    self._write_batch()
                else:
                    self._write_one()
            except httpx.HTTPError:
                time.sleep(0.05)

    def _values(self) -> dict[str, Any]:
        self.number += 1
        return {"title": f"{self.number}", "rank": random.randrange(10), "owner_id": random.choice(self.owners)}

    def _write_one(self) -> None:
        client = self.app.clients["server"]
        if not self.known or random.random() < 0.3:
            answer = client.post("/rows/tasks", json=self._values())
            if answer.status_code == 201:
                self.known.append(answer.json()["id"])
        elif random.random() < 0.2:
            answer = client.delete(f"/rows/tasks/{self._forget_one()}")
        else:
            answer = client.patch(f"/rows/tasks/{random.choice(self.known)}", json=self._values())
        self.written += answer.is_success

    def _forget_one(self) -> str:
        return self.known.pop(random.randrange(len(self.known)))

    def _write_batch(self) -> None:
        surplus = [self._forget_one() for _ in range(len(self.known) - ROWS)]
        inserts = [{"op": "insert", "table": "tasks", "values": self._values()} for _ in range(2)]
        updates = [
            {"op": "update", "table": "tasks", "id": row_id, "values": self._values()}
            for row_id in random.sample(self.known, min(BATCH, len(self.known)))
        ]
        deletes = [{"op": "delete", "table": "tasks", "id": row_id} for row_id in surplus]
        operations = [*inserts, *updates, *deletes]
        answer = self.app.clients["server"].post("/batch", json={"operations": operations})
        if answer.is_success:
            self.written += len(operations)
            self.known += [each["row"]["id"] for each in answer.json()["results"][: len(inserts)]]


def reload(up: Up) -> None:
    for _ in range(2):
        up.process.send_signal(signal.SIGHUP)
        time.sleep(2)


@contextlib.contextmanager
def streams_that_nobody_reads(app: App, count: int) -> Iterator[None]:
    """Connections with the smallest buffers, so that the server cannot send on."""
    client = app.clients["ada"]
    body = json.dumps({"subscriptions": SUBSCRIPTIONS})
    with contextlib.ExitStack() as ends:
        for _ in range(count):
            connection = ends.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            connection.connect((client.base_url.host, client.base_url.port))
            connection.sendall(
                f"POST /v1/changes HTTP/1.1\r\nHost: {client.base_url.host}\r\nContent-Type: application/json\r\n"
                f"Authorization: {client.headers['Authorization']}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
            )
        yield


SLOW = "slow readers"
HARMS: dict[str, Callable[[Up, OwnValkey, CuttableNetwork], None]] = {
    "nothing but broken connections": lambda up, valkey, network: time.sleep(4),
    "web workers killed": lambda up, valkey, network: inject.kill_web_workers(up),
    "web workers replaced": lambda up, valkey, network: reload(up),
    "relay killed": lambda up, valkey, network: inject.kill_workers(up, []),
    "connections terminated": lambda up, valkey, network: inject.terminate_connections(up),
    "PostgreSQL restarted": lambda up, valkey, network: inject.restart_postgres(up),
    "Valkey emptied": lambda up, valkey, network: inject.empty_valkey(valkey),
    "Valkey unavailable": lambda up, valkey, network: inject.restart_valkey(valkey),
    "network cut": lambda up, valkey, network: network.cut(3),
    SLOW: lambda up, valkey, network: None,
}


@dataclass(frozen=True, slots=True)
class Result:
    """`lost` are clients whose rows are not those of a list in the end; `events` are of rows, to all clients; `renamed`
    are duplicates with another id."""

    writes: int
    opened: int
    events: int
    lost: int
    duplicates: int
    renamed: int
    unauthorized: int
    out_of_order: int


def client_through(network: CuttableNetwork, app: App, who: str) -> httpx.Client:
    client = app.clients[who]
    return httpx.Client(base_url=client.base_url.copy_with(port=network.port), headers=client.headers, timeout=20)


def follow(up: Up, valkey: OwnValkey, what: str, *, writes: int, streams: int) -> Result:
    """Writes while one of HARMS happens, read by `streams` clients of two users."""
    app = App(up)
    app.ok("owner", "PATCH", f"/projects/{app.project_id}", plan="team")
    stopping, stopped_writing = threading.Event(), threading.Event()
    host = httpx.URL(up.base_url)
    with contextlib.ExitStack() as ends:
        network = ends.enter_context(CuttableNetwork(host.host, host.port or 80))
        if what == SLOW:
            ends.enter_context(streams_that_nobody_reads(app, max(1, streams // 5)))
        mirrors = [
            (SlowMirror if what == SLOW and number % 5 == 0 else Mirror)(
                app, who, ends.enter_context(client_through(network, app, who)), stopping
            )
            for number, who in enumerate(("ada", "bob") * (streams // 2))
        ]
        writers = [Writer(app, stopped_writing) for _ in range(2)]
        for thread in [*mirrors, *writers]:
            thread.start()
        try:
            time.sleep(1)
            HARMS[what](up, valkey, network)
            time.sleep(1)
            wait_for("the writes", lambda: sum(writer.written for writer in writers) > writes, 60 + writes / 10)
            stopped_writing.set()
            for writer in writers:
                writer.join(30)
            lost = sum(not _becomes_current(mirror) for mirror in mirrors)
        finally:
            stopping.set()
            stopped_writing.set()
            for mirror in mirrors:
                mirror.join(30)
    return Result(
        writes=sum(each.written for each in writers),
        opened=sum(each.opened for each in mirrors),
        events=sum(each.events for each in mirrors),
        lost=lost,
        duplicates=sum(each.duplicates for each in mirrors),
        renamed=sum(each.renamed for each in mirrors),
        unauthorized=sum(each.unauthorized for each in mirrors),
        out_of_order=sum(each.out_of_order for each in mirrors),
    )


def _becomes_current(mirror: Mirror, seconds: float = 60) -> bool:
    """Slow readers take their time, so `seconds` count from the last event."""
    ends, events = time.monotonic() + seconds, mirror.events
    while not mirror.is_current():
        if mirror.events > events:
            ends, events = time.monotonic() + seconds, mirror.events
        if time.monotonic() > ends:
            return False
        time.sleep(0.2)
    return True
