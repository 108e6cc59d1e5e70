"""Schema changes among others: readers, writers, a second change, a crash in the middle."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from django.conf import settings as django_settings
from django.db import DatabaseError, connections, transaction

from accounts import audit
from platform_site.background import long_tasks
from platform_site.concurrency.fair_semaphore import FairSemaphore
from platform_site.embedded import postgres as embedded_postgres
from platform_site.identity.callers import EnvironmentRef
from projects import services
from projects.directory.environments import environment_ref
from projects.models import Environment
from projects.provisioning import deletion as project_deletion
from rows import tasks
from rows.migrate import concurrent_indexes
from rows.migrate import service as schema_service
from rows.migrate import versions as schema_versions
from rows.migrate.service import TablesBusy, Unconfirmed, VersionConflict
from rows.models import CurrentVersion, SchemaVersion
from rows.query.tables import table_models
from rows.schema.model import InvalidDocument
from tests.projects.conftest import environment_of, make_project, schemas_in
from tests.projects.conftest import make_account as make_account
from tests.support import catalog
from tests.support.concurrency import in_thread, wait_until
from tests.support.schema_changes import document, execute, index_names, raw_connection, status
from tests.support.schema_changes import environment as environment
from tests.support.schema_changes import everything_is_large as everything_is_large
from tests.support.schema_changes import mortal as mortal
from tests.support.timing import within

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

REGION = catalog.REGION


def columns(environment: EnvironmentRef) -> set[str]:
    found = catalog.catalog(environment.environment_id)["columns"]
    return {row[1] for row in found if row[0] == "tasks"} - {"id", "created_at", "updated_at"}


# ── Others use the table ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_change_waits_for_a_long_reader_and_lets_short_ones_pass(environment: EnvironmentRef) -> None:
    waits: list[float] = []
    with raw_connection(environment) as holder, ThreadPoolExecutor(2) as pool:
        holder.execute("SELECT * FROM tasks").fetchall()  # keeps its lock until the transaction ends
        changing = pool.submit(
            in_thread, lambda: schema_service.change(environment, document("title", "b"), actor=audit.SYSTEM)
        )
        end = time.monotonic() + 1.5
        with raw_connection(environment) as reader:
            reader.autocommit = True
            while time.monotonic() < end:
                began = time.monotonic()
                reader.execute("SELECT count(*) FROM tasks").fetchall()
                waits.append(time.monotonic() - began)
        assert not changing.done()
        assert status(environment) == "migrating"
        assert columns(environment) == {"title"}
        holder.rollback()
        outcome = changing.result(20)
    assert outcome.version == 2
    assert columns(environment) == {"title", "b"}
    assert max(waits) < within(0.5), "a reader queued behind the change"
    assert len([wait for wait in waits if wait > 0.05]) >= 1, "the change never asked for its lock"
    assert status(environment) == "ready"


def test_a_change_that_never_wins_its_lock_gives_up_and_leaves_everything(
    environment: EnvironmentRef, settings: Any
) -> None:
    settings.SCHEMA_LOCK_ATTEMPTS = 3
    settings.SCHEMA_LOCK_TIMEOUT_MS = 50
    before = catalog.catalog(environment.environment_id)
    with raw_connection(environment) as holder:
        holder.execute("SELECT * FROM tasks")
        with pytest.raises(TablesBusy):
            schema_service.change(environment, document("title", "b"), actor=audit.SYSTEM)
    assert catalog.catalog(environment.environment_id) == before
    assert (schema_versions.current(environment).version, status(environment)) == (1, "ready")
    assert schema_service.change(environment, document("title", "b"), actor=audit.SYSTEM).version == 2


def test_plan_request_does_not_wait(environment: EnvironmentRef) -> None:
    with raw_connection(environment) as holder:
        holder.execute("LOCK TABLE tasks IN ACCESS EXCLUSIVE MODE")
        began = time.monotonic()
        outcome = schema_service.rehearse(environment, document("title", "b"))
    assert time.monotonic() - began < within(2)
    assert [operation.name for operation in outcome.operations] == ["add column tasks.b"]


def test_rules_change_without_any_lock_on_the_tables(environment: EnvironmentRef) -> None:
    with raw_connection(environment) as holder:
        holder.execute("LOCK TABLE tasks IN ACCESS EXCLUSIVE MODE")
        ruled = document("title", rules={"user": {"read": {}}})
        assert schema_service.change(environment, ruled, actor=audit.SYSTEM).version == 2


def test_a_mistake_that_is_stored_already_does_not_prevent_other_changes(environment: EnvironmentRef) -> None:
    def wanted(*names: str, compared: str = "title") -> dict[str, Any]:
        where = {"title": {"$eq": {"$column": compared}}}
        return document(*names, rules={"user": {"read": {"where": where}}})

    with pytest.raises(InvalidDocument):
        schema_service.change(environment, wanted("title"), actor=audit.SYSTEM)
    stored = {"document_text": json.dumps(wanted("title")), "source_digest": "", "author_kind": "key"}
    SchemaVersion.objects.using(REGION).create(environment_id=environment.environment_id, version=2, **stored)
    CurrentVersion.objects.using(REGION).update(version=2)
    assert schema_service.change(environment, wanted("title", "note"), actor=audit.SYSTEM).version == 3
    with pytest.raises(InvalidDocument):
        schema_service.change(environment, wanted("title", "note", compared="nme"), actor=audit.SYSTEM)


@pytest.mark.parametrize("named", [True, False])
def test_of_changes_at_the_same_time_one_wins(environment: EnvironmentRef, named: bool) -> None:
    barrier = threading.Barrier(6)

    def change(number: int) -> Any:
        def apply() -> Any:
            schema_versions.current(environment)
            barrier.wait(10)
            expected = 1 if named else None
            wanted = document("title", f"c{number}")
            return schema_service.change(environment, wanted, actor=audit.SYSTEM, expected=expected)

        return in_thread(apply)

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(change, range(6)))
    won = [result for result in results if not isinstance(result, Exception)]
    # Without a named version, one that began after another had ended sees its columns go, and must say so.
    assert all(isinstance(result, VersionConflict | Unconfirmed) for result in results if result not in won), results
    assert len(won) == 1
    assert SchemaVersion.objects.using(REGION).count() == 2
    assert schema_versions.current(environment).version == 2
    assert columns(environment) == {"title", won[0].operations[0].name.removeprefix("add column tasks.")}


def test_a_writer_in_the_middle_neither_loses_its_row_nor_the_change(environment: EnvironmentRef) -> None:
    stop = threading.Event()
    written: list[str] = []

    def write() -> None:
        with raw_connection(environment) as writer:
            writer.autocommit = True
            while not stop.is_set():
                row_id = f"w{len(written)}"
                writer.execute("INSERT INTO tasks (id, title) VALUES (%s, 'x')", [row_id])
                written.append(row_id)

    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write)]
        wait_until(lambda: len(written) > 20)
        for number in range(2, 6):
            columns_now = [f"c{n}" for n in range(number)]
            schema_service.change(environment, document("title", *columns_now), actor=audit.SYSTEM)
        stop.set()
        for writer in writers:
            writer.result(10)
    assert execute(environment, "SELECT count(*) FROM tasks") == [(3 + len(written),)]
    assert schema_versions.current(environment).version == 5


# ── Crashes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("failpoint", ["schema.between_steps", "schema.tables_changed", "schema.before_commit"])
def test_a_change_that_is_killed_in_the_middle_has_not_happened(
    environment: EnvironmentRef, mortal: Any, failpoint: str
) -> None:
    before = catalog.catalog(environment.environment_id)
    wanted = document("b", "c", indexes=[["b"]], unique=[["c"]])
    order = {"environment": environment.environment_id, "document": wanted, "confirm": ["drop column tasks.title"]}
    assert mortal(**order, failpoint=failpoint)["signal"] == 9
    assert status(environment) == "migrating"
    wait_until(lambda: _settled(environment))
    assert status(environment) == "ready"
    assert catalog.catalog(environment.environment_id) == before
    assert (schema_versions.current(environment).version, SchemaVersion.objects.using(REGION).count()) == (1, 1)
    assert execute(environment, "SELECT title FROM tasks ORDER BY id") == [("Task 1",), ("Task 2",), ("Task 3",)]
    assert mortal(**order, failpoint="") == {"signal": 0, "status": 0}
    assert columns(environment) == {"b", "c"}


def test_a_change_that_is_killed_after_its_commit_has_happened_whole(environment: EnvironmentRef, mortal: Any) -> None:
    order = {"environment": environment.environment_id, "document": document("title", "b"), "confirm": []}
    assert mortal(**order, failpoint="schema.after_commit")["signal"] == 9
    assert (columns(environment), schema_versions.current(environment).version, status(environment)) == (
        {"title", "b"},
        2,
        "migrating",
    )
    wait_until(lambda: _settled(environment))
    assert mortal(**order, failpoint="") == {"signal": 0, "status": 0}
    assert schema_versions.current(environment).version == 2


def _settled(environment: EnvironmentRef) -> bool:
    tasks.settle()
    return status(environment) == "ready"


def test_periodic_job_ignores_a_change_in_progress(environment: EnvironmentRef) -> None:
    Environment.objects.filter(pk=environment.environment_id).update(status="migrating")
    with raw_connection(environment) as other:
        other.execute(
            "SELECT FROM platform.rows_currentversion WHERE environment_id = %s FOR UPDATE",
            [environment.environment_id],
        )
        tasks.settle()
        assert status(environment) == "migrating"
    tasks.settle()
    assert status(environment) == "ready"


def test_a_backend_that_is_terminated_leaves_nothing_half_done(environment: EnvironmentRef) -> None:
    before = catalog.catalog(environment.environment_id)
    with raw_connection(environment) as holder, ThreadPoolExecutor(1) as pool:
        holder.execute("SELECT * FROM tasks")
        changing = pool.submit(
            in_thread, lambda: schema_service.change(environment, document("title", "b"), actor=audit.SYSTEM)
        )
        waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'LOCK TABLE%'"

        def terminate() -> bool:
            with connections[REGION].cursor() as cursor:
                cursor.execute(f"SELECT pg_terminate_backend(pid) FROM ({waiting}) w")
                return bool(cursor.fetchall())

        wait_until(terminate)
        assert isinstance(changing.result(10), Exception)
    assert catalog.catalog(environment.environment_id) == before
    assert (schema_versions.current(environment).version, status(environment)) == (1, "ready")


# ── Indexes of large tables ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("everything_is_large")
def test_index_of_a_large_table_is_built_after_the_change_during_writes(environment: EnvironmentRef) -> None:
    wanted = document("title", indexes=[["title", "-created_at"]])
    rehearsed = schema_service.rehearse(environment, wanted)
    assert rehearsed.operations[0].sql[0].startswith("CREATE INDEX CONCURRENTLY")
    outcome = schema_service.change(environment, wanted, actor=audit.SYSTEM)
    assert (outcome.version, outcome.indexes_due, outcome.operations) == (2, True, rehearsed.operations)
    (spec,) = schema_versions.current(environment).schema.tables["tasks"].indexes
    name = table_models.index_name("tasks", spec)
    assert name not in index_names(environment)
    assert schema_versions.current(environment).indexes_due
    with raw_connection(environment) as writer, ThreadPoolExecutor(1) as pool:
        writer.execute("INSERT INTO tasks (id, title) VALUES ('open', 'x')")
        making = pool.submit(in_thread, lambda: concurrent_indexes.make_due(environment))
        with raw_connection(environment) as another:
            wait_until(lambda: name in index_names(environment))
            another.execute("INSERT INTO tasks (id, title) VALUES ('meanwhile', 'x')")
        writer.commit()
        assert making.result(20) is True
    assert index_names(environment)[name] is True
    assert not schema_versions.current(environment).indexes_due
    catalog.make("t_fresh", schema_service.read(wanted))
    try:
        assert catalog.catalog(environment.environment_id) == catalog.catalog("t_fresh")
    finally:
        catalog.run("t_fresh", "DROP SCHEMA t_fresh CASCADE")


@pytest.mark.usefixtures("everything_is_large")
def test_periodic_job_builds_due_indexes_and_replaces_partial_ones(environment: EnvironmentRef) -> None:
    schema_service.change(environment, document("title", indexes=[["title"]]), actor=audit.SYSTEM)
    (spec,) = schema_versions.current(environment).schema.tables["tasks"].indexes
    name = table_models.index_name("tasks", spec)
    execute(environment, f'CREATE INDEX "{name}" ON tasks (title)')
    with superuser() as connection:  # as a build that was cut off leaves it
        connection.execute(
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = %s::regclass",
            [f'"{environment.environment_id}"."{name}"'],
        )
    assert index_names(environment)[name] is False
    tasks.settle()
    assert index_names(environment)[name] is True
    assert not CurrentVersion.objects.using(REGION).get(pk=environment.environment_id).indexes_due
    (definition,) = [row[2] for row in catalog.catalog(environment.environment_id)["indexes"] if row[1] == name]
    assert definition.endswith("(title, id)")


@pytest.mark.usefixtures("everything_is_large")
def test_an_environment_whose_indexes_cannot_be_made_holds_up_no_other(
    environment: EnvironmentRef, make_account: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [environment_ref(environment_of(make_project(make_account(name), name)).pk) for name in ("bob", "carol")]
    wanted = document("title", indexes=[["title"]])
    environments = [environment, *(other for other in others if other is not None)]
    for each in environments[1:]:
        schema_service.change(each, document("title"), actor=audit.SYSTEM)
    for each in environments:
        schema_service.change(each, wanted, actor=audit.SYSTEM)
    due = CurrentVersion.objects.using(REGION).filter(indexes_due=True)
    first, *_ = due.values_list("environment_id", flat=True)
    for each in environments:
        if each.environment_id == first:
            long = "SELECT 'long', string_agg(md5(n::text), '') FROM generate_series(1, 500) n"
            execute(each, f"INSERT INTO tasks (id, title) {long}")
    asked: list[str] = []

    def made(at: EnvironmentRef) -> bool:
        asked.append(at.environment_id)
        if len(asked) == 2:
            raise InvalidDocument([])  # as a document of a newer release is to an older worker
        return make_due(at)

    make_due = concurrent_indexes.make_due
    monkeypatch.setattr(concurrent_indexes, "make_due", made)
    monkeypatch.setattr(tasks, "_skipped_until", {})
    tasks.settle()
    assert len(asked) == 3
    assert due.count() == 2
    tasks.settle()
    assert list(due.values_list("environment_id", flat=True)) == [first]
    assert asked.count(first) == 1, "what cannot be made is not tried again by each periodic job"
    tasks.make_indexes(first)
    assert asked.count(first) == 2, "but when the schema changes"


@pytest.mark.usefixtures("everything_is_large")
def test_indexes_wait_for_a_slot_of_their_project(environment: EnvironmentRef, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_tasks, "slots", FairSemaphore(4, per_owner=1, slow_after=30))
    schema_service.change(environment, document("title", indexes=[["title"]]), actor=audit.SYSTEM)
    due = CurrentVersion.objects.using(REGION).filter(indexes_due=True)
    with long_tasks.slots.slot(environment.project_id, wait=0):
        tasks.make_indexes(environment.environment_id)
        assert due.exists()
    tasks.settle()
    assert not due.exists()


def superuser() -> psycopg.Connection[Any]:
    return embedded_postgres.connect(django_settings.LAYOUT, str(connections[REGION].settings_dict["NAME"]))


@pytest.mark.usefixtures("everything_is_large")
def test_an_index_that_is_due_follows_a_rename(environment: EnvironmentRef) -> None:
    schema_service.change(environment, document("title", indexes=[["title"]]), actor=audit.SYSTEM)
    renamed = {"tables": {"jobs": {
        "renamed_from": "tasks", "columns": {"name": {"type": "text", "null": True, "renamed_from": "title"}},
        "indexes": [["name"]],
    }}}  # fmt: skip
    schema_service.change(environment, renamed, actor=audit.SYSTEM)
    assert concurrent_indexes.make_due(environment)
    (spec,) = schema_versions.current(environment).schema.tables["jobs"].indexes
    assert index_names(environment)[table_models.index_name("jobs", spec)] is True


# ── The end ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_of_a_schema_is_left_when_its_environment_is_gone(environment: EnvironmentRef) -> None:
    services.delete_project(environment.project_id, actor=audit.SYSTEM)
    project_deletion.finish(environment.project_id)
    assert not CurrentVersion.objects.using(REGION).exists()
    assert not SchemaVersion.objects.using(REGION).exists()
    assert schemas_in(REGION) == []


@pytest.mark.exhaustive
def test_a_version_is_immutable_for_everyone(environment: EnvironmentRef) -> None:
    with pytest.raises(DatabaseError), transaction.atomic(using=REGION):
        SchemaVersion.objects.using(REGION).update(author_kind="nobody")
    assert SchemaVersion.objects.using(REGION).get().author_kind == "system"
