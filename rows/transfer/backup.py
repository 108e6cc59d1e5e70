"""Backups of one environment: everything that is in its region, in one file, and restoring it.

    projects ─▶ rows: versions, tables, rows by COPY ─▶ archives (the file)
                webhooks, functions: a part each (`register_part`)

A backup is one snapshot: one REPEATABLE READ transaction in which the schema version is locked and no table can be
dropped. It is checked like a restore before the file gets its name. A restore verifies the whole file before it changes
anything, and is one transaction: into a new preview branch, or into an environment, whose tables it replaces at the
end. Users, keys and settings are in the control database and in no backup. For operators: no rules are applied and no
events recorded. Format and use: docs/how-to/operations/backups.md.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol

from django.core.exceptions import ValidationError
from django.db import DatabaseError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.dateparse import parse_datetime
from psycopg import sql

from accounts.audit import Actor
from platform_site.background.periodic import log_failures
from platform_site.http.requests import current_request_id
from platform_site.identity import ids, signals
from platform_site.identity.callers import Caller, EnvironmentRef
from platform_site.postgres import limits, sqlstates
from platform_site.postgres.prepared import row_access
from projects import services as projects
from rows.changes import watched_tables
from rows.migrate import apply
from rows.migrate import service as schema_service
from rows.models import CurrentVersion, PendingUserReferences, SchemaVersion
from rows.outbox import audit as audit_outbox
from rows.query import schema_cache
from rows.schema import model as schema_model
from rows.schema.model import EMPTY, InvalidDocument, Schema, Table
from rows.transfer import branch_copy
from rows.transfer.backup_file import Archive, DamagedArchive, Progress, Writer
from rows.write import deleted_users

_SCHEMA: Final = "schema.json"
_VERSIONS: Final = "versions.ndjson"
_VERSION_FIELDS: Final = (
    "version", "document_text", "source_digest", "renames", "operations", "author_kind", "author_id", "reverts_to",
    "request_id",
)  # fmt: skip


class Part(Protocol):
    """What an app above keeps of an environment in the region, as JSON objects. Called in the region's transaction."""

    def dump(self, place: EnvironmentRef) -> Mapping[str, Iterator[Mapping[str, Any]]]:
        """Everything worth keeping, never a secret: members of the file by name, each of records that begin with what
        tells them apart. A record is read as one piece, so what can be many (versions, say) has a member of its own."""

    def load(self, place: EnvironmentRef, records: Callable[[str], Iterator[Mapping[str, Any]]]) -> int:
        """Make them anew in an environment that has none, from the records of each member; none of one that the backup
        does not have. Returns how many. Raises QuotaExceeded; may stumble (KeyError, TypeError, ValueError,
        AttributeError) over records that `dump` never wrote."""

    def is_empty(self, place: EnvironmentRef) -> bool:
        """Whether the environment has none."""


_parts: Final[dict[str, Part]] = {}


def register_part(name: str, part: Part) -> None:
    """Let `part` go along into backups. Called once by its app, at start."""
    _parts[name] = part


class NotRestorable(Exception):
    """The environment holds what no restore would take. The message says what, for an operator."""


class NotEmpty(Exception):
    """The environment has tables, and replacing them was not confirmed."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a backup holds, or what came back from one."""

    schema_version: int
    rows: Mapping[str, int]
    """By table."""
    parts: Mapping[str, int]
    """Of a backup by member, of a restore by part; those that were left out are not there."""
    is_ready: bool = True
    """False for a restored branch that becomes ready at the next periodic job and is not reachable before."""


# ── Making one ──────────────────────────────────────────────────────────────────────────────────────────────────────


def backup(
    place: EnvironmentRef,
    path: Path,
    *,
    replace: bool = False,
    progress: Callable[[str, int], None] = lambda table, rows: None,
) -> Summary:
    """Write a snapshot of the environment into a new file at `path`.

    `progress` is called with the number of rows written per table. Raises FileExistsError unless `replace`,
    NotRestorable, OSError, DatabaseError.
    """
    with Writer(path, replace=replace) as writer:
        with _snapshot(place) as taken_at:
            summary = _write(writer, place, taken_at, progress)
        _read_back(writer)
    return summary


def _write(writer: Writer, place: EnvironmentRef, taken_at: datetime, progress: Callable[[str, int], None]) -> Summary:
    connection = connections[place.cluster]
    state = schema_service.current(place)
    tables = state.schema.tables.values()
    _write_versions(writer, place, state.version, state.schema)
    for table in tables:
        _refuse_invalid_rows(connection, place, table)
    rows = {table.name: _write_rows(writer, connection, place, table, progress) for table in tables}
    parts = {
        name: writer.json_lines(f"{name}.ndjson", records)
        for part in _parts.values()
        for name, records in part.dump(place).items()
    }
    writer.finish(
        {
            "taken_at": taken_at.isoformat(),
            "environment": {
                "id": place.environment_id,
                "name": place.environment_name,
                "project_id": place.project_id,
                "region": place.region,
                "pool_id": place.pool_id,
            },
            "schema_version": state.version,
            "tables": [
                {"name": table.name, "columns": list(table.all_columns), "rows": rows[table.name]} for table in tables
            ],
            "parts": parts,
        }
    )
    return Summary(state.version, rows, parts)


def _read_back(writer: Writer) -> None:
    """Hold what was written to all that a restore asks of it, but the rows: they were (`_refuse_strange`). Raises
    NotRestorable."""
    try:
        with Archive(writer.unfinished) as archive:
            _content(archive)
    except DamagedArchive as error:
        raise NotRestorable(str(error)) from error


@contextmanager
def _snapshot(place: EnvironmentRef) -> Iterator[datetime]:
    """The region's transaction of a backup. Gives the moment by the clock of the control database, no later than it."""
    taken_at = deleted_users.now()
    connection = connections[place.cluster]
    with transaction.atomic(using=place.cluster):
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            limits.lift(cursor)
        branch_copy.hold_version(connection, place.environment_id)
        branch_copy.lock_against_deletion(connection, place.environment_id, schema_service.current(place).schema)
        yield taken_at


def _write_versions(writer: Writer, place: EnvironmentRef, version: int, schema: Schema) -> None:
    with writer.member(_SCHEMA) as write:
        write(json.dumps(schema.document, ensure_ascii=False, indent=1).encode())
    # One by one: behind a pooler there is no cursor that would not hold them all.
    records = (schema_service.version(place, number) for number in range(1, version + 1))
    writer.json_lines(_VERSIONS, map(_version_record, records))


def _version_record(record: SchemaVersion) -> dict[str, Any]:
    return {field: getattr(record, field) for field in _VERSION_FIELDS} | {"applied_at": record.applied_at.isoformat()}


def _refuse_invalid_rows(connection: BaseDatabaseWrapper, place: EnvironmentRef, table: Table) -> None:
    """Raise NotRestorable for rows that would be no rows to a restore. One look at the whole table."""
    with apply.inside(connection, place.environment_id, limited=False), row_access():
        strange = apply.unreadable_cell(connection, table)
    if strange is not None:
        raise NotRestorable(_invalid_rows(table, *strange))


def _invalid_rows(table: Table, row_id: str, column: str) -> str:
    return f"the row {row_id!a} of {table.name} holds what its column {column} cannot"


def _write_rows(
    writer: Writer,
    connection: BaseDatabaseWrapper,
    place: EnvironmentRef,
    table: Table,
    progress: Callable[[str, int], None],
) -> int:
    copy = sql.SQL("COPY {} ({}) TO STDOUT").format(
        sql.Identifier(place.environment_id, table.name), branch_copy.columns_of(table)
    )
    rows = told = 0
    with writer.member(_member_of(table)) as write, row_access(), connection.cursor() as cursor:
        pending: Any = cursor
        chunk: list[bytes] = []
        size = 0
        with connection.wrap_database_errors, pending.copy(copy) as reading:
            for line in reading:  # PostgreSQL sends each row by itself
                rows += 1
                chunk.append(bytes(line))
                size += len(line)
                if size > 256 * 1024:
                    write(b"".join(chunk))
                    chunk.clear()
                    size = 0
                    progress(table.name, rows - told)
                    told = rows
        write(b"".join(chunk))
    progress(table.name, rows - told)
    return rows


def _member_of(table: Table) -> str:
    return f"rows/{table.name}.copy"


# ── Looking at one ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Content:
    """A verified backup."""

    archive: Archive
    schema: Schema
    version: int
    taken_at: datetime
    source_id: str
    parts: frozenset[str]
    """Members of apps above."""


def verified(archive: Archive, progress: Progress = lambda count: None) -> Content:
    """Read the whole file and hold it to what it says of itself. Nothing is changed anywhere. Raises Damaged."""
    archive.verify(progress)
    return _content(archive)


def _content(archive: Archive) -> Content:
    """What the file says, all but the rows: read by the same means as a restore reads it. Raises Damaged."""
    manifest = archive.manifest
    try:
        version = int(manifest["schema_version"])
        schema = schema_service.read(archive.json(_SCHEMA)) if version else EMPTY
        taken_at = parse_datetime(manifest["taken_at"])
        source_id = str(manifest["environment"]["id"])
        tables = {table["name"]: (list(table["columns"]), int(table["rows"])) for table in manifest["tables"]}
        parts = {str(name): int(count) for name, count in manifest["parts"].items()}
    except InvalidDocument as error:
        raise DamagedArchive(f"its schema is not valid here: {error}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DamagedArchive("its manifest is not complete") from error
    if taken_at is None or taken_at.tzinfo is None:
        raise DamagedArchive("its manifest is not complete")
    if {name: list(table.all_columns) for name, table in schema.tables.items()} != {
        name: columns for name, (columns, _) in tables.items()
    }:
        raise DamagedArchive("its tables are not those of its schema")
    latest = None
    for number, record in enumerate(archive.json_lines(_VERSIONS), 1):
        latest = _version_of(record, number)
    last = (latest.version, latest.document) if latest else (0, EMPTY.document)
    if last != (version, schema.document):
        raise DamagedArchive("its schema is not the last of its versions")
    for name, count in parts.items():
        if sum(1 for _ in archive.json_lines(f"{name}.ndjson")) != count:
            raise DamagedArchive(f"{name}.ndjson does not hold as many lines as the manifest says")
    return Content(archive, schema, version, taken_at, source_id, frozenset(parts))


def _version_of(record: Mapping[str, Any], number: int) -> SchemaVersion:
    """The version that a record describes, for no environment yet. Raises Damaged unless it is version `number`."""
    try:
        made = SchemaVersion(
            **{name: _cell_of(SchemaVersion._meta.get_field(name), record[name]) for name in _VERSION_FIELDS},
            applied_at=_cell_of(SchemaVersion._meta.get_field("applied_at"), record["applied_at"]),
        )
        is_whole = (
            made.version == number
            and isinstance(made.document["tables"], dict)
            and all(isinstance(each["operation"], str) for each in made.operations)
            and all(isinstance(was, str) for was in made.renames["tables"].values())
            and all(isinstance(was, str) for moved in made.renames["columns"].values() for was in moved.values())
        )
    except (AttributeError, KeyError, TypeError, ValueError, ValidationError, RecursionError) as error:
        raise DamagedArchive(f"{_VERSIONS} cannot be read") from error
    if not is_whole:
        raise DamagedArchive(f"{_VERSIONS} does not have each version once, in order")
    return made


def _cell_of(field: Any, value: Any) -> Any:
    """`value` as the model field takes it. Raises ValidationError, TypeError."""
    if value is None and field.null:
        return None
    cell = field.to_python(value)
    if cell is None:
        raise TypeError
    field.run_validators(cell)
    return cell


# ── Bringing one back ───────────────────────────────────────────────────────────────────────────────────────────────


def restore_as_branch(
    content: Content, project_id: str, name: str, *, actor: Caller | Actor, progress: Progress = lambda count: None
) -> tuple[EnvironmentRef, Summary]:
    """A new preview branch of the project's production with everything in the backup: all of it, or no branch.

    Users who were deleted since are let go of, as far as other rows allow. Raises Damaged, TablesQuotaReached,
    QuotaExceeded (of a part), and what `projects.filled_branch` raises.
    """
    origin = {"source": content.source_id, "taken_at": content.taken_at.isoformat()}
    with projects.filled_branch(project_id, name=name, actor=actor, **origin) as place:
        schema_service.hold_to_plan(place, EMPTY, content.schema)
        connection = connections[place.cluster]
        rows, indexes_due = _build(connection, place.environment_id, content, progress)
        if content.version:
            _restore_versions(place, content, indexes_due)
        parts = {name: _load_part(place, name, content) for name in _parts}
        deleted_users.delete_references(place, content.taken_at)
    is_ready = False
    with log_failures(f"whether {place.environment_id} is ready"):
        is_ready = projects.is_ready(place.environment_id)
    return place, Summary(content.version, rows, parts, is_ready)


def restore_into(
    content: Content,
    place: EnvironmentRef,
    *,
    replace: bool = False,
    actor: Caller | Actor,
    progress: Progress = lambda count: None,
) -> Summary:
    """Make the backup's tables and rows those of the environment, as its next schema version.

    Everything is loaded beside the living tables, which are exchanged at the end: readers wait for an instant only.
    Users who were deleted since are let go of, as far as other rows allow. Webhooks and functions come back only where
    the environment has none. Raises NotEmpty unless `replace`, Damaged, TablesQuotaReached, QuotaExceeded (of a
    part), LockNotWon (tables in use; try again), DatabaseError.
    """
    try:
        summary, due = _restore_into(content, place, replace, actor, progress)
    except BaseException:
        schema_cache.evict(place.environment_id)  # which may know the version that was taken back
        raise
    with log_failures(f"users who are gone, in {place.environment_id}"):
        deleted_users.settle(place, due)
    return summary


def _restore_into(
    content: Content, place: EnvironmentRef, replace: bool, actor: Caller | Actor, progress: Progress
) -> tuple[Summary, PendingUserReferences]:
    began = deleted_users.now()
    connection = connections[place.cluster]
    beside = f"restore_{ids.suffix()}"
    with transaction.atomic(using=place.cluster):
        with connection.cursor() as cursor:
            limits.lift(cursor)
            cursor.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(beside)))
        if schema_service.current(place).schema.tables and not replace:
            raise NotEmpty
        rows, indexes_due = _build(connection, beside, content, progress)
        row = schema_service.locked_version(place)
        old = schema_service.current(place).schema
        if old.tables and not replace:
            raise NotEmpty
        schema_service.hold_to_plan(place, old, content.schema)
        apply.exchange(connection, place.environment_id, old, beside, content.schema)
        version = _next_version(place, row, old, content, actor, indexes_due)
        deleted_users.delete_references(place, content.taken_at)
        parts = {name: _load_part(place, name, content) for name, part in _parts.items() if part.is_empty(place)}
        due = deleted_users.schedule(place, began)
        watched_tables.renew(place.environment_id, place.cluster)
        audit_outbox.record(
            place,
            "environment.restored",
            actor=actor,
            target_id=place.environment_id,
            source=content.source_id,
            taken_at=content.taken_at.isoformat(),
            version=version,
        )
    return Summary(version, rows, parts), due


def _build(
    connection: BaseDatabaseWrapper, into: str, content: Content, progress: Progress
) -> tuple[dict[str, int], bool]:
    """The backup's tables, rows and indexes in the empty PostgreSQL schema `into`. How many rows by table, and whether
    an index could not be made."""
    counted: dict[str, int] = {}

    def fill() -> None:
        for table in content.schema.tables.values():
            counted[table.name] = _load_rows(connection, into, table, content.archive, progress)
        for table in content.schema.tables.values():
            if strange := apply.unreadable_cell(connection, table):
                raise DamagedArchive(_invalid_rows(table, *strange))
        with connection.cursor() as cursor:
            for table in content.schema.tables.values():
                cursor.execute(sql.SQL("ANALYZE {}").format(sql.Identifier(into, table.name)))

    try:
        # COPY is psycopg's own: without the wrapper its errors would not be Django's.
        with connection.wrap_database_errors, apply.inside(connection, into, limited=False), row_access():
            built = apply.build(connection, content.schema, fill)
    except DatabaseError as error:
        if (sqlstates.sqlstate(error) or "").startswith(("22", "23")):
            raise DamagedArchive("its rows do not fit its schema") from error
        raise
    expected = {table["name"]: table["rows"] for table in content.archive.manifest["tables"]}
    if counted != expected:
        raise DamagedArchive("it does not hold as many rows as it says")
    return counted, built.indexes_due


def _load_rows(connection: BaseDatabaseWrapper, into: str, table: Table, archive: Archive, progress: Progress) -> int:
    copy = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(into, table.name), branch_copy.columns_of(table))
    with connection.cursor() as cursor:
        pending: Any = cursor
        with pending.copy(copy) as writing:
            for piece in archive.read(_member_of(table), progress):
                writing.write(piece)
        return int(cursor.rowcount)


def _restore_versions(place: EnvironmentRef, content: Content, indexes_due: bool) -> None:
    for number, line in enumerate(content.archive.json_lines(_VERSIONS), 1):
        record = _version_of(line, number)
        record.environment_id = place.environment_id
        record.save(using=place.cluster, force_insert=True)
    CurrentVersion.objects.using(place.cluster).create(
        environment_id=place.environment_id, version=content.version, indexes_due=indexes_due
    )


def _next_version(
    place: EnvironmentRef, row: CurrentVersion, old: Schema, content: Content, actor: Caller | Actor, indexes_due: bool
) -> int:
    """Never a number again that the environment had: processes know schemas by them."""
    name = f"restore the backup of {content.source_id} taken at {content.taken_at.isoformat()}"
    record = SchemaVersion.objects.using(place.cluster).create(
        environment_id=place.environment_id,
        version=row.version + 1,
        document_text=json.dumps(content.schema.document, ensure_ascii=False),
        source_digest=schema_model.digest(content.schema.document),
        renames={"tables": {}, "columns": {}},
        operations=[{"operation": name, "sql": [], "destructive": bool(old.tables)}],
        author_kind=actor.kind,
        author_id=actor.id,
        request_id=current_request_id(),
    )
    CurrentVersion.objects.using(place.cluster).filter(pk=row.pk).update(
        version=record.version, indexes_due=indexes_due
    )
    signals.schema_migrated.send(
        sender=SchemaVersion, place=place, version=record.version, operations=[name], using=place.cluster
    )
    return record.version


def _load_part(place: EnvironmentRef, name: str, content: Content) -> int:
    def records(member: str) -> Iterator[Mapping[str, Any]]:
        # One that is not there was made before there was such a member.
        return content.archive.json_lines(f"{member}.ndjson") if member in content.parts else iter(())

    try:
        return _parts[name].load(place, records)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DamagedArchive(f"its {name} cannot be read") from error
