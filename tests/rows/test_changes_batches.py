"""Live changes that are read together: a client that is cut off within them goes on where it was."""

import contextlib
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rows.changes.feed import Feed
from rows.changes.tasks import Task
from tests.support.live_changes import READY, TASKS, App, Live
from tests.support.service import Up

ROWS = 60
TWICE = {"all": {"table": "tasks"}, "titles": {"table": "tasks", "columns": "title"}}


@pytest.fixture(scope="module")
def app(served: Up) -> Iterator[App]:
    app = App(served)
    app.ok("owner", "PATCH", f"/projects/{app.project_id}", plan="pro")  # streams that have ended count for a while
    yield app
    app.close()


def last_id_before(app: App, subscriptions: Any) -> str:
    with app.live("server", subscriptions) as stream:
        assert stream.next() == READY
    assert stream.last_id
    return stream.last_id


def write_at_once(app: App, count: int, **values: Any) -> set[str]:
    """In one transaction. Returns the ids."""
    answer = app.clients["server"].post("/rows/tasks", json=[{"title": "x", "rank": n} | values for n in range(count)])
    assert answer.status_code == 201, answer.text
    return {row["id"] for row in answer.json()["data"]}


def peak_of(pid: int) -> int:
    """Bytes of memory."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def read(stream: Live, count: int) -> list[tuple[str, Any, str | None]]:
    return [stream.next_with_id() for _ in range(count)]


def test_a_client_that_is_cut_off_within_a_batch_goes_on_there(app: App) -> None:
    last_id = last_id_before(app, TASKS)
    written = write_at_once(app, ROWS)
    got: list[str] = []
    while len(got) < ROWS:
        with app.live("server", last_id=last_id) as stream:
            messages = read(stream, 7 if len(got) + 7 < ROWS else ROWS - len(got))
        assert all(each for _, _, each in messages)
        last_id = messages[-1][2] or last_id
        got += [data["id"] for _, data, _ in messages]
    assert len(got) == len(set(got)) == ROWS
    assert set(got) == written
    with app.live("server", last_id=last_id) as stream:
        assert stream.is_silent(), "nothing twice"


def test_what_is_sent_again_of_a_batch_has_the_same_ids(app: App) -> None:
    last_id = last_id_before(app, TASKS)
    write_at_once(app, ROWS)
    with app.live("server", last_id=last_id) as stream:
        messages = read(stream, ROWS)
    write_at_once(app, 1)  # the rest of the batch is the same, whatever comes after it
    for begin in (1, ROWS // 2, ROWS - 1):
        with app.live("server", last_id=messages[begin - 1][2]) as again:
            assert read(again, ROWS - begin) == messages[begin:]
            assert again.next()[0] == "row"


def test_changes_after_a_break_within_a_batch(app: App) -> None:
    """Rows of its first part and of its second one, which is sent as it was before the later change."""
    last_id = last_id_before(app, TASKS)
    write_at_once(app, ROWS)
    with app.live("server", last_id=last_id) as stream:
        first = read(stream, ROWS // 2)
    rows = {data["id"]: data["row"] for _, data, _ in first}
    early, late = first[0][1]["id"], None
    app.change("tasks", early, title="Changed")
    with app.live("server", last_id=first[-1][2]) as stream:
        for _, data, _ in read(stream, ROWS // 2):
            assert data["id"] not in rows
            late = data["id"]
        kind, data, _ = stream.next_with_id()
        assert (kind, data["id"], data["row"]["title"]) == ("row", early, "Changed")
        app.ok("server", "DELETE", f"/rows/tasks/{late}")
        assert stream.next() == ("gone", {"subscription": "tasks", "id": late})


def test_a_break_between_two_subscriptions_to_a_row_loses_neither(app: App) -> None:
    last_id = last_id_before(app, TWICE)
    written = write_at_once(app, 5)
    got: set[tuple[str, str]] = set()
    for _ in range(5):
        with app.live("server", TWICE, last_id) as stream:
            for _, data, each in read(stream, 2):
                got.add((data["subscription"], data["id"]))
                last_id = each or last_id
    assert got == {(name, row_id) for name in TWICE for row_id in written}


def test_changes_of_more_bytes_than_may_wait_for_a_client(app: App) -> None:
    """It reads as fast as they come, and is not cut off."""
    last_id = last_id_before(app, TASKS)
    written = set()
    for _ in range(10):
        written |= write_at_once(app, 3, title="x" * 300_000)
    with app.live("server", last_id=last_id) as stream:
        messages = read(stream, len(written))
        assert {data["id"] for _, data, _ in messages} == written
        assert all(each for _, _, each in messages)
        assert stream.is_silent()


def different_positions(app: App, count: int) -> list[str | None]:
    positions = []
    with app.live("server") as stream:
        assert stream.next() == READY
        for number in range(count):
            app.put("tasks", title=f"{number}")
            assert stream.next()[0] == "row"
            positions.append(stream.last_id)
    return positions


def test_streams_from_different_positions_meet_while_others_write(app: App) -> None:
    """So that a process reads once for all of them, not for each as long as there is no pause."""
    with contextlib.ExitStack() as ends:
        positions = different_positions(app, 24)
        ends.enter_context(many_transactions(app))
        streams = [ends.enter_context(app.live("server", last_id=each)) for each in positions]
        last = app.put("tasks", title="last")["id"]
        for stream in streams:
            while stream.next()[1]["id"] != last:
                pass
        for _ in range(5):
            app.put("tasks", title="to all")
            ids = [stream.next_with_id()[2] for stream in streams]
            assert None not in ids
            assert len(set(ids)) <= len(app.served.web_workers()), "an id tells how far its stream has come"


@contextlib.contextmanager
def many_transactions(app: App) -> Iterator[None]:
    """Thousands a second, that write nothing: no two reads are of the same snapshot."""
    stopping = threading.Event()

    def commit() -> None:
        with app.database() as connection:
            connection.autocommit = True
            while not stopping.is_set():
                connection.execute("SELECT pg_current_xact_id()")

    thread = threading.Thread(target=commit)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def test_clients_that_come_back_at_once_cost_the_memory_of_few(app: App) -> None:
    """Each at a position of its own, with 11 MB to read. They are read one after the other."""
    positions = different_positions(app, 24)
    for _ in range(12):
        write_at_once(app, 3, title="x" * 300_000)
    workers = app.served.web_workers()
    for each in workers:
        Path(f"/proc/{each.pid}/clear_refs").write_text("5")  # the peak counts from now
    before = sum(each.memory_info().rss for each in workers)
    with contextlib.ExitStack() as streams:
        for stream in [streams.enter_context(app.live("server", last_id=each)) for each in positions]:
            assert stream.next(60)[0] in ("row", "closed"), "served, and perhaps cut off because it was too slow"
        grown = sum(peak_of(each.pid) for each in workers) - before
    print(f"{grown / 2**20:.0f} MB in {len(workers)} processes")
    assert grown < len(workers) * 200 * 2**20


class Found:
    """What a pass has found."""


def test_an_idle_worker_keeps_no_batch() -> None:
    feed, found = Feed("us-east-1"), Found()
    tasks, known = [Task("env_a", None, fetched=[([], found)])], weakref.ref(found)  # type: ignore[list-item]
    del found
    kept: list[object] = []

    def get() -> Task | None:
        if tasks:
            return tasks.pop()
        kept.append(known())
        return None

    feed._tasks = SimpleNamespace(get=get, finish=lambda task: False)  # type: ignore[assignment]
    worker = threading.Thread(target=feed._work)
    worker.start()
    worker.join(10)
    assert kept == [None]
