"""What ends by itself, in bounded batches: held events after 7 days, deliveries and relayed events after their time.

Time counts neither for what a suspended project holds, nor for the record of what was sent late because of it.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db import connections

from platform_site.background.skip_scan import UNCLAIMED, first_of_each
from platform_site.identity import ids
from platform_site.postgres.planner_hints import by_index
from projects.provisioning.suspension import not_suspended

BATCH: Final = 1000

# What was sent again is older than the wait: that began when it was last due. What an enabled webhook has is about to
# be let go, however old.
_EXPIRE = f"""
WITH RECURSIVE {first_of_each("holding", "held", "sequence")}, expired AS (
    SELECT of_one.id
      FROM holding JOIN platform.webhooks_webhook w ON w.id = holding.webhook_id, LATERAL (
           SELECT d.id FROM platform.webhooks_delivery d
            WHERE d.webhook_id = w.id AND d.status = 'held'
              AND greatest(d.created_at, d.next_attempt_at) < now() - %(age)s
            ORDER BY greatest(d.created_at, d.next_attempt_at) LIMIT %(batch)s) AS of_one
     WHERE NOT w.enabled AND w.deleted_at IS NULL AND w.environment_id <> ALL (%(spared)s::text[])
     LIMIT %(batch)s
), locked AS (
    SELECT d.id FROM platform.webhooks_delivery d
     WHERE d.id = ANY (ARRAY (SELECT id FROM expired)) AND coalesce(d.status, '') = 'held'
       FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE platform.webhooks_delivery d SET status = 'dropped', outcome = 'held longer than 7 days'
 WHERE d.id = ANY (ARRAY (SELECT id FROM locked))
"""  # noqa: S608 - constants
# A page of the oldest, and of it what is over: what is not may lie there for months, and is passed once. The page has
# no upper end: without statistics the planner expects little between two ids, and reads all there is.
_IS_OVER = "d.status NOT IN ('pending', 'held') AND greatest(d.created_at, d.last_attempt_at) < now() - %(age)s"
_PURGE_DELIVERIES = f"""
WITH page AS (
    SELECT d.id, d.id < %(oldest)s AND {_IS_OVER} AS is_over FROM platform.webhooks_delivery d
     WHERE d.id > %(after)s ORDER BY d.id LIMIT %(batch)s
), old AS (
    SELECT d.id FROM platform.webhooks_delivery d
     WHERE d.id = ANY (ARRAY (SELECT id FROM page WHERE is_over)) AND {_IS_OVER} FOR UPDATE SKIP LOCKED
), tries AS (
    DELETE FROM platform.webhooks_attempt WHERE delivery_id = ANY (ARRAY (SELECT id FROM old))
), gone AS (
    DELETE FROM platform.webhooks_delivery WHERE id = ANY (ARRAY (SELECT id FROM old)) RETURNING 1
)
SELECT (SELECT max(id) FROM page), (SELECT count(*) = %(batch)s AND max(id) < %(oldest)s FROM page),
       (SELECT count(*) FROM gone)
"""  # noqa: S608 - constants
# An array, not `IN (SELECT … LIMIT …)`: a nested loop would run that for each row, and delete more than the limit.
_PURGE_EVENTS = """
DELETE FROM platform.rows_outboxevent
 WHERE sequence = ANY (ARRAY (SELECT sequence FROM platform.rows_outboxevent WHERE relayed_at < now() - %(age)s
                           ORDER BY relayed_at LIMIT %(batch)s FOR UPDATE SKIP LOCKED))
"""
_EMPTY_DELETED = f"""
WITH found AS (
    SELECT of_one.id
      FROM platform.webhooks_webhook w, LATERAL (
           SELECT d.id FROM platform.webhooks_delivery d WHERE d.webhook_id = w.id AND {UNCLAIMED}
            ORDER BY d.created_at DESC, d.id DESC LIMIT %(batch)s) AS of_one
     WHERE w.deleted_at < now() - interval '1 minute' LIMIT %(batch)s
), orphans AS (
    SELECT d.id FROM platform.webhooks_delivery d
     WHERE d.id = ANY (ARRAY (SELECT id FROM found)) AND {UNCLAIMED} FOR UPDATE SKIP LOCKED
), tries AS (
    DELETE FROM platform.webhooks_attempt WHERE delivery_id = ANY (ARRAY (SELECT id FROM orphans))
)
DELETE FROM platform.webhooks_delivery WHERE id = ANY (ARRAY (SELECT id FROM orphans))
"""  # noqa: S608 - constants
_REMOVE_DELETED = """
DELETE FROM platform.webhooks_webhook w
 WHERE w.deleted_at < now() - interval '1 minute'
   AND NOT EXISTS (SELECT 1 FROM platform.webhooks_delivery d WHERE d.webhook_id = w.id)
"""


def expire_held(using: str, *, older_than: timedelta) -> int:
    """Drop, visibly, what a disabled webhook has held for too long. Returns how many. Who was suspended has that time
    anew."""
    return _repeat(using, _EXPIRE, {"age": older_than, "spared": not_suspended(using, older_than)})


def purge(using: str, *, older_than: timedelta) -> int:
    """Forget deliveries that have ended and events that are relayed. Returns how many rows went."""
    # Ids begin with their time, so the oldest deliveries are found by the primary key; whether they are old is for the
    # database's clock to say, since both who made an id and we may have a wrong one.
    oldest = ids.earliest("dlv", datetime.now(UTC) - older_than)
    gone = _purge_deliveries(using, {"oldest": oldest, "age": older_than, "batch": BATCH})
    return gone + _repeat(using, _PURGE_EVENTS, {"age": older_than})


def _purge_deliveries(using: str, facts: dict[str, Any]) -> int:
    total, after, is_more = 0, "", True
    while is_more:
        with by_index(using) as cursor:
            cursor.execute(_PURGE_DELIVERIES, facts | {"after": after})
            after, is_more, gone = cursor.fetchone()
        total += int(gone)
    return total


def remove_deleted(using: str) -> int:
    """Remove webhooks marked as deleted, with their deliveries, once nothing of them can be in flight."""
    _repeat(using, _EMPTY_DELETED, {})
    with connections[using].cursor() as cursor:
        cursor.execute(_REMOVE_DELETED)
        return int(cursor.rowcount)


def _repeat(using: str, statement: str, parameters: dict[str, Any]) -> int:
    """Run the statement, batch after batch, until it finds nothing more."""
    total = 0
    while True:
        with connections[using].cursor() as cursor:
            cursor.execute(statement, {**parameters, "batch": BATCH})
            count = int(cursor.rowcount)
        total += count
        if count < BATCH:
            return total
