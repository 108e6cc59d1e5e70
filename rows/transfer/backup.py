"""Backups of one environment: all of its region's data in one file (without users, keys and settings), from one
REPEATABLE READ snapshot; other apps add parts (`registered_parts`). A restore verifies the whole file first and is one
transaction. No rules are applied and no events recorded. docs/how-to/operations/backups.md."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from django.db import transaction
from psycopg import sql

from platform_site.identity.callers import EnvironmentRef
from platform_site.postgres import statements, transaction_settings
from platform_site.postgres.row_access import row_access
from rows.migrate import apply, stored_values
from rows.migrate import versions as schema_versions
from rows.models import SchemaVersion
from rows.schema.model import Schema, Table
from rows.transfer import branch_copy
from rows.transfer.backup_content import (
    SCHEMA,
    VERSION_FIELDS,
    VERSIONS,
    Summary,
    describe_invalid_row,
    member_of,
    read_content,
    registered_parts,
)
from rows.transfer.backup_file import Archive, DamagedArchive, Writer
from rows.transfer.copy_lines import in_chunks
from rows.write.references import dangling_references


class NotRestorable(Exception):
    pass


def backup(
    environment: EnvironmentRef,
    path: Path,
    *,
    replace: bool = False,
    progress: Callable[[str, int], None] = lambda table, rows: None,
) -> Summary:
    """Write a snapshot into a new file. `progress` is called with each table's number of rows. Raises FileExistsError
    unless `replace`, NotRestorable, OSError, DatabaseError."""
    with Writer(path, replace=replace) as writer:
        with _snapshot(environment) as taken_at:
            summary = _write(writer, environment, taken_at, progress)
        try:  # as a restore does, except for rows
            with Archive(writer.unfinished) as archive:
                read_content(archive)
        except DamagedArchive as error:
            raise NotRestorable(str(error)) from error
    return summary


def _write(
    writer: Writer, environment: EnvironmentRef, taken_at: datetime, progress: Callable[[str, int], None]
) -> Summary:
    state = schema_versions.current(environment)
    tables = state.schema.tables.values()
    _write_versions(writer, environment, state.version, state.schema)
    for table in tables:
        _refuse_invalid_rows(environment, table)
    rows = {table.name: _write_rows(writer, environment, table, progress) for table in tables}
    parts = {
        name: writer.json_lines(f"{name}.ndjson", records)
        for part in registered_parts.values()
        for name, records in part.dump(environment).items()
    }
    writer.finish(
        {
            "taken_at": taken_at.isoformat(),
            "environment": {
                "id": environment.environment_id,
                "name": environment.environment_name,
                "project_id": environment.project_id,
                "region": environment.region,
                "pool_id": environment.pool_id,
            },
            "schema_version": state.version,
            "tables": [
                {"name": table.name, "columns": list(table.all_columns), "rows": rows[table.name]} for table in tables
            ],
            "parts": parts,
        }
    )
    return Summary(state.version, rows, parts)


@contextmanager
def _snapshot(environment: EnvironmentRef) -> Iterator[datetime]:
    """The region's transaction of a backup, and its time by the control database's clock (not later)."""
    taken_at = dangling_references.control_time()
    using = environment.cluster
    with transaction.atomic(using=using):
        statements.execute(using, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        transaction_settings.lift_limits(using)
        branch_copy.lock_version(using, environment.environment_id)
        schema = schema_versions.current(environment).schema
        branch_copy.lock_against_deletion(using, environment.environment_id, schema)
        yield taken_at


def _write_versions(writer: Writer, environment: EnvironmentRef, version: int, schema: Schema) -> None:
    with writer.member(SCHEMA) as write:
        write(json.dumps(schema.document, ensure_ascii=False, indent=1).encode())
    # One by one: behind a pooler there is no cursor that would not hold them all.
    records = (schema_versions.version(environment, number) for number in range(1, version + 1))
    writer.json_lines(VERSIONS, map(_version_record, records))


def _version_record(record: SchemaVersion) -> dict[str, Any]:
    return {field: getattr(record, field) for field in VERSION_FIELDS} | {"applied_at": record.applied_at.isoformat()}


def _refuse_invalid_rows(environment: EnvironmentRef, table: Table) -> None:
    with apply.use_schema(environment.cluster, environment.environment_id, limited=False), row_access():
        invalid = stored_values.unreadable_cell(environment.cluster, table)
    if invalid is not None:
        raise NotRestorable(describe_invalid_row(table, *invalid))


def _write_rows(writer: Writer, environment: EnvironmentRef, table: Table, progress: Callable[[str, int], None]) -> int:
    copy = sql.SQL("COPY {} ({}) TO STDOUT").format(
        sql.Identifier(environment.environment_id, table.name), branch_copy.columns_of(table)
    )
    rows = 0
    with writer.member(member_of(table)) as write, row_access(), statements.copy(environment.cluster, copy) as reading:
        for chunk in in_chunks(map(bytes, reading)):
            write(chunk)
            count = chunk.count(b"\n")  # COPY escapes those of values
            progress(table.name, count)
            rows += count
    return rows
