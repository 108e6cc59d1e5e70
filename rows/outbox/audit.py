"""The trail of what changes in a region: written down there in the transaction of the change, and brought to the
control database once that has committed.

    with transaction.atomic(using=place.cluster):
        …                                          # the change
        trail.record(place, "webhook.created", actor=actor, target_id=webhook.pk, url=webhook.url)

So an entry exists if and only if its change does, though the trail is in another database (`accounts.audit`). Whoever
changed something brings its entry at once; where the control database is away, or whoever it was died, `bring_oldest`
does it in a sweep. An entry is taken away here only after it was committed there. Cut off in between it is brought once
more, and is known by its id.
"""

from collections.abc import Sequence
from typing import Any, Final

from django.db import DEFAULT_DB_ALIAS, connections, models, transaction

from accounts import audit
from accounts.audit import Actor
from accounts.models import AuditEntry
from platform_site.background import dispatch
from platform_site.background.periodic import after_commit, apart
from platform_site.http.requests import current_request_id
from platform_site.identity.callers import Caller, Place
from rows.models import TrailEntry

BATCH: Final = 200
_WHAT: Final = "an entry of the trail"


def record(place: Place, action: str, *, actor: Caller | Actor, target_id: str, **detail: Any) -> None:
    """Write one entry, in the transaction at hand of the place's region. Two statements, and two after the commit,
    which fail nothing. `detail` as of `audit.record`."""
    using = place.cluster
    entry = _written(
        using,
        action,
        actor=actor,
        target_id=target_id,
        project_id=place.project_id,
        environment_id=place.environment_id,
        detail=detail,
    )
    entry.refresh_from_db(using=using, fields=["at"])
    after_commit(_WHAT, _bring_at_once, using, entry, using=using, committed=using)


def note(using: str, action: str, *, target_id: str, environment_id: str, **detail: Any) -> None:
    """Write an entry of what the system does by itself, in the region's transaction at hand, and let a worker bring
    it: for those who have a whole region waiting behind them. One statement."""
    _written(
        using, action, actor=audit.SYSTEM, target_id=target_id, project_id=None, environment_id=environment_id,
        detail=detail,
    )  # fmt: skip
    dispatch.send("rows.tasks.bring_trail", using, using=using)


def _written(using: str, action: str, *, actor: Caller | Actor, **facts: Any) -> TrailEntry:
    if not connections[using].in_atomic_block:
        raise transaction.TransactionManagementError("an entry of the trail belongs to the transaction of its change")
    return TrailEntry.objects.using(using).create(
        action=action, actor_kind=actor.kind, actor_id=actor.id, request_id=current_request_id(), **facts
    )


def _bring_at_once(using: str, entry: TrailEntry) -> None:
    # Never within somebody's transaction of the control database: rolled back, it would take along what was brought.
    after_commit(_WHAT, _hand_over, using, entry, using=DEFAULT_DB_ALIAS)


def _hand_over(using: str, entry: TrailEntry) -> None:
    _bring([entry])
    with apart(_WHAT, using=using):
        _forget(using, [entry])


def bring_oldest(using: str, of: type[models.Model] = TrailEntry, **also: Any) -> int:
    """Bring the oldest entries of the region's table `of`, at most BATCH, with the facts `also` that it has no columns
    for. Returns how many.

    Raises DatabaseError, with no entry lost, if either database is away. Must not be called within a transaction.
    """
    found = list(of._default_manager.using(using).order_by("pk")[:BATCH])
    if found:
        _bring(found, **also)
        _forget(using, found)
    return len(found)


def _bring(found: Sequence[Any], **also: Any) -> None:
    names = [field.attname for field in found[0]._meta.concrete_fields]
    with transaction.atomic(durable=True):
        audit.bring(AuditEntry(**{name: getattr(each, name) for name in names}, **also) for each in found)


def _forget(using: str, found: Sequence[Any]) -> None:
    type(found[0])._default_manager.using(using).filter(pk__in=[each.pk for each in found]).delete()
