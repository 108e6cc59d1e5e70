"""Live changes while parts of the service fail: a client that applies the events has the rows that a list shows.

CHANGES_WRITES and CHANGES_STREAMS make it larger than in the suite: 10,000 writes and 50 streams for a release.
"""

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from queue import Empty
from typing import Any

import httpx
import pytest

from tests.faults import inject
from tests.faults.conftest import OwnValkey
from tests.support.cuttable_network import CuttableNetwork
from tests.support.live_changes import App, Live
from tests.support.service import Up, wait_for

WRITES = int(os.environ.get("CHANGES_WRITES", "50"))
STREAMS = int(os.environ.get("CHANGES_STREAMS", "4"))
COLUMNS = "title,rank,owner_id"
SUBSCRIPTIONS = {"tasks": {"table": "tasks", "where": {"rank": {"$lt": 8}}, "columns": COLUMNS}}


class Mirror(threading.Thread):
    """A client with a copy of the rows, kept up to date by the stream. Its connection breaks now and then.

    `client` reads the stream, which may lead through a network that fails.
    """

    def __init__(self, app: App, who: str, client: httpx.Client, stopping: threading.Event) -> None:
        super().__init__(daemon=True)
        self.app, self.who, self.client, self.stopping = app, who, client, stopping
        self.sent: dict[str, int] = {}
        """The last title of each row that the stream has sent."""
        self.unauthorized = self.out_of_order = 0
        self.rows: dict[str, Any] = {}
        self.last_id: str | None = None
        self.opened = 0

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                self._follow(Live(self.client, SUBSCRIPTIONS, self.last_id))
            except httpx.HTTPError:
                pass
            time.sleep(0.1)

    def _follow(self, stream: Live) -> None:
        breaks_at = time.monotonic() + random.uniform(0.5, 2)
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
                self._apply(kind, data)
                self.last_id = last_id or self.last_id
        finally:
            stream.close()

    def _apply(self, kind: str, data: Any) -> None:
        if kind in ("ready", "reset"):
            self.rows = self.list()
        elif kind == "row":
            row, title = data["row"], int(data["row"]["title"])
            self.unauthorized += row["owner_id"] != self.app.users[self.who] or row["rank"] >= 8
            self.out_of_order += title < self.sent.get(data["id"], 0)
            self.sent[data["id"]] = title
            self.rows[data["id"]] = data["row"]
        elif kind == "gone":
            self.rows.pop(data["id"], None)

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


class Writer(threading.Thread):
    """Inserts, changes and deletes rows of both users, and moves some from one to the other. The titles of a row grow:
    no other writer changes it."""

    def __init__(self, app: App, stopping: threading.Event) -> None:
        super().__init__(daemon=True)
        self.app, self.stopping = app, stopping
        self.written = 0

    def run(self) -> None:
        owners = [self.app.users["ada"], self.app.users["bob"]]
        known: list[str] = []
        while not self.stopping.is_set():
            values = {"title": f"{self.written}", "rank": random.randrange(10), "owner_id": random.choice(owners)}
            try:
                if not known or random.random() < 0.3:
                    answer = self.app.clients["server"].post("/rows/tasks", json=values)
                    if answer.status_code == 201:
                        known.append(answer.json()["id"])
                elif random.random() < 0.2:
                    row_id = known.pop(random.randrange(len(known)))
                    answer = self.app.clients["server"].delete(f"/rows/tasks/{row_id}")
                else:
                    answer = self.app.clients["server"].patch(f"/rows/tasks/{random.choice(known)}", json=values)
                self.written += answer.is_success
            except httpx.HTTPError:
                time.sleep(0.05)


def reload(up: Up) -> None:
    for _ in range(2):
        up.process.send_signal(signal.SIGHUP)
        time.sleep(2)


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
}


@pytest.fixture
def network(battered: Up) -> Iterator[CuttableNetwork]:
    url = httpx.URL(battered.base_url)
    with CuttableNetwork(url.host, url.port or 80) as network:
        yield network


def client_through(network: CuttableNetwork, app: App, who: str) -> httpx.Client:
    client = app.clients[who]
    return httpx.Client(base_url=client.base_url.copy_with(port=network.port), headers=client.headers, timeout=20)


@pytest.mark.timeout(120 + WRITES / 5)
@pytest.mark.parametrize("what", HARMS)
def test_no_change_is_lost(battered: Up, own_valkey: OwnValkey, network: CuttableNetwork, what: str) -> None:
    app = App(battered)
    app.ok("owner", "PATCH", f"/projects/{app.project_id}", plan="team")
    stopping, stopped_writing = threading.Event(), threading.Event()
    ends = contextlib.ExitStack()
    mirrors = [
        Mirror(app, who, ends.enter_context(client_through(network, app, who)), stopping)
        for who in ("ada", "bob") * (STREAMS // 2)
    ]
    writers = [Writer(app, stopped_writing) for _ in range(2)]
    for thread in [*mirrors, *writers]:
        thread.start()
    try:
        time.sleep(1)
        HARMS[what](battered, own_valkey, network)
        time.sleep(1)
        wait_for("the writes", lambda: sum(writer.written for writer in writers) > WRITES, 60 + WRITES / 10)
        stopped_writing.set()
        for writer in writers:
            writer.join(30)
        for mirror in mirrors:
            wait_for(f"the rows of {mirror.who}", lambda: mirror.rows == mirror.list(), 30, 0.2)  # noqa: B023
    finally:
        stopping.set()
        stopped_writing.set()
        for mirror in mirrors:
            mirror.join(30)
        ends.close()
    assert [mirror.unauthorized + mirror.out_of_order for mirror in mirrors] == [0] * len(mirrors)
    assert sum(mirror.opened for mirror in mirrors) > len(mirrors), "connections broke, and were opened again"
    assert all(row["rank"] < 8 for mirror in mirrors for row in mirror.rows.values())
