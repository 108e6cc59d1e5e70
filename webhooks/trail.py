"""The trail of what workers do by themselves in a region: written down there with the change, and brought to the
control database afterwards.

Whoever empties a region's queue neither waits for another database nor leaves anything out because that is away.
`note` is called in the transaction of the change; `bring_over` by a task that is nudged after it, and by a sweep. Cut
off in between, an entry is brought once more, and is known by its id.
"""

from typing import Any, Final

from accounts import audit
from accounts.audit import SYSTEM
from accounts.models import AuditEntry
from webhooks.models import TrailEntry

BATCH: Final = 200


def note(using: str, action: str, *, target_id: str, environment_id: str, **detail: Any) -> None:
    """Write an entry down, in the region's transaction at hand. Arguments as of `audit.record`."""
    TrailEntry.objects.using(using).create(
        action=action, target_id=target_id, environment_id=environment_id, detail=detail
    )


def bring_over(using: str) -> int:
    """Bring the oldest entries of the region to the trail, at most BATCH. Returns how many.

    Raises DatabaseError, with no entry lost, if either database is away.
    """
    found = list(TrailEntry.objects.using(using).order_by("pk")[:BATCH])
    if not found:
        return 0
    audit.bring(
        AuditEntry(
            pk=each.pk,
            at=each.at,
            actor_kind=SYSTEM.kind,
            action=each.action,
            target_id=each.target_id,
            environment_id=each.environment_id,
            detail=each.detail,
        )
        for each in found
    )
    TrailEntry.objects.using(using).filter(pk__in=[each.pk for each in found]).delete()
    return len(found)
