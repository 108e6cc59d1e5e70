"""Uniques of large tables: made before the change, while rows are read and written, and never left behind."""

import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import connections, transaction

from accounts import audit
from platform_site.identity.callers import EnvironmentRef
from projects.directory.environments import environment_ref
from rows import tasks
from rows.migrate import concurrent_unique_indexes, existing_rows
from rows.migrate import service as schema_service
from rows.migrate import versions as schema_versions
from rows.migrate.apply import StatementTimeout
from rows.migrate.planning import planner
from rows.migrate.service import TablesBusy, Unconfirmed, VersionConflict
from rows.query.tables import table_models
from rows.schema.model import InvalidDocument, Table
from rows.transfer import import_report, importer
from tests.projects.conftest import make_account as make_account
from tests.rows.conftest import Tracker
from tests.support import catalog
from tests.support.catalog import REGION, schema
from tests.support.concurrency import in_thread, wait_until
from tests.support.schema_changes import document, execute, index_names, raw_connection, status
from tests.support.schema_changes import environment as environment
from tests.support.schema_changes import everything_is_large as everything_is_large
from tests.support.schema_changes import mortal as mortal

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

UNIQUE = document("title", unique=[["title"]])
NAME = table_models.unique_name("tasks", ("title",))
large = pytest.mark.usefixtures("everything_is_large")


def apply(environment: EnvironmentRef, wanted: dict[str, Any] = UNIQUE, **how: Any) -> schema_service.Outcome:
    return schema_service.change(environment, wanted, actor=audit.SYSTEM, **how)


def new(environment: EnvironmentRef) -> list[bool]:
    """Whether each index that is made beforehand, or was left over, is whole."""
    return [valid for name, valid in index_names(environment).items() if name.startswith("_nu_")]


def assert_as_fresh(environment: EnvironmentRef, wanted: dict[str, Any]) -> None:
    catalog.make("t_fresh", schema_service.read(wanted))
    try:
        assert catalog.catalog(environment.environment_id) == catalog.catalog("t_fresh")
    finally:
        catalog.run("t_fresh", "DROP SCHEMA t_fresh CASCADE")


@contextmanager
def held_up(environment: EnvironmentRef, how: str) -> Generator[psycopg.Connection[Any]]:
    """A transaction for which the creation of an index waits: one that `wrote` to the table, before the first
    look at it; one that `looked` at anything, after the second, when writers are held to the unique already. It ends
    with the block, or when it is rolled back or committed."""
    with raw_connection(environment) as connection:
        if how == "wrote":
            connection.execute("INSERT INTO tasks (id, title) VALUES ('open', 'x')")
        else:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.execute("SELECT 1")
        yield connection
        connection.rollback()


@contextmanager
def in_the_middle(
    environment: EnvironmentRef, how: str, act: Callable[[], Any] | None = None
) -> Generator[Future[Any]]:
    """The change runs, and waits with its index begun. The block may inspect it; afterwards it continues."""
    with ThreadPoolExecutor(1) as pool:
        with held_up(environment, how):
            changing = pool.submit(in_thread, act or (lambda: apply(environment)))
            wait_until(lambda: _is_waiting(how))
            yield changing
        changing.result(30)


def _is_waiting(how: str) -> bool:
    phase = {"wrote": "waiting for writers before build", "looked": "waiting for old snapshots"}[how]
    with connections[REGION].cursor() as cursor:
        cursor.execute("SELECT phase FROM pg_stat_progress_create_index")
        return (phase,) in cursor.fetchall()


# ── It becomes a unique ─────────────────────────────────────────────────────────────────────────────────────────────


@large
def test_it_is_made_before_the_change_and_is_what_a_fresh_schema_has(environment: EnvironmentRef) -> None:
    rehearsed = schema_service.rehearse(environment, UNIQUE)
    [operation] = rehearsed.operations
    assert operation.name == "add unique tasks (title)"
    first, second = operation.sql
    assert first.startswith("CREATE UNIQUE INDEX CONCURRENTLY")
    assert second.startswith("ALTER TABLE") and "UNIQUE USING INDEX" in second  # noqa: PT018
    with in_the_middle(environment, "wrote") as changing:
        assert (schema_versions.current(environment).version, status(environment)) == (1, "migrating")
        assert new(environment) == [False]
        assert NAME not in index_names(environment)
        tasks.settle()
        assert status(environment) == "migrating", "a session is working on it"
        concurrent_unique_indexes.clear_all(REGION)
        assert new(environment) == [False], "what is being made is not removed"
        with raw_connection(environment) as another:
            another.execute("SET lock_timeout = '200ms'")
            another.execute("INSERT INTO tasks (id, title) VALUES ('meanwhile', 'y')")
            assert another.execute("SELECT count(*) FROM tasks").fetchone() == (4,)
    outcome = changing.result()
    assert (outcome.version, outcome.operations) == (2, rehearsed.operations)
    assert (index_names(environment)[NAME], status(environment)) == (True, "ready")
    assert_as_fresh(environment, UNIQUE)
    with raw_connection(environment) as writer, pytest.raises(psycopg.errors.UniqueViolation) as refused:
        writer.execute("INSERT INTO tasks (id, title) VALUES ('again', 'Task 1')")
    assert refused.value.diag.constraint_name == NAME


@pytest.mark.exhaustive
def test_readers_and_writers_go_on_while_it_is_made_of_many_rows(environment: EnvironmentRef) -> None:
    execute(
        environment,
        "INSERT INTO tasks (id, title) SELECT 'n' || n, sha512(n::text::bytea)::text FROM generate_series(1, 250000) n",
    )
    execute(environment, "ANALYZE tasks")
    stop = threading.Event()
    written: list[str] = []
    read: list[int] = []

    def keep_on(act: Callable[[psycopg.Connection[Any]], None]) -> None:
        with raw_connection(environment) as connection:
            connection.autocommit = True
            connection.execute("SET lock_timeout = '200ms'")  # who waits for longer fails the test
            while not stop.is_set():
                act(connection)

    def write(connection: psycopg.Connection[Any]) -> None:
        row_id = f"w{len(written)}"
        connection.execute("INSERT INTO tasks (id, title) VALUES (%s, %s)", [row_id, row_id])
        connection.execute("UPDATE tasks SET title = title || '!' WHERE id = %s", [row_id])
        written.append(row_id)

    def look(connection: psycopg.Connection[Any]) -> None:
        read.extend(connection.execute("SELECT count(*) FROM tasks WHERE id < 'n2'").fetchone() or ())

    with ThreadPoolExecutor(2) as pool:
        others = [pool.submit(keep_on, act) for act in (write, look)]
        try:
            wait_until(lambda: len(written) > 5 and len(read) > 1)
            before = len(written), len(read)
            assert apply(environment).version == 2
            assert len(written) > before[0] + 5
            assert len(read) > before[1]
        finally:
            stop.set()
        for other in others:
            other.result(10)
    assert execute(environment, "SELECT count(*) FROM tasks WHERE id >= 'w'") == [(len(written),)]
    assert_as_fresh(environment, UNIQUE)


@large
def test_several_at_once_with_nulls_and_everything_renamed(environment: EnvironmentRef) -> None:
    first = document("title", "note", "extra")
    apply(environment, first)
    execute(environment, "INSERT INTO tasks (id, title, note) VALUES ('n1', NULL, 'a'), ('n2', NULL, 'a')")
    text = {"type": "text", "null": True}
    renamed = {"tables": {"jobs": {
        "renamed_from": "tasks",
        "columns": {
            "name": {**text, "renamed_from": "title"}, "title": {**text, "renamed_from": "note"}, "extra": text,
        },
        "unique": [["name"], ["title", "name"], ["extra"]],
    }}}  # fmt: skip
    told: list[str] = []
    outcome = apply(environment, renamed, progress=told.append)
    assert told == ["add unique jobs (name)", "add unique jobs (title, name)", "add unique jobs (extra)"]
    assert [operation.name for operation in outcome.operations if operation.name.startswith("add")] == told
    assert execute(environment, "SELECT count(*), count(name), count(title) FROM jobs") == [(5, 3, 2)]
    assert_as_fresh(environment, schema_versions.current(environment).schema.document)  # type: ignore[arg-type]
    assert apply(environment, schema_versions.document_to_revert_to(environment, 2), reverts_to=2).version == 4
    assert_as_fresh(environment, first)


@large
def test_dropped_again_it_is_gone_and_can_come_back(environment: EnvironmentRef) -> None:
    apply(environment)
    apply(environment, document("title"))
    execute(environment, "INSERT INTO tasks (id, title) VALUES ('again', 'Task 1')")
    assert_as_fresh(environment, document("title"))
    with pytest.raises(InvalidDocument):
        apply(environment)
    execute(environment, "DELETE FROM tasks WHERE id = 'again'")
    assert apply(environment, schema_versions.document_to_revert_to(environment, 2), reverts_to=2).version == 4
    assert_as_fresh(environment, UNIQUE)


def test_a_table_that_is_not_large_is_changed_at_once(environment: EnvironmentRef) -> None:
    told: list[str] = []
    outcome = apply(environment, progress=told.append)
    assert (told, outcome.version) == ([], 2)
    assert not any("CONCURRENTLY" in text for operation in outcome.operations for text in operation.sql)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"type": "integer", "null": True}),
        ({"x": {"type": "text"}}, {"type": "text", "max_length": 5}),
        ({"x": {"type": "text"}}, {"type": "integer"}),
        ({"x": {"type": "text", "null": True}}, {"type": "text", "backfill": "?"}),
        ({"x": {"type": "text", "null": True}}, {"type": "text", "default": "?"}),
    ],
)
def test_column_computed_by_the_change_is_not_indexed_beforehand(before: dict[str, Any], after: dict[str, Any]) -> None:
    old = schema(a={"columns": {**before, "y": "text"}})
    assert planner.plan(old, schema(a={"columns": {"x": after, "y": "text"}, "unique": [["x", "y"]]})).new_uniques == ()
    [found] = planner.plan(
        old, schema(a={"columns": {**before, "y": "text"}, "unique": [["y", "created_at"]]})
    ).new_uniques
    assert (found.table, found.columns) == ("a", ("y", "created_at"))


# ── It does not ─────────────────────────────────────────────────────────────────────────────────────────────────────


@large
@pytest.mark.parametrize(("when", "rows"), [("before", "(2): t1 and t2"), ("meanwhile", "(3): open and t2")])
def test_duplicate_rows_are_refused_by_column_and_leave_no_index(
    environment: EnvironmentRef, when: str, rows: str
) -> None:
    apply(environment, document("title", "note"))
    wanted = document("title", "note", unique=[["note"], ["title", "note"]])
    execute(environment, "UPDATE tasks SET title = 'secret', note = id")
    before = catalog.catalog(environment.environment_id)
    double = "UPDATE tasks SET note = 'n' WHERE id <> 't3'"
    if when == "before":
        execute(environment, double)
        found = in_thread(lambda: apply(environment, wanted))
    else:
        with ThreadPoolExecutor(1) as pool, held_up(environment, "wrote") as writer:
            changing = pool.submit(in_thread, lambda: apply(environment, wanted))
            wait_until(lambda: _is_waiting("wrote"))
            writer.execute(double)
            writer.commit()
            found = changing.result(30)
    assert isinstance(found, InvalidDocument), found
    assert [(error.field, error.code, error.message) for error in found.errors] == [
        ("tables.tasks.unique", "conflict", f"existing rows are not unique in note {rows}")
    ]
    assert catalog.catalog(environment.environment_id) == before
    assert (schema_versions.current(environment).version, status(environment)) == (2, "ready")
    execute(environment, "INSERT INTO tasks (id, note) VALUES ('another', 'n')")


@large
def test_the_second_of_two_that_does_not_fit_takes_the_first_away_too(environment: EnvironmentRef) -> None:
    apply(environment, document("title", "note"))
    execute(environment, "UPDATE tasks SET note = 'n'")
    with pytest.raises(InvalidDocument) as refused:
        apply(environment, document("title", "note", unique=[["title"], ["note"]]))
    assert [error.message for error in refused.value.errors] == ["existing rows are not unique in note (3): t1 and t3"]
    assert new(environment) == []


def test_duplicates_that_take_too_long_to_find_are_left_to_the_index(
    environment: EnvironmentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(environment, "UPDATE tasks SET title = 'same'")
    monkeypatch.setattr(existing_rows, "duplicates", lambda cursor, unique: cursor.execute("SELECT pg_sleep(5)"))
    monkeypatch.setattr(existing_rows, "DUPLICATES_MS", 50)
    [planned] = schema_service.rehearse(environment, UNIQUE).operations
    assert planned.name == "add unique tasks (title)"
    with pytest.raises(InvalidDocument) as refused:
        apply(environment)
    assert [error.message for error in refused.value.errors] == ["existing rows are not unique in title"]


@large
def test_one_that_takes_too_long_is_given_up_unless_nobody_hurries(environment: EnvironmentRef, settings: Any) -> None:
    settings.SCHEMA_STATEMENT_TIMEOUT_MS = 300
    with held_up(environment, "looked"), pytest.raises(StatementTimeout) as refused:
        apply(environment)
    assert refused.value.step == "add unique tasks (title)"
    assert (new(environment), schema_versions.current(environment).version, status(environment)) == ([], 1, "ready")
    with in_the_middle(environment, "looked", lambda: apply(environment, no_time_limit=True)) as changing:
        time.sleep(0.5)
    assert changing.result().version == 2


@large
def test_who_holds_the_schema_still_is_asked_first(environment: EnvironmentRef, settings: Any) -> None:
    settings.SCHEMA_LOCK_ATTEMPTS = 2
    told: list[str] = []
    with raw_connection(environment) as copy:
        copy.execute("SELECT FROM platform.rows_currentversion FOR SHARE")
        with pytest.raises(TablesBusy):
            apply(environment, progress=told.append)
    assert told == []


@large
def test_change_without_lock_leaves_its_index_to_the_periodic_job(
    environment: EnvironmentRef, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SCHEMA_LOCK_ATTEMPTS = 2
    monkeypatch.setattr(concurrent_unique_indexes, "_CLEARING_MS", 100)
    with raw_connection(environment) as reader:
        reader.execute("SELECT * FROM tasks")  # which the making of an index does not wait for
        with pytest.raises(TablesBusy):
            apply(environment)
        tasks.clear_new_uniques(REGION)
        assert len(new(environment)) == 1, "it cannot be removed yet"
    tasks.clear_new_uniques(REGION)
    assert new(environment) == []
    assert apply(environment).version == 2


@large
def test_a_connection_that_is_ended_in_the_middle_leaves_nothing(environment: EnvironmentRef) -> None:
    with in_the_middle(environment, "looked") as changing:
        execute(environment, "SELECT pg_terminate_backend(pid) FROM pg_stat_progress_create_index")
        wait_until(changing.done)
    assert isinstance(changing.result(), Exception)
    assert (new(environment), schema_versions.current(environment).version, status(environment)) == ([], 1, "ready")


# ── Crashes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def kill(mortal: Any, environment: EnvironmentRef, **how: Any) -> int:
    """The signal that ends the process of a change to UNIQUE."""
    order = {
        "environment": environment.environment_id,
        "document": UNIQUE,
        "confirm": [],
        "large": 0,
        "failpoint": "",
        **how,
    }
    signal: int = mortal(**order)["signal"]
    return signal


@pytest.mark.parametrize("after", ["the sweep", "the same change", "another change of the table"])
def test_change_killed_after_its_index_leaves_nothing_for_long(
    environment: EnvironmentRef, mortal: Any, settings: Any, after: str
) -> None:
    settings.SCHEMA_LARGE_TABLE_ROWS = 0
    assert kill(mortal, environment, failpoint="schema.uniques_made") == 9
    assert new(environment) == [True]
    wait_until(lambda: _is_free(environment))
    if after == "the sweep":
        tasks.clear_new_uniques(REGION)
        assert_as_fresh(environment, document("title"))
    elif after == "the same change":
        apply(environment)
        assert_as_fresh(environment, UNIQUE)
    else:
        apply(environment, document("title", "b"))
        assert_as_fresh(environment, document("title", "b"))


def test_change_killed_in_its_transaction_leaves_index_to_periodic_job(
    environment: EnvironmentRef, mortal: Any
) -> None:
    assert kill(mortal, environment, failpoint="schema.before_commit") == 9
    assert (new(environment), schema_versions.current(environment).version) == ([True], 1)
    wait_until(lambda: _is_free(environment))
    tasks.clear_new_uniques(REGION)
    assert_as_fresh(environment, document("title"))


def test_the_server_lets_go_of_an_index_whose_maker_was_killed(environment: EnvironmentRef, mortal: Any) -> None:
    with held_up(environment, "looked"):
        assert kill(mortal, environment, alarm=2) == 14
        assert new(environment) == [False]
        wait_until(lambda: not _is_waiting("looked"))
        wait_until(lambda: _is_free(environment))
        tasks.clear_new_uniques(REGION)
        assert_as_fresh(environment, document("title"))


def _is_free(environment: EnvironmentRef) -> bool:
    with transaction.atomic(using=REGION):
        return not concurrent_unique_indexes.is_building(REGION, environment.environment_id)


class OneRecord:
    """A file of one line."""

    def __init__(self, record: dict[str, Any]) -> None:
        self.record = record

    def records(self, table: Table) -> Iterator[tuple[int, dict[str, Any]]]:
        yield 1, self.record


# ── Others ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@large
def test_of_two_at_the_same_time_one_wins_and_nothing_of_the_other_is_left(environment: EnvironmentRef) -> None:
    apply(environment, document("title", "note"))
    barrier = threading.Barrier(3)

    def change(columns: list[str]) -> Any:
        def act() -> Any:
            schema_versions.current(environment)
            barrier.wait(10)
            return apply(environment, document("title", "note", unique=[columns]), expected=2)

        return in_thread(act)

    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(change, [["title"], ["title", "note"], ["title"]]))
    won = [result for result in results if isinstance(result, schema_service.Outcome)]
    assert len(won) == 1, results
    assert all(isinstance(result, VersionConflict | Unconfirmed) for result in results if result not in won), results
    assert_as_fresh(environment, schema_versions.current(environment).schema.document)  # type: ignore[arg-type]


@large
def test_a_quick_change_is_not_held_up_and_wins(environment: EnvironmentRef) -> None:
    ruled = document("title", rules={"user": {"read": {}}})
    with in_the_middle(environment, "looked") as changing:
        assert apply(environment, ruled).version == 2
    assert isinstance(changing.result(), VersionConflict)
    assert_as_fresh(environment, ruled)


@large
def test_a_transaction_around_the_change_may_be_idle_meanwhile(environment: EnvironmentRef) -> None:
    def act() -> schema_service.Outcome:
        with transaction.atomic(using=REGION):
            with connections[REGION].cursor() as cursor:
                cursor.execute("SET LOCAL idle_in_transaction_session_timeout = '300ms'")
                outcome = apply(environment)
                cursor.execute("SHOW idle_in_transaction_session_timeout")
                assert cursor.fetchone() == ("300ms",)
        return outcome

    with in_the_middle(environment, "looked", act) as changing:
        time.sleep(0.6)
    assert changing.result().version == 2
    assert_as_fresh(environment, UNIQUE)


@large
def test_who_writes_what_it_will_not_allow_is_asked_to_try_again(make_tracker: Any) -> None:
    table = {"columns": {"title": {"type": "text"}}, "rules": {"user": {"read": {}, "insert": {}}}}
    tracker: Tracker = make_tracker({"tables": {"tasks": table}})
    environment = environment_ref(tracker.environment_id)
    assert environment is not None
    assert tracker.post("alice", "/rows/tasks", {"title": "a"}).status == 201
    wanted = {"tables": {"tasks": {**table, "unique": [["title"]]}}}
    with in_the_middle(environment, "looked", lambda: tracker.apply(wanted)) as changing:
        refused = tracker.post("alice", "/rows/tasks", {"title": "a"})
        assert (refused.status, refused.json["error"]["code"]) == (503, "unavailable")
        assert refused.headers["Retry-After"] == "1"
        assert "a unique" not in str(refused.json)
        assert tracker.post("alice", "/rows/tasks", {"title": "b"}).status == 201
        with pytest.raises(import_report.ChangedDuringImport):
            importer.import_rows(environment, "tasks", OneRecord({"title": "a"}))
        assert schema_versions.current(environment).version == 1
    assert changing.result().json["version"] == 2
    refused = tracker.post("alice", "/rows/tasks", {"title": "a"})
    assert (refused.status, refused.fields) == (422, {"title": "taken"})


@pytest.mark.exhaustive
@large
def test_the_command_waits_as_long_as_it_takes_and_says_for_what(
    environment: EnvironmentRef, tmp_path: Any, capsys: pytest.CaptureFixture[str], settings: Any
) -> None:
    settings.SCHEMA_STATEMENT_TIMEOUT_MS = 300
    file = tmp_path / "schema.json"
    file.write_text(
        '{"tables": {"tasks": {"columns": {"title": {"type": "text", "null": true}}, "unique": [["title"]]}}}'
    )
    with in_the_middle(
        environment, "looked", lambda: call_command("schema", "apply", environment.environment_id, str(file))
    ) as done:
        time.sleep(0.5)
    assert done.result() is None
    said = capsys.readouterr().err
    assert "Making the index of a large table, while rows are served: add unique tasks (title)" in said
    assert "Version 2 is applied" in said
