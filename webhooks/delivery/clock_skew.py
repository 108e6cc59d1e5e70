"""Repairs due times and leases after the database clock was set back. A delivery created or attempted in the future, or
a lease longer than possible, proves that this happened."""

from datetime import timedelta
from typing import Any, Final

from django.conf import settings

from platform_site.postgres import statements
from webhooks.delivery.queue import WAITING

MAX_LEASE: Final = timedelta(hours=2)
"""Longer than any WEBHOOK_LEASE_SECONDS."""
PAGE: Final = 2000

_WEBHOOKS = f"WITH RECURSIVE {WAITING} SELECT webhook_id FROM waiting"  # noqa: S608
_REPAIR_PAGE = """
WITH page AS (
    SELECT d.id, d.next_attempt_at,
           d.claimed_until > now() + %(longest_lease)s
           OR d.next_attempt_at > now() AND greatest(d.created_at, d.last_attempt_at) > now() + interval '1 minute'
           AS is_in_future
      FROM platform.webhooks_delivery d
     WHERE d.webhook_id = %(webhook)s AND d.status = 'pending' AND d.next_attempt_at > %(after)s::timestamptz
     ORDER BY d.next_attempt_at FETCH FIRST (%(page)s) ROWS WITH TIES
), repaired AS (
    UPDATE platform.webhooks_delivery d
       SET next_attempt_at = least(d.next_attempt_at, now()),
           claimed_until = CASE WHEN d.claimed_until > now() THEN now() + %(lease)s END
     WHERE d.id = ANY (ARRAY (SELECT id FROM page WHERE is_in_future)) AND coalesce(d.status, '') = 'pending'
 RETURNING 1
)
SELECT (SELECT count(*) FROM page), (SELECT max(next_attempt_at) FROM page), (SELECT count(*) FROM repaired)
"""


def repair_future_times(using: str) -> int:
    """Make retries due now, and leases as long as new ones. Returns how many."""
    return sum(_repair(using, webhook_id) for webhook_id in statements.column(using, _WEBHOOKS))


def _repair(using: str, webhook_id: str) -> int:
    parameters: dict[str, Any] = {
        "webhook": webhook_id, "page": PAGE, "lease": settings.WEBHOOK_LEASE, "longest_lease": MAX_LEASE
    }  # fmt: skip
    total, after = 0, "-infinity"
    while True:
        examined, after, repaired = statements.row(using, _REPAIR_PAGE, parameters | {"after": after})
        total += int(repaired)
        if examined < PAGE:
            return total
