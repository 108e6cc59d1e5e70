"""The rows' part of a reset: copies of the parent's tables are made beside the branch's and exchanged at the end, in
one snapshot. The branch keeps its versions; the parent's document becomes the next one."""

from typing import Any

from django.db import connections
from psycopg import sql

from accounts.audit import Actor
from platform_site.background.periodic import after_commit
from platform_site.identity import ids
from platform_site.identity.callers import Caller, EnvironmentRef
from projects.errors import TablesInUse
from projects.provisioning import branching
from rows.changes import watched_tables
from rows.migrate import apply, versions
from rows.migrate import service as schema_service
from rows.migrate.apply import LockNotAvailable
from rows.outbox import audit as audit_outbox
from rows.transfer import branch_copy
from rows.write.references import deleted_users


def follow_reset(
    *,
    source: EnvironmentRef,
    target: EnvironmentRef,
    data: branching.Data,
    actor: Caller | Actor | None,
    using: str,
    **_: Any,
) -> None:
    """Receiver of `environment_reset`. Raises TablesInUse, SourceGone, BranchDeleted."""
    try:
        _reset(source, target, data, actor, using)
    except (LockNotAvailable, schema_service.TablesBusy) as error:
        raise TablesInUse from error


def _reset(
    source: EnvironmentRef, target: EnvironmentRef, data: branching.Data, actor: Caller | Actor | None, using: str
) -> None:
    connection = connections[using]
    began = deleted_users.now()
    branch_copy.lock_version(connection, source.environment_id)
    wanted = versions.current(source).schema
    row = schema_service.locked_version(target)
    old = versions.current(target).schema
    beside = f"reset_{ids.suffix()}"
    with connection.cursor() as cursor:
        cursor.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(beside)))
    indexes_due = branch_copy.build_copy(connection, source, target, wanted, data, into=beside)
    apply.exchange(connection, target.environment_id, old, beside, wanted)
    name = f"reset from {source.environment_id}"
    version = versions.add_replacement(target, row, old, wanted, name, actor=actor, indexes_due=indexes_due)
    due = deleted_users.schedule(target, began)
    after_commit(
        f"references to deleted users in {target.environment_id}",
        deleted_users.settle,
        target,
        due,
        using=using,
        committed=using,
    )
    watched_tables.invalidate_positions(target.environment_id, using)
    if actor is not None:
        audit_outbox.record(
            target,
            "environment.reset",
            actor=actor,
            target_id=target.environment_id,
            source=source.environment_id,
            data=data,
            version=version,
        )
