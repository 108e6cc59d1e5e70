"""Audit entries about changes in a region, written in the transaction of the change and moved to the control database
(`accounts.audit`) after its commit, by the same process or a periodic job. Moving an entry twice has no effect, because
its id is the same."""

from collections.abc import Sequence
from typing import Any, Final

from django.db import DEFAULT_DB_ALIAS, connections, transaction

from accounts import audit
from accounts.audit import Actor
from accounts.models import AuditEntry
from platform_site.background import dispatch
from platform_site.background.periodic import after_commit, log_failures
from platform_site.http.requests import current_request_id
from platform_site.identity.callers import Caller, EnvironmentRef
from rows.models import AuditOutboxEntry

BATCH: Final = 200
_JOB: Final = "an audit entry"


def record(environment: EnvironmentRef, action: str, *, actor: Caller | Actor, target_id: str, **detail: Any) -> None:
    """In the region's current transaction. Two statements, and two after the commit."""
    if audit.is_part_of_one_change():
        return
    using = environment.cluster
    entry = _insert(
        using,
        action,
        actor=actor,
        target_id=target_id,
        project_id=environment.project_id,
        environment_id=environment.environment_id,
        detail=detail,
    )
    entry.refresh_from_db(using=using, fields=["at"])
    after_commit(_JOB, _flush_now, using, entry, using=using, committed=using)


def record_system(using: str, action: str, *, target_id: str, environment_id: str, **detail: Any) -> None:
    """One statement; a worker moves the entry, so that a region need not wait."""
    _insert(
        using, action, actor=audit.SYSTEM, target_id=target_id, project_id=None, environment_id=environment_id,
        detail=detail,
    )  # fmt: skip
    dispatch.send("rows.tasks.flush_audit_outbox", using, using=using)


def _insert(using: str, action: str, *, actor: Caller | Actor, **facts: Any) -> AuditOutboxEntry:
    if not connections[using].in_atomic_block:
        raise transaction.TransactionManagementError("an audit entry belongs to the transaction of its change")
    return AuditOutboxEntry.objects.using(using).create(
        action=action, actor_kind=actor.kind, actor_id=actor.id, request_id=current_request_id(), **facts
    )


def _flush_now(using: str, entry: AuditOutboxEntry) -> None:
    # Never inside a transaction of the control database: its rollback would also undo the entry.
    after_commit(_JOB, _flush_and_delete, using, entry, using=DEFAULT_DB_ALIAS)


def _flush_and_delete(using: str, entry: AuditOutboxEntry) -> None:
    _flush([entry])
    with log_failures(_JOB, using=using):
        _delete(using, [entry])


def flush_oldest(using: str) -> int:
    """Moves at most BATCH entries; returns how many. Raises DatabaseError. Call it outside transactions."""
    found = list(AuditOutboxEntry.objects.using(using).order_by("pk")[:BATCH])
    if found:
        _flush(found)
        _delete(using, found)
    return len(found)


def _flush(found: Sequence[AuditOutboxEntry]) -> None:
    names = [field.attname for field in AuditOutboxEntry._meta.concrete_fields]
    with transaction.atomic(durable=True):
        audit.write_all(AuditEntry(**{name: getattr(each, name) for name in names}) for each in found)


def _delete(using: str, found: Sequence[AuditOutboxEntry]) -> None:
    AuditOutboxEntry.objects.using(using).filter(pk__in=[each.pk for each in found]).delete()
