"""Live changes under attack: hidden rows, expensive subscriptions, transactions that stay open."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.live_changes import READY, TASKS, App
from tests.support.service import Up
from tests.support.timing import within

NOTES = {"notes": {"table": "notes"}}


@pytest.fixture(scope="module")
def app(served: Up) -> Iterator[App]:
    app = App(served)
    yield app
    app.close()


def test_a_thousand_hidden_changes_send_nothing(app: App) -> None:
    """No event, and no position either: its length and its number would tell of them."""
    with app.live("bob") as stream:
        assert stream.next() == READY
        rows = [{"title": "Hidden", "owner_id": app.users["ada"]} for _ in range(100)]
        for _ in range(10):
            answer = app.clients["server"].post("/rows/tasks", json=rows)
            assert answer.status_code == 201, answer.text
        assert stream.is_silent(2)


def test_positions_do_not_grow_with_hidden_changes(app: App) -> None:
    lengths = []
    for _ in range(2):
        with app.live("bob") as stream:
            assert stream.next() == READY
            lengths.append(len(stream.last_id or ""))
        app.put("tasks", title="Hidden", owner_id=app.users["ada"])
    assert lengths[0] == lengths[1]


def test_one_related_row_that_shows_a_thousand_is_one_reset(app: App) -> None:
    team = app.put("teams", name="Large")["id"]
    for _ in range(10):
        rows = [{"body": "x", "team_id": team} for _ in range(100)]
        assert app.clients["server"].post("/rows/notes", json=rows).status_code == 201
    with app.live("ada", NOTES) as stream:
        assert stream.next() == READY
        member = app.put("members", team_id=team, member_id=app.users["ada"])["id"]
        assert stream.next() == ("reset", {"subscription": "notes"})
        assert app.ok("ada", "GET", "/rows/notes?limit=1")["data"]
        app.ok("server", "DELETE", f"/rows/members/{member}")
        assert stream.next() == ("reset", {"subscription": "notes"})
        assert stream.is_silent()
    assert app.ok("ada", "GET", "/rows/notes")["data"] == []


def test_first_subscription_during_writes_misses_none(app: App) -> None:
    """What is in no list after `ready` comes as an event, though the table was not watched as the writes began."""
    stopping = threading.Event()
    written: list[str] = []

    def write() -> None:
        while not stopping.is_set():
            written.append(app.put("teams", name="During")["id"])

    writers = [threading.Thread(target=write) for _ in range(3)]
    for writer in writers:
        writer.start()
    try:
        with app.live("server", {"teams": {"table": "teams", "columns": "name"}}) as stream:
            assert stream.next() == READY
            known: set[str] = set()
            cursor: str | None = ""
            while cursor is not None:
                page = app.ok("server", "GET", f"/rows/teams?limit=100{cursor and f'&cursor={cursor}'}")
                known |= {row["id"] for row in page["data"]}
                cursor = page["next_cursor"]
            time.sleep(0.5)
            stopping.set()
            for writer in writers:
                writer.join()
            while missing := set(written) - known:
                kind, data = stream.next()
                assert kind == "row", (kind, len(missing))
                known.add(data["id"])
    finally:
        stopping.set()


def test_an_open_transaction_holds_up_nothing_for_ever(app: App) -> None:
    """Where one is older than the watching of the table, the stream begins with a reset after ten seconds; it delays
    no event of others."""
    with app.database() as database, database.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("SELECT pg_current_xact_id()")
        with app.live("server", {"posts": {"table": "posts"}}) as stream:
            assert stream.next(20) == ("reset", {"subscription": "posts"})
            team = app.put("teams", name="Meanwhile")["id"]
            made = app.put("posts", team_id=team)
            kind, data = stream.next(5)
            assert (kind, data["id"]) == ("row", made["id"])


def test_expensive_subscriptions_of_a_tenant_delay_no_other(app: App, served: Up) -> None:
    """A thousand subscriptions with relations, beside one of another tenant."""
    expensive = {
        f"s{number}": {"table": "notes", "where": {"team.name": {"$ne": f"{number}"}, "body": {"$ne": "y"}}}
        for number in range(20)
    }
    other = App(served)
    try:
        team = app.put("teams", name="Expensive")["id"]
        with ExitStack() as stack:
            app.ok("owner", "PATCH", f"/projects/{app.project_id}", plan="team")
            for _ in range(50):
                stack.enter_context(app.live("ada", expensive))
            stream = stack.enter_context(other.live("ada", TASKS))
            assert stream.next() == READY
            for number in range(5):
                app.clients["server"].post("/rows/notes", json=[{"body": "x", "team_id": team} for _ in range(100)])
                began = time.monotonic()
                other.put("tasks", title=f"{number}", owner_id=other.users["ada"])
                assert stream.next()[1]["row"]["title"] == f"{number}"
                assert time.monotonic() - began < within(3)
    finally:
        other.close()


def test_transaction_ids_of_another_server_are_no_events(app: App) -> None:
    """In a region that was restored with `pg_restore` they are higher than any of this server."""
    with app.live("server") as stream:
        assert stream.next() == READY
        app.put("tasks", title="restored")
        assert stream.next()[0] == "row"
        with app.database() as database:
            changed = database.execute(
                "UPDATE platform.rows_outboxevent SET transaction = '999999999' WHERE environment_id = %s",
                [app.environment],
            )
            assert changed.rowcount > 0
        app.put("tasks", title="new")
        assert stream.next()[1]["row"]["title"] == "new"
        assert stream.is_silent(2)


def test_streams_of_many_users_do_not_each_ask_the_database(app: App) -> None:
    """After a change of the project, when the record of the environment that they share is not cached for a while."""
    users = [f"user{number}" for number in range(20)]
    for user in users:
        app.add_user(user)
    app.ok("owner", "PATCH", f"/projects/{app.project_id}", plan="team")
    with ExitStack() as stack:
        for user in users:
            assert stack.enter_context(app.live(user)).next() == READY
        time.sleep(3)  # their own records are cached then
        # In one of three periods: while Valkey answers late, each does ask.
        assert any(scans_of_sessions_within(app, 5) < len(users) for _ in range(3))


def scans_of_sessions_within(app: App, seconds: float) -> int:
    before = scans_of_sessions(app)
    time.sleep(seconds)
    return scans_of_sessions(app) - before


def scans_of_sessions(app: App) -> int:
    time.sleep(1.5)  # PostgreSQL counts a moment later
    with app.database("control") as database:
        query = "SELECT idx_scan + seq_scan FROM pg_stat_user_tables WHERE relname = 'accounts_session'"
        [found] = database.execute(query).fetchone() or ()
        return int(found)
