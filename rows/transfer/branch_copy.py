"""The rows' part of a preview branch: tables, versions and optionally rows of its source, in one snapshot
(`projects.provisioning.branching`). A concurrent schema change restarts the copy. No rules are applied and no events
recorded. docs/adr/0003-preview-branches.md."""

from functools import partial
from typing import Any, Final

from psycopg import sql

from platform_site.identity.callers import EnvironmentRef
from platform_site.postgres import statements
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
    version = lock_version(using, source.environment_id)
    if not version:
        return  # no schema yet: an empty branch
    record = SchemaVersion.objects.using(using).get(environment_id=source.environment_id, version=version)
    schema = parser.parse(record.document)
    indexes_due = build_copy(using, source, target, schema, data, into=target.environment_id)
    _copy_versions(using, source, target, version, indexes_due=indexes_due)


def build_copy(
    using: str, source: EnvironmentRef, target: EnvironmentRef, schema: Schema, data: branching.Data, *, into: str
) -> bool:
    """`into` is an empty PostgreSQL schema, which is or becomes that of `target`. Returns whether an index could not be
    made."""
    fill = None
    if data == "full":
        lock_against_deletion(using, source.environment_id, schema)
        branching.require_both(source, target)
        fill = partial(_copy_rows, using, source, target, schema, into)
    with apply.use_schema(using, into, limited=False), row_access():
        return apply.build(using, schema, fill).indexes_due


def lock_version(using: str, environment_id: str) -> int:
    """Lock the schema version (0: none). Raises SQLSTATE 40001 if the snapshot is outdated: start again."""
    [version] = statements.column(using, _LOCK_VERSION, [environment_id]) or [0]
    return int(version)


def lock_against_deletion(using: str, schema_name: str, schema: Schema) -> None:
    """Reads and writes continue."""
    if schema.tables:
        tables = sql.SQL(", ").join(sql.Identifier(schema_name, name) for name in sorted(schema.tables))
        with row_access():
            statements.execute(using, sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(tables))


def _copy_rows(using: str, source: EnvironmentRef, target: EnvironmentRef, schema: Schema, into: str) -> None:
    for table in schema.tables.values():
        names = columns_of(table)
        statements.execute(
            using,
            sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {}").format(
                sql.Identifier(into, table.name), names, names, sql.Identifier(source.environment_id, table.name)
            ),
        )
        failpoints.reach("branch.between_tables")
        branching.require_both(source, target)
    analyze(using, into, schema)


def analyze(using: str, schema_name: str, schema: Schema) -> None:
    """Until autovacuum runs, the planner would expect a few pages."""
    for table in schema.tables:
        statements.execute(using, sql.SQL("ANALYZE {}").format(sql.Identifier(schema_name, table)))


def columns_of(table: Table) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(name) for name in table.all_columns)


def _copy_versions(
    using: str, source: EnvironmentRef, target: EnvironmentRef, version: int, *, indexes_due: bool
) -> None:
    """The branch continues the source's numbers, and can revert to each."""
    columns = sql.SQL(", ").join(sql.Identifier(name) for name in _MODEL_COLUMNS)
    copy = sql.SQL(
        "INSERT INTO platform.rows_schemaversion (environment_id, {}) SELECT %s, {}"
        " FROM platform.rows_schemaversion WHERE environment_id = %s AND version <= %s"
    ).format(columns, columns)
    statements.execute(using, copy, [target.environment_id, source.environment_id, version])
    # The indexes were built with the tables, even those that the source still lacks.
    CurrentVersion.objects.using(using).create(
        environment_id=target.environment_id, version=version, indexes_due=indexes_due
    )
