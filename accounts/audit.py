"""The audit log: one append-only row per change, in the transaction of the change. Changes in a region write their
entry there, and `rows.outbox.audit` moves it here. Actions are `<object>.<past participle>`: `key.issued`,
`user.disabled`. Secrets never enter `detail`."""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from django.db.models import Model

from accounts.models import AuditEntry, User
from platform_site.http.requests import current_request_id
from platform_site.identity.callers import Caller

ActorKind = Literal["account", "user", "key", "staff", "system"]


@dataclass(frozen=True, slots=True)
class Actor:
    kind: ActorKind
    id: str | None = None

    @classmethod
    def of(cls, user: User) -> "Actor":
        return cls("user" if user.environment_id else "account", user.pk)

    @classmethod
    def staff(cls, user: User) -> "Actor":
        return cls("staff", user.pk)


SYSTEM = Actor("system")


_is_part: Final = ContextVar("_is_part", default=False)


@contextmanager
def part_of_one_change() -> Generator[None]:
    """Within the block, changes leave no entries: they are parts of one change, which leaves its own entry."""
    token = _is_part.set(True)
    try:
        yield
    finally:
        _is_part.reset(token)


def is_part_of_one_change() -> bool:
    return _is_part.get()


def record(
    action: str,
    target: Model | str | None,
    *,
    actor: Caller | Actor,
    project_id: str | None = None,
    environment_id: str | None = None,
    **detail: Any,
) -> AuditEntry:
    """Write one entry about `target`, an object or its id, in the current control transaction. Default project and
    environment: the target's, else the caller's."""
    environment = actor.environment if isinstance(actor, Caller) else None
    if isinstance(target, Model):
        project_id = project_id or getattr(target, "project_id", None)
        environment_id = environment_id or getattr(target, "environment_id", None)
    entry = AuditEntry(
        actor_kind=actor.kind,
        actor_id=actor.id,
        action=action,
        target_id=target.pk if isinstance(target, Model) else target,
        project_id=project_id or (environment.project_id if environment else None),
        environment_id=environment_id or (environment.environment_id if environment else None),
        detail=detail,
        request_id=current_request_id(),
    )
    if not is_part_of_one_change():
        entry.save(force_insert=True)
    return entry


def write_all(entries: Iterable[AuditEntry]) -> None:
    """Write entries that were made elsewhere; existing ones stay as they are. One INSERT."""
    AuditEntry.objects.bulk_create(entries, ignore_conflicts=True)


def users_deleted(pool_id: str, since: datetime) -> list[str]:
    entries = AuditEntry.objects.filter(action="user.deleted", environment_id=pool_id, at__gte=since)
    return [user_id for user_id in entries.order_by("at", "id").values_list("target_id", flat=True) if user_id]
