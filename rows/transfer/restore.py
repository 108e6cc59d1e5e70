"""Restores a backup in one transaction. No rules are applied and no events recorded."""

from collections.abc import Iterator, Mapping
from typing import Any

from django.db import DatabaseError, transaction
from psycopg import sql

from accounts.audit import Actor
from platform_site.background.periodic import log_failures
from platform_site.identity.callers import Caller, EnvironmentRef
from platform_site.postgres import sqlstates, statements, transaction_settings
from platform_site.postgres.row_access import row_access
from projects import services as projects
from rows.changes import watched_tables
from rows.migrate import apply, stored_values, versions
from rows.migrate import service as schema_service
from rows.models import CurrentVersion
from rows.outbox import audit as audit_outbox
from rows.query import schema_cache
from rows.schema.model import EMPTY, Table
from rows.transfer import branch_copy
from rows.transfer.backup_content import (
    VERSIONS,
    Content,
    Summary,
    describe_invalid_row,
    member_of,
    registered_parts,
    version_of,
)
from rows.transfer.backup_file import Archive, DamagedArchive, Progress
from rows.write.references import dangling_references


class NotEmpty(Exception):
    pass


def restore_as_branch(
    content: Content, project_id: str, name: str, *, actor: Caller | Actor, progress: Progress = lambda count: None
) -> tuple[EnvironmentRef, Summary]:
    """A new preview branch of production with the backup. References to deleted users are resolved if possible. Raises
    DamagedArchive, QuotaExceeded, and what `projects.services.filled_branch` raises."""
    origin = {"source": content.source_id, "taken_at": content.taken_at.isoformat()}
    with projects.filled_branch(project_id, name=name, actor=actor, **origin) as environment:
        schema_service.check_table_quota(environment, EMPTY, content.schema)
        rows, indexes_due = _build(environment.cluster, environment.environment_id, content, progress)
        if content.version:
            _restore_versions(environment, content, indexes_due)
        parts = {name: _load_part(environment, name, content) for name in registered_parts}
        dangling_references.remove(environment, content.taken_at)
    is_ready = False
    with log_failures(f"whether {environment.environment_id} is ready"):
        is_ready = projects.is_ready(environment.environment_id)
    return environment, Summary(content.version, rows, parts, is_ready)


def restore_into(
    content: Content,
    environment: EnvironmentRef,
    *,
    replace: bool = False,
    actor: Caller | Actor,
    progress: Progress = lambda count: None,
) -> Summary:
    """Make the backup the environment's next schema version: loaded beside the live tables, then exchanged. Resolves
    references to deleted users if possible; restores webhooks and functions only if there are none. Raises NotEmpty
    unless `replace`, DamagedArchive, QuotaExceeded, LockNotAvailable, DatabaseError."""
    using, began = environment.cluster, dangling_references.control_time()
    try:
        with transaction.atomic(using=using):
            transaction_settings.lift_limits(using)
            beside = apply.create_schema(using, "restore")
            if versions.current(environment).schema.tables and not replace:
                raise NotEmpty
            rows, indexes_due = _build(using, beside, content, progress)
            row = schema_service.locked_version(environment)
            old = versions.current(environment).schema
            if old.tables and not replace:
                raise NotEmpty
            schema_service.check_table_quota(environment, old, content.schema)
            apply.exchange(using, environment.environment_id, old, beside, content.schema)
            name = f"restore the backup of {content.source_id} taken at {content.taken_at.isoformat()}"
            version = versions.add_replacement(
                environment, row, old, content.schema, name, actor=actor, indexes_due=indexes_due
            )
            dangling_references.remove(environment, content.taken_at)
            parts = {
                name: _load_part(environment, name, content)
                for name, part in registered_parts.items()
                if part.is_empty(environment)
            }
            due = dangling_references.schedule(environment, began)
            watched_tables.invalidate_positions(environment.environment_id, using)
            audit_outbox.record(
                environment,
                "environment.restored",
                actor=actor,
                target_id=environment.environment_id,
                source=content.source_id,
                taken_at=content.taken_at.isoformat(),
                version=version,
            )
    except BaseException:
        schema_cache.evict(environment.environment_id)  # which may know the version that was taken back
        raise
    with log_failures(f"references to deleted users in {environment.environment_id}"):
        dangling_references.remove_scheduled(environment, due)
    return Summary(version, rows, parts)


def _build(using: str, into: str, content: Content, progress: Progress) -> tuple[dict[str, int], bool]:
    """Build the backup in the empty schema `into`; returns rows by table, and whether an index is missing."""
    counted: dict[str, int] = {}

    def fill() -> None:
        for table in content.schema.tables.values():
            counted[table.name] = _load_rows(using, into, table, content.archive, progress)
        for table in content.schema.tables.values():
            if invalid := stored_values.unreadable_cell(using, table):
                raise DamagedArchive(describe_invalid_row(table, *invalid))
        branch_copy.analyze(using, into, content.schema)

    try:
        with apply.use_schema(using, into, limited=False), row_access():
            built = apply.build(using, content.schema, fill)
    except DatabaseError as error:
        if (sqlstates.sqlstate(error) or "").startswith(("22", "23")):
            raise DamagedArchive("its rows do not fit its schema") from error
        raise
    expected = {table["name"]: table["rows"] for table in content.archive.manifest["tables"]}
    if counted != expected:
        raise DamagedArchive("its number of rows is not that of its manifest")
    return counted, built.indexes_due


def _load_rows(using: str, into: str, table: Table, archive: Archive, progress: Progress) -> int:
    copy = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(into, table.name), branch_copy.columns_of(table))
    with statements.copy(using, copy) as writing:
        for piece in archive.read(member_of(table), progress):
            writing.write(piece)
    return writing.cursor.rowcount


def _restore_versions(environment: EnvironmentRef, content: Content, indexes_due: bool) -> None:
    for number, line in enumerate(content.archive.json_lines(VERSIONS), 1):
        record = version_of(line, number)
        record.environment_id = environment.environment_id
        record.save(using=environment.cluster, force_insert=True)
    CurrentVersion.objects.using(environment.cluster).create(
        environment_id=environment.environment_id, version=content.version, indexes_due=indexes_due
    )


def _load_part(environment: EnvironmentRef, name: str, content: Content) -> int:
    def records(member: str) -> Iterator[Mapping[str, Any]]:
        # A backup that is older than this member does not have it.
        return content.archive.json_lines(f"{member}.ndjson") if member in content.parts else iter(())

    try:
        return registered_parts[name].load(environment, records)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DamagedArchive(f"its {name} cannot be read") from error
