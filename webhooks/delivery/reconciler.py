"""Applies a change of a webhook (disable, enable, drop, resend) to its pending deliveries, in batches.

The request that changes a webhook updates that row and at most one batch of deliveries. From its commit on, every claim
checks the webhook itself (`webhooks.delivery.queue`); the status of its deliveries follows:

    disabled        pending deliveries that no worker holds become held
    enabled         held deliveries become pending again, in the order of their events, with all attempts left
    drop_before     deliveries created before that time, held or pending, are dropped; nothing is sent until then
    recover_from    deliveries created since that time that failed become pending again

Several of these are applied in the order drop, resend, hold or release. Each batch is one transaction that reads the
webhook under a lock, so the work can be interrupted anywhere and continued by another worker. It also repairs what a
race leaves: a relay that read the webhook before the change, or a worker that died between a 410 and the disabling.
"""

import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from django.db import connections, transaction
from django.db.backends.utils import CursorWrapper

from platform_site.background.skip_scan import UNCLAIMED, first_of_each

BATCH: Final = 1000
FIRST: Final = 200
"""Deliveries that the changing request updates itself: enough for nearly all webhooks, and about 20 ms."""
SECONDS: Final = 5.0
"""A periodic run stops after this many seconds and leaves the rest to the next run."""
MAX_ATTEMPTS: Final = 1000
"""Of one delivery, over all schedules that were begun for it; then it is not sent again, whoever asks. Its attempts are
numbered by a column that ends at 32,767, and a claim that met that number would fail for all of the region."""

NOT_QUEUED = f"""
WITH RECURSIVE {first_of_each("holding", "held", "sequence")},
{first_of_each("waiting", "pending", "next_attempt_at")}
SELECT w.id FROM holding JOIN platform.webhooks_webhook w ON w.id = holding.webhook_id
 WHERE w.enabled AND w.deleted_at IS NULL
 UNION
SELECT w.id FROM waiting JOIN platform.webhooks_webhook w ON w.id = waiting.webhook_id
 WHERE NOT w.enabled AND w.deleted_at IS NULL
 UNION
SELECT w.id FROM platform.webhooks_webhook w
 WHERE (w.drop_before IS NOT NULL OR w.recover_from IS NOT NULL) AND w.deleted_at IS NULL
"""  # noqa: S608 - constants
# The lock conflicts only with changes of the webhook itself.
_STATE = """
SELECT enabled, drop_before, recover_from, recover_until FROM platform.webhooks_webhook
 WHERE id = %(webhook)s AND deleted_at IS NULL FOR KEY SHARE SKIP LOCKED
"""

# In all of these the deliveries are found through the partial index that the order asks for, and changed by their ids
# alone: without statistics the planner would take the index of a webhook's whole history.
HOLD = f"""
WITH found AS (
    SELECT d.id FROM platform.webhooks_delivery d
     WHERE d.webhook_id = %(webhook)s AND d.status = 'pending' AND {UNCLAIMED}
     ORDER BY d.next_attempt_at LIMIT %(batch)s FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE platform.webhooks_delivery d
   SET status = 'held', outcome = 'the webhook is disabled', claimed_until = NULL
 WHERE d.id = ANY (ARRAY (SELECT id FROM found))
"""  # noqa: S608 - constants
# Due at once, but each a little later than the event before it, since claims go by that time. By how much is looked up
# in an object: a join of a thousand with as many is planned badly without statistics, and reads the table with some.
_POSITIONS = """
    SELECT jsonb_object_agg(id, later) AS of_each
      FROM (SELECT id, row_number() OVER (ORDER BY sequence DESC) AS later FROM to_be_sent) AS numbered"""
_AGAIN = """
       status = 'pending', claimed_until = NULL, schedule_from = d.attempts,
       next_attempt_at = now() - ((SELECT of_each FROM places) ->> d.id)::int * interval '1 microsecond'"""
RELEASE = f"""
WITH locked AS (
    SELECT d.id, d.sequence, d.attempts FROM platform.webhooks_delivery d
     WHERE d.webhook_id = %(webhook)s AND d.status = 'held'
     ORDER BY d.sequence LIMIT %(batch)s FOR NO KEY UPDATE SKIP LOCKED
), to_be_sent AS (
    SELECT id, sequence FROM locked WHERE attempts < %(most)s::int
), places AS ({_POSITIONS}
), released AS (
    UPDATE platform.webhooks_delivery d SET {_AGAIN} WHERE d.id = ANY (ARRAY (SELECT id FROM to_be_sent))
), given_up AS (
    UPDATE platform.webhooks_delivery d
       SET status = 'exhausted', outcome = 'attempted ' || %(most)s::int || ' times or more'
     WHERE d.id = ANY (ARRAY (SELECT id FROM locked WHERE attempts >= %(most)s::int))
)
SELECT count(*) FROM locked
"""  # noqa: S608 - constants
_TO_BE_DROPPED = f"""
    (SELECT d.id FROM platform.webhooks_delivery d
      WHERE d.webhook_id = %(webhook)s AND d.status = 'held' AND d.created_at < %(drop_before)s
      ORDER BY d.sequence LIMIT %(batch)s)
     UNION ALL
    (SELECT d.id FROM platform.webhooks_delivery d
      WHERE d.webhook_id = %(webhook)s AND d.status = 'pending' AND {UNCLAIMED} AND d.created_at < %(drop_before)s
      ORDER BY d.next_attempt_at LIMIT %(batch)s)"""  # noqa: S608 - constants
DROP = f"""
WITH found AS ({_TO_BE_DROPPED} LIMIT %(batch)s), locked AS (
    SELECT d.id FROM platform.webhooks_delivery d
     WHERE d.id = ANY (ARRAY (SELECT id FROM found)) AND coalesce(d.status, '') IN ('held', 'pending') AND {UNCLAIMED}
       FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE platform.webhooks_delivery d SET status = 'dropped', outcome = 'dropped on request', claimed_until = NULL
 WHERE d.id = ANY (ARRAY (SELECT id FROM locked))
"""  # noqa: S608 - constants
# What another process is dropping at this moment is there still, should that process fail.
_END_DROPPING = f"""
UPDATE platform.webhooks_webhook SET drop_before = NULL
 WHERE id = %(webhook)s AND NOT EXISTS ({_TO_BE_DROPPED})
"""  # noqa: S608 - constants
RECOVER = f"""
WITH looked_at AS (
    SELECT d.id, d.created_at, d.attempts < %(most)s::int AND d.body <> '' AS may_be_sent
      FROM platform.webhooks_delivery d
     WHERE d.webhook_id = %(webhook)s AND d.status IN ('exhausted', 'dropped')
       AND d.created_at >= %(recover_from)s AND d.created_at < %(recover_until)s
       AND coalesce(d.last_attempt_at, '-infinity') < %(recover_until)s
     ORDER BY d.created_at FETCH FIRST (%(batch)s) ROWS WITH TIES
), to_be_sent AS (
    SELECT d.id, d.sequence FROM platform.webhooks_delivery d
     WHERE d.id = ANY (ARRAY (SELECT id FROM looked_at WHERE may_be_sent))
       AND coalesce(d.status, '') IN ('exhausted', 'dropped')
     ORDER BY d.id FOR NO KEY UPDATE
), places AS ({_POSITIONS}
), recovered AS (
    UPDATE platform.webhooks_delivery d SET {_AGAIN} WHERE d.id = ANY (ARRAY (SELECT id FROM to_be_sent))
)
SELECT (SELECT count(*) FROM looked_at), (SELECT max(created_at) FROM looked_at), (SELECT count(*) FROM to_be_sent)
"""  # noqa: S608 - constants
_MOVE_ON = """
UPDATE platform.webhooks_webhook SET recover_from = %(reached)s + interval '1 microsecond' WHERE id = %(webhook)s
"""
_END_RECOVERING = """
UPDATE platform.webhooks_webhook SET recover_from = NULL, recover_until = NULL WHERE id = %(webhook)s
"""


@dataclass(frozen=True, slots=True)
class Step:
    """One batch."""

    changed: int
    is_last: bool
    """As far as could be seen the webhook has nothing more to be done."""


def settle(using: str, *, batch: int = BATCH, seconds: float = SECONDS) -> int:
    """Bring deliveries in line with their webhooks, a batch of each in turn, until nothing is left to do or the time is
    over. Returns how many were changed."""
    with connections[using].cursor() as cursor:
        cursor.execute(NOT_QUEUED)
        waiting = deque(webhook_id for (webhook_id,) in cursor.fetchall())
    changed, end = 0, time.monotonic() + seconds
    while waiting and time.monotonic() < end:
        webhook_id = waiting.popleft()
        step = settle_one(using, webhook_id, batch=batch)
        changed += step.changed
        if not step.is_last:
            waiting.append(webhook_id)
    return changed


def settle_one(using: str, webhook_id: str, *, batch: int) -> Step:
    """One batch of one webhook's deliveries, in a transaction. Does nothing if the webhook is being changed or is
    deleted."""
    facts: dict[str, Any] = {"webhook": webhook_id, "batch": batch, "most": MAX_ATTEMPTS}
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute(_STATE, facts)
        standing = cursor.fetchone()
        if standing is None:
            return Step(0, is_last=True)
        enabled, *order = standing
        facts |= zip(("drop_before", "recover_from", "recover_until"), order, strict=True)
        if facts["drop_before"] is not None:
            return _drop(cursor, facts)
        if facts["recover_from"] is not None:
            return _recover(cursor, facts)
        if enabled:
            cursor.execute(RELEASE, facts)
            (changed,) = cursor.fetchone()
        else:
            cursor.execute(HOLD, facts)
            changed = cursor.rowcount
        return Step(changed, is_last=changed < batch)


def _drop(cursor: CursorWrapper, facts: dict[str, Any]) -> Step:
    cursor.execute(DROP, facts)
    changed = cursor.rowcount
    if changed == facts["batch"]:
        return Step(changed, is_last=False)
    cursor.execute(_END_DROPPING, facts)
    return Step(changed, is_last=cursor.rowcount == 0)


def _recover(cursor: CursorWrapper, facts: dict[str, Any]) -> Step:
    cursor.execute(RECOVER, facts)
    looked_at, reached, changed = cursor.fetchone()
    if looked_at >= facts["batch"]:
        cursor.execute(_MOVE_ON, facts | {"reached": reached})
    else:
        cursor.execute(_END_RECOVERING, facts)
    return Step(changed, is_last=False)
