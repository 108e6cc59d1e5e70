"""Which ended runs go, in bounded batches: all of them after 7 days, found by the time in their ids; and of visitors'
runs those beyond the newest VISITS of an environment, however young: anybody makes as many as they like.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db import connections

from platform_site.api import ids
from platform_site.postgres.indexed import by_index

KEPT: Final = timedelta(days=7)
VISITS: Final = 10_000
"""In each environment. With `functions.visits.KEPT_BYTES` they bound what strangers may leave on the disk."""
BATCH: Final = 1000

_PURGE = """
DELETE FROM platform.functions_run
 WHERE id IN (SELECT id FROM platform.functions_run
               WHERE id < %(oldest)s AND phase = 'ended' AND ended_at < now() - %(age)s
               ORDER BY id LIMIT %(batch)s FOR UPDATE SKIP LOCKED)
"""
# In leaps from one environment with visits to the next, by the index `run_visit`. The environment is asked for by
# BETWEEN, since no other index has that order.
_CROWDED = """
WITH RECURSIVE reached AS (
    (SELECT environment_id FROM platform.functions_run WHERE caller_kind = 'anonymous' ORDER BY environment_id LIMIT 1)
    UNION ALL
    SELECT (SELECT r.environment_id FROM platform.functions_run r
             WHERE r.caller_kind = 'anonymous' AND r.environment_id > reached.environment_id
             ORDER BY r.environment_id LIMIT 1)
      FROM reached WHERE reached.environment_id IS NOT NULL
)
SELECT reached.environment_id, beyond.id
  FROM reached CROSS JOIN LATERAL (
       SELECT r.id FROM platform.functions_run r
        WHERE r.caller_kind = 'anonymous'
          AND r.environment_id BETWEEN reached.environment_id AND reached.environment_id
        ORDER BY r.environment_id DESC, r.id DESC OFFSET %s LIMIT 1) beyond
"""
_PURGE_VISITS = """
DELETE FROM platform.functions_run
 WHERE id IN (SELECT id FROM platform.functions_run
               WHERE caller_kind = 'anonymous' AND environment_id = %(environment_id)s AND id <= %(newest)s
                 AND phase = 'ended'
               ORDER BY id LIMIT %(batch)s FOR UPDATE SKIP LOCKED)
"""


def purge(using: str, *, older_than: timedelta = KEPT) -> int:
    """Forget ended runs that are older. Returns how many."""
    oldest = ids.earliest("run", datetime.now(UTC) - older_than)
    return _in_batches(using, _PURGE, {"oldest": oldest, "age": older_than})


def purge_visits(using: str, *, but: int = VISITS) -> int:
    """Forget ended runs of visitors `but` for the newest so many of each environment. Returns how many."""
    with by_index(using) as cursor:
        cursor.execute(_CROWDED, [but])
        crowded = cursor.fetchall()
    return sum(
        _in_batches(using, _PURGE_VISITS, {"environment_id": environment_id, "newest": newest})
        for environment_id, newest in crowded
    )


def _in_batches(using: str, statement: str, parameters: dict[str, Any]) -> int:
    gone = 0
    while True:
        with connections[using].cursor() as cursor:
            cursor.execute(statement, {**parameters, "batch": BATCH})
            gone += int(cursor.rowcount)
            if cursor.rowcount < BATCH:
                return gone
