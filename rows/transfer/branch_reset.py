"""The rows' part of a reset: copies of the parent's tables are made beside the branch's and exchanged at the end, in
one snapshot. The branch keeps its versions; the parent's document becomes the next one."""

from typing import Any

from accounts.audit import Actor
from platform_site.background.periodic import after_commit
from platform_site.identity.callers import Caller, EnvironmentRef
from projects.errors import TablesInUse
from projects.provisioning import branching
from rows.changes import watched_tables
from rows.migrate import apply, versions
from rows.migrate import service as schema_service
from rows.migrate.apply import LockNotAvailable
from rows.outbox import audit as audit_outbox
from rows.transfer import branch_copy
from rows.write.references import dangling_references


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
    began = dangling_references.control_time()
    try:
        branch_copy.lock_version(using, source.environment_id)
        wanted = versions.current(source).schema
        row = schema_service.locked_version(target)
        old = versions.current(target).schema
        beside = apply.create_schema(using, "reset")
        indexes_due = branch_copy.build_copy(using, source, target, wanted, data, into=beside)
        apply.exchange(using, target.environment_id, old, beside, wanted)
    except LockNotAvailable as error:
        raise TablesInUse from error
    name = f"reset from {source.environment_id}"
    version = versions.add_replacement(target, row, old, wanted, name, actor=actor, indexes_due=indexes_due)
    due = dangling_references.schedule(target, began)
    after_commit(
        f"references to deleted users in {target.environment_id}",
        dangling_references.remove_scheduled,
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
