"""Environments beside each other, and rows while connections die and statements are cancelled (T9, F9 to F11, F13)."""

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import DatabaseError, connections, transaction
from psycopg import sql

from platform_site.postgres import prepared, row_access, sqlstates
from rows.query import context
from tests.rows.conftest import Tracker
from tests.support.service import wait_for
from tests.support.tenants import KEY, REGION, Tenant

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

NOTES: dict[str, Any] = {"columns": {"body": {"type": "text"}, "count": {"type": "integer", "default": 0}}}


@pytest.fixture
def pair() -> Iterator[tuple[Tenant, Tenant]]:
    """Two environments with a table of the same name."""
    made = Tenant({"tables": {"notes": NOTES}}), Tenant({"tables": {"notes": NOTES}})
    yield made
    connections[REGION].close()
    with connections[REGION].cursor() as cursor:
        for tenant in made:
            cursor.execute(f'DROP SCHEMA "{tenant.environment.environment_id}" CASCADE')


def cancelled() -> None:
    """A statement on this thread's connection that runs into its time limit."""
    with connections[REGION].cursor() as cursor:
        cursor.execute("SELECT set_config('statement_timeout', '5', false)")
    with pytest.raises(DatabaseError) as caught:
        prepared.run(REGION, b"SELECT pg_sleep(1)", [])
    assert sqlstates.sqlstate(caught.value) == "57014"
    while True:  # the time limit is this statement's, too
        try:
            with connections[REGION].cursor() as cursor:
                cursor.execute("RESET statement_timeout")
            return
        except DatabaseError as error:
            if sqlstates.sqlstate(error) != "57014":
                raise


@pytest.mark.exhaustive
def test_interleaved_requests_never_see_the_other_environment(pair: tuple[Tenant, Tenant]) -> None:
    """2,000 requests over 4 threads and connections, prepared statements and cancelled ones among them."""
    for number, tenant in enumerate(pair):
        for _ in range(5):
            tenant.put("notes", body=f"of {number}")

    def client(seed: int) -> int:
        chance = random.Random(seed)
        asked = 0
        try:
            for _ in range(500):
                number = chance.randrange(2)
                tenant = pair[number]
                match chance.randrange(10):
                    case 0:
                        tenant.put("notes", body=f"of {number}")
                    case 1:
                        cancelled()
                    case 2:
                        context._statements.clear()
                    case _:
                        rows = tenant.rows(KEY, "notes", order="body", limit=100, count="exact")
                        assert {row["body"] for row in rows} == {f"of {number}"}
                        note = tenant.update(KEY, "notes", rows[0]["id"], count=seed)
                        assert note["body"] == f"of {number}"
                asked += 1
            assert prepared.run(REGION, b"SHOW search_path", []) == [(b"platform",)]
            assert prepared.run(REGION, b"SHOW statement_timeout", []) == [(b"5s",)]
        finally:
            connections.close_all()
        return asked

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(client, range(4))) == 2_000


@pytest.mark.exhaustive
def test_reads_go_on_while_connections_are_terminated(make_tracker: Any) -> None:
    """A read that was hit is answered by another connection, a write that was hit says 503 once."""
    tracker: Tracker = make_tracker({"tables": {"notes": NOTES}})
    note = tracker.post("key", "/rows/notes", {"body": "x"}).json["id"]
    stop = threading.Event()
    statuses: dict[str, list[int]] = {"GET": [], "PATCH": []}

    def client(method: str) -> int:
        done = 0
        try:
            while not stop.is_set():
                if method == "GET":
                    status = tracker.get("key", f"/rows/notes/{note}").status
                else:
                    status = tracker.patch("key", f"/rows/notes/{note}", {"count": done}).status
                statuses[method].append(status)
                done += 1
        finally:
            connections.close_all()
        return done

    kills = 0
    with ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(client, method) for method in ("GET", "GET", "PATCH", "PATCH")]
        try:
            ends = time.monotonic() + 3
            while time.monotonic() < ends:
                with connections[REGION].cursor() as cursor:
                    cursor.execute(
                        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                        " WHERE pid <> pg_backend_pid() AND datname = current_database() AND usename = current_user"
                    )
                    kills += cursor.fetchone()[0]
                stop.wait(0.3)
        finally:
            stop.set()
        assert all(one.result(30) > 10 for one in clients)
    assert kills > 4
    for method, found in statuses.items():
        assert set(found) <= {200, 503}, (method, set(found))
        assert found.count(503) <= kills
    assert tracker.get("key", f"/rows/notes/{note}").status == 200
    assert tracker.patch("key", f"/rows/notes/{note}", {"count": 1}).status == 200


def test_runaway_filter_is_cancelled_with_a_hint_and_next_request_works(make_tracker: Any) -> None:
    """With a shorter limit than production's."""
    tracker: Tracker = make_tracker({"tables": {"notes": NOTES}})
    with row_access.row_access(), connections[REGION].cursor() as cursor:
        cursor.execute(
            f'INSERT INTO "{tracker.environment_id}".notes (id, body)'
            " SELECT 'n' || n, repeat('ab', 500) FROM generate_series(1, 40000) n"
        )
        cursor.execute("SELECT set_config('statement_timeout', '10', false)")
    bomb = {"body": {"$like": "%" + "a%b%" * 60 + "c"}}
    answer = tracker.post("key", "/rows/notes/query", {"where": bomb})
    assert (answer.status, answer.error) == (503, "unavailable")
    assert "Narrow" in answer.json["error"]["message"]
    with connections[REGION].cursor() as cursor:  # the same connection, with time enough on a busy machine
        cursor.execute("SELECT set_config('statement_timeout', '5000', false)")
    assert tracker.get("key", "/rows/notes?limit=1").status == 200
    connections[REGION].close()


@pytest.mark.parametrize(
    ("path", "body"), [("query", {"where": None}), ("aggregate", {"group": ["body"], "having": None})]
)
def test_conditions_of_one_row_end_at_the_timeout(
    make_tracker: Any, settings: Any, path: str, body: dict[str, Any]
) -> None:
    """PostgreSQL looks at the timeout between rows and subqueries only. One condition takes about 0.1 s here."""
    tracker: Tracker = make_tracker({"tables": {"notes": NOTES}})
    assert tracker.post("key", "/rows/notes", {"body": "a" * 50_000}).status == 201

    def seconds(count: int) -> tuple[int, float]:
        conditions: Any = [{"body": {"$like": "%" + "a" * (400 + number) + "b%"}} for number in range(count)]
        filled = {name: {"$or": conditions} if value is None else value for name, value in body.items()}
        began = time.monotonic()
        return tracker.post("key", f"/rows/notes/{path}", filled).status, time.monotonic() - began

    assert seconds(1)[0] == 200
    one = min(seconds(1)[1] for _ in range(3))
    with connections[REGION].cursor() as cursor:
        cursor.execute("SELECT set_config('statement_timeout', '20', false)")
    settings.AGGREGATE_STATEMENT_TIMEOUT_MS = 20
    status, most = seconds(90)
    connections[REGION].close()
    assert status == 503
    assert most < 45 * one


def test_a_locked_table_makes_a_fast_503_and_then_rows_again(make_tracker: Any) -> None:
    """With a shorter limit than production's."""
    tracker: Tracker = make_tracker({"tables": {"notes": NOTES}})
    note = tracker.post("key", "/rows/notes", {"body": "x"}).json["id"]
    locked, over = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with transaction.atomic(using=REGION), row_access.row_access(), connections[REGION].cursor() as cursor:
                cursor.execute(sql.SQL("LOCK TABLE {}").format(sql.Identifier(tracker.environment_id, "notes")))
                locked.set()
                assert over.wait(60)
        finally:
            locked.set()
            connections.close_all()

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert locked.wait(30)
        with connections[REGION].cursor() as cursor:
            cursor.execute("SELECT set_config('lock_timeout', '50', false)")
        for answer in (
            tracker.get("key", f"/rows/notes/{note}"),
            tracker.get("key", "/rows/notes"),
            tracker.patch("key", f"/rows/notes/{note}", {"count": 1}),
            tracker.post("key", "/rows/notes", {"body": "y"}),
            tracker.delete("key", f"/rows/notes/{note}"),
        ):
            assert (answer.status, answer.error) == (503, "unavailable")
    finally:
        over.set()
        holder.join(30)
    assert tracker.get("key", "/rows/notes?count=exact").json["count"] == 1
    assert tracker.get("key", f"/rows/notes/{note}").json["count"] == 0
    connections[REGION].close()


@pytest.mark.parametrize("alias", ["default", REGION])
def test_an_idle_transaction_loses_its_locks_and_then_its_connection(alias: str) -> None:
    """Every connection has the limit; here it is reached sooner."""
    with connections[alias].cursor() as cursor:
        cursor.execute("SHOW idle_in_transaction_session_timeout")
        assert cursor.fetchone() == ("2min",), "as the test run has set it"

    @transaction.atomic(using=alias)
    def stop_talking() -> None:
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT set_config('idle_in_transaction_session_timeout', '100', false)")
            cursor.execute("SELECT pg_advisory_xact_lock(4711), pg_backend_pid()")
            mine.append(cursor.fetchone()[1])
        freed.append(wait_for("the lock is free", free, 30))
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT 1")

    def free() -> bool:
        """Asked on a connection of its own."""
        found = []

        def ask() -> None:
            with connections[alias].cursor() as cursor:
                cursor.execute("SELECT pg_try_advisory_xact_lock(4711)")
                found.append(cursor.fetchone()[0])
            connections.close_all()

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join(30)
        return found == [True]

    mine: list[int] = []
    freed: list[bool] = []
    assert free()
    with pytest.raises(DatabaseError) as caught:
        stop_talking()
    assert freed == [True]
    assert sqlstates.error_for(caught.value).status == 503
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        assert cursor.fetchone()[0] != mine[0]
