"""The locks and the time that a rehearsed change of the schema names, against what PostgreSQL does."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections, transaction

from accounts import audit
from platform_site.identity.callers import EnvironmentRef
from platform_site.postgres.row_access import row_access
from projects.directory.environments import environment_ref
from projects.provisioning import schemas as provisioning_schemas
from rows.migrate import lock_estimates
from rows.migrate import service as schema_service
from rows.migrate.lock_estimates import TableLock
from tests.projects.conftest import environment_of, make_project, schemas_in
from tests.projects.conftest import make_account as make_account
from tests.support import catalog

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

NAME = {"name": {"type": "text"}}
NOTES = {
    "title": {"type": "text", "max_length": 20},
    "count": {"type": "integer"},
    "memo": {"type": "text", "null": True},
}
OLD = {"tables": {"lists": {"columns": NAME}, "notes": {"columns": NOTES}}}
ROWS = 20_000


@pytest.fixture
def environment(make_account: Any) -> Iterator[EnvironmentRef]:
    found = environment_ref(environment_of(make_project(make_account("alice"))).pk)
    assert found is not None
    schema_service.change(found, OLD, actor=audit.SYSTEM)
    with row_access(), connections[found.cluster].cursor() as cursor:
        cursor.execute(
            f"""INSERT INTO "{found.environment_id}".notes (id, title, "count", memo)
                SELECT 'n' || n, 'title', n, 'memo' FROM generate_series(1, {ROWS}) n"""
        )
        # Else the inserted rows may be added to those that ANALYZE counts.
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute(f'ANALYZE "{found.environment_id}".notes')
    yield found
    for environment_id in schemas_in(catalog.REGION):
        provisioning_schemas.drop_schema(environment_id, catalog.REGION)


def changed(**columns: Any) -> dict[str, Any]:
    return {"tables": {**OLD["tables"], "notes": {"columns": {**NOTES, **columns}}}}


def with_notes(**facts: Any) -> dict[str, Any]:
    return {"tables": {**OLD["tables"], "notes": {"columns": NOTES, **facts}}}


def locks_of(environment: EnvironmentRef, document: Any) -> dict[str, TableLock]:
    return {lock.table: lock for lock in schema_service.rehearse(environment, document).locks}


CHANGES = [
    (changed(done={"type": "boolean", "default": False}), ()),
    (changed(title={"type": "text", "max_length": 40}), ()),
    (changed(title={"type": "text"}), ()),
    (changed(title={"type": "text", "max_length": 5}), ("rewrite",)),
    (changed(count={"type": "decimal", "precision": 10, "scale": 2}), ("rewrite", "scan")),
    (changed(memo={"type": "text", "backfill": "x"}), ("rewrite", "scan")),
    (with_notes(indexes=[["count"]]), ("index",)),
    (with_notes(unique=[["count"]]), ("index",)),
    (with_notes(checks={"positive": {"count": {"$gt": 0}}}), ("scan",)),
]


@pytest.mark.parametrize(("document", "work"), CHANGES)
def test_the_kind_of_work(environment: EnvironmentRef, document: Any, work: tuple[str, ...]) -> None:
    lock = locks_of(environment, document)["notes"]
    assert lock.work == work
    assert ROWS * 0.9 < lock.rows < ROWS * 1.1
    assert lock.bytes > 100_000
    assert (lock.estimated_ms > 0) == bool(work)


@pytest.mark.parametrize(
    "document",
    [
        *(document for document, _ in CHANGES),
        changed(list={"type": "reference", "to": "lists", "null": True}),
        {"tables": {**OLD["tables"], "extra": {"columns": NAME}}},
        {"tables": {"lists": {"columns": NAME}, "cards": {"columns": NOTES, "renamed_from": "notes"}}},
    ],
)
def test_the_modes_are_those_that_postgresql_holds(environment: EnvironmentRef, document: Any) -> None:
    named = {
        name: lock.mode.title().replace(" ", "") + "Lock" for name, lock in locks_of(environment, document).items()
    }
    strong = {"AccessExclusiveLock", "ShareRowExclusiveLock", "ShareLock", "ExclusiveLock"}
    using = environment.cluster
    with schema_service.prepared(environment, document, actor=audit.SYSTEM) as change, transaction.atomic(using=using):
        with connections[using].cursor() as cursor:
            cursor.execute(
                "SELECT oid, relname FROM pg_class WHERE relnamespace = to_regnamespace(%s) AND relkind = 'r'",
                [environment.environment_id],
            )
            tables = dict(cursor.fetchall())
            change()
            cursor.execute(
                "SELECT relation, mode FROM pg_locks WHERE pid = pg_backend_pid() AND relation = ANY (%s)", [[*tables]]
            )
            held = {(tables[relation], mode) for relation, mode in cursor.fetchall() if mode in strong}
        transaction.set_rollback(True, using=using)
    assert {name for name, _ in held} == set(named)
    assert set(named.items()) <= held


def test_a_reference_blocks_writes_of_its_target(environment: EnvironmentRef) -> None:
    found = locks_of(environment, changed(list={"type": "reference", "to": "lists", "null": True}))
    assert {name: (lock.mode, lock.blocks) for name, lock in found.items()} == {
        "notes": ("ACCESS EXCLUSIVE", "reads and writes"),
        "lists": ("SHARE ROW EXCLUSIVE", "writes"),
    }


def test_indexes_of_large_tables_block_nothing(environment: EnvironmentRef, settings: Any) -> None:
    settings.SCHEMA_LARGE_TABLE_ROWS = 1000
    found = schema_service.rehearse(environment, with_notes(indexes=[["count"]])).locks
    built = [lock for lock in found if lock.work == ("index",)]
    assert [(lock.mode, lock.blocks) for lock in built] == [("SHARE UPDATE EXCLUSIVE", "nothing")]
    assert built[0].estimated_ms > 0
    assert lock_estimates.locked_ms(found) == 0


def test_a_change_of_rules_alone_locks_nothing(environment: EnvironmentRef) -> None:
    assert locks_of(environment, with_notes(rules={"user": {"read": {}}})) == {}


def test_more_rows_take_longer(environment: EnvironmentRef) -> None:
    document = changed(count={"type": "decimal", "precision": 10, "scale": 2})
    few = locks_of(environment, document)["notes"].estimated_ms
    with row_access(), connections[environment.cluster].cursor() as cursor:
        cursor.execute(
            f"""INSERT INTO "{environment.environment_id}".notes (id, title, "count")
                SELECT 'm' || n, 'title', n FROM generate_series(1, {9 * ROWS}) n"""
        )
        cursor.execute(f'ANALYZE "{environment.environment_id}".notes')
    many = locks_of(environment, document)["notes"].estimated_ms
    assert 5 * few < many < 20 * few
