"""Live changes while parts of the service fail: a client that applies the events has the rows that a list shows."""

import random
import signal
import threading
import time
from collections.abc import Callable
from queue import Empty
from typing import Any

import httpx
import pytest

from tests.faults import inject
from tests.faults.conftest import OwnValkey
from tests.support.live_changes import App, Live
from tests.support.service import Up, wait_for

SUBSCRIPTIONS = {"tasks": {"table": "tasks", "where": {"rank": {"$lt": 8}}, "columns": "title,rank"}}


class Mirror(threading.Thread):
    """A client with a copy of the rows, kept up to date by the stream. Its connection breaks now and then."""

    def __init__(self, app: App, who: str, stopping: threading.Event) -> None:
        super().__init__(daemon=True)
        self.app, self.who, self.stopping = app, who, stopping
        self.rows: dict[str, Any] = {}
        self.last_id: str | None = None
        self.opened = 0

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                self._follow(Live(self.app.clients[self.who], SUBSCRIPTIONS, self.last_id))
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
            self.rows[data["id"]] = data["row"]
        elif kind == "gone":
            self.rows.pop(data["id"], None)

    def list(self) -> dict[str, Any]:
        """Raises httpx.HTTPError while the service fails: the position stays, and so nothing is lost."""
        found: dict[str, Any] = {}
        cursor = None
        while True:
            query = {"where": '{"rank":{"$lt":8}}', "columns": "title,rank", "limit": "100"}
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
    """Inserts, changes and deletes rows of both users, and moves some from one to the other."""

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


HARMS: dict[str, Callable[[Up, OwnValkey], None]] = {
    "nothing but broken connections": lambda up, valkey: time.sleep(4),
    "web workers killed": lambda up, valkey: inject.kill_web_workers(up),
    "web workers replaced": lambda up, valkey: reload(up),
    "connections terminated": lambda up, valkey: inject.terminate_connections(up),
    "PostgreSQL restarted": lambda up, valkey: inject.restart_postgres(up),
    "Valkey emptied": lambda up, valkey: inject.empty_valkey(valkey),
    "Valkey unavailable": lambda up, valkey: inject.restart_valkey(valkey),
}


@pytest.mark.parametrize("what", HARMS)
def test_no_change_is_lost(battered: Up, own_valkey: OwnValkey, what: str) -> None:
    app = App(battered)
    stopping, stopped_writing = threading.Event(), threading.Event()
    mirrors = [Mirror(app, who, stopping) for who in ("ada", "bob", "ada", "bob")]
    writers = [Writer(app, stopped_writing) for _ in range(2)]
    for thread in [*mirrors, *writers]:
        thread.start()
    try:
        time.sleep(1)
        HARMS[what](battered, own_valkey)
        time.sleep(1)
        stopped_writing.set()
        for writer in writers:
            writer.join(30)
        assert sum(writer.written for writer in writers) > 50
        for mirror in mirrors:
            wait_for(f"the rows of {mirror.who}", lambda: mirror.rows == mirror.list(), 30, 0.2)  # noqa: B023
    finally:
        stopping.set()
        stopped_writing.set()
        for mirror in mirrors:
            mirror.join(30)
    assert sum(mirror.opened for mirror in mirrors) > len(mirrors), "connections broke, and were opened again"
    assert all(row["rank"] < 8 for mirror in mirrors for row in mirror.rows.values())
