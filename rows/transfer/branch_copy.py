"""The rows' part of a preview branch: tables, versions and optionally rows of its source, in one snapshot
(`projects.provisioning.branching`). A concurrent schema change restarts the copy. No rules are applied and no events
recorded. docs/adr/0003-preview-branches.md."""

from functools import partial
from typing import Any, Final

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import sql

from platform_site.identity.callers import EnvironmentRef
from platform_site.postgres.row_access import row_access
from projects.provisioning import branching, failpoints
from rows.migrate import apply
from rows.models import CurrentVersion, SchemaVersion
from rows.schema import parser
from rows.schema.model import Schema, Table

_LOCK_VERSION: Final = "SELECT version FROM platform.rows_currentversion WHERE environment_id = %s FOR SHARE"
_MODEL_COLUMNS: Final = [
    field.attname for field in SchemaVersion._meta.concrete_fields if field.attname not in ("id", "environment_id")
]


def follow_branch(
    *, source: EnvironmentRef, target: EnvironmentRef, data: branching.Data, using: str, **_: Any
) -> None:
    """Receiver of `environment_branched`: copies tables and versions. Raises SourceGone or BranchDeleted."""
    connection = connections[using]
    version = lock_version(connection, source.environment_id)
    if not version:
        return  # no schema yet: an empty branch
    record = SchemaVersion.objects.using(using).get(environment_id=source.environment_id, version=version)
    schema = parser.parse(record.document)
    indexes_due = build_copy(connection, source, target, schema, data, into=target.environment_id)
    _copy_versions(connection, source, target, version, indexes_due=indexes_due)


def build_copy(
    connection: BaseDatabaseWrapper,
    source: EnvironmentRef,
    target: EnvironmentRef,
    schema: Schema,
    data: branching.Data,
    *,
    into: str,
) -> bool:
    """Build the tables of `source` in the empty PostgreSQL schema `into`, which is or becomes that of `target`. Returns
    whether an index could not be made."""
    fill = None
    if data == "full":
        lock_against_deletion(connection, source.environment_id, schema)
        branching.require_both(source, target)
        fill = partial(_copy_rows, connection, source, target, schema, into)
    with apply.use_schema(connection, into, limited=False), row_access():
        return apply.build(connection, schema, fill).indexes_due


def lock_version(connection: BaseDatabaseWrapper, environment_id: str) -> int:
    """Lock the schema version (0: none). Raises SQLSTATE 40001 if the snapshot is outdated: start again."""
    with connection.cursor() as cursor:
        cursor.execute(_LOCK_VERSION, [environment_id])
        held = cursor.fetchone()
    return held[0] if held else 0


def lock_against_deletion(connection: BaseDatabaseWrapper, schema_name: str, schema: Schema) -> None:
    """Lock all tables against being dropped; reads and writes continue."""
    if schema.tables:
        tables = sql.SQL(", ").join(sql.Identifier(schema_name, name) for name in sorted(schema.tables))
        with row_access(), connection.cursor() as cursor:
            cursor.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(tables))


def _copy_rows(
    connection: BaseDatabaseWrapper, source: EnvironmentRef, target: EnvironmentRef, schema: Schema, into: str
) -> None:
    with connection.cursor() as cursor:
        for table in schema.tables.values():
            names = columns_of(table)
            cursor.execute(
                sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {}").format(
                    sql.Identifier(into, table.name), names, names, sql.Identifier(source.environment_id, table.name)
                )
            )
            failpoints.reach("branch.between_tables")
            branching.require_both(source, target)
        for table in schema.tables.values():
            # Until autovacuum runs, the planner would expect a few pages.
            cursor.execute(sql.SQL("ANALYZE {}").format(sql.Identifier(into, table.name)))


def columns_of(table: Table) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(name) for name in table.all_columns)


def _copy_versions(
    connection: BaseDatabaseWrapper, source: EnvironmentRef, target: EnvironmentRef, version: int, *, indexes_due: bool
) -> None:
    """The branch continues the source's numbers, and can revert to each."""
    columns = sql.SQL(", ").join(sql.Identifier(name) for name in _MODEL_COLUMNS)
    with connection.cursor() as cursor:
        cursor.execute(
            sql.SQL(
                "INSERT INTO platform.rows_schemaversion (environment_id, {}) SELECT %s, {}"
                " FROM platform.rows_schemaversion WHERE environment_id = %s AND version <= %s"
            ).format(columns, columns),
            [target.environment_id, source.environment_id, version],
        )
    # The indexes were built with the tables, even those that the source still lacks.
    CurrentVersion.objects.using(connection.alias).create(
        environment_id=target.environment_id, version=version, indexes_due=indexes_due
    )
