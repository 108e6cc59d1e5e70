"""Retention of ended runs, in bounded batches. All runs are removed after 7 days. Earlier: anonymous callers' runs
beyond the newest MAX_ANONYMOUS_RUNS of an environment; and the oldest other runs, if an environment's history exceeds
the plan's `run_history_bytes`. In the last case the functions with the largest histories lose runs, down to a common
level that fits the budget, so that a burst of one function only removes its own history."""

import logging
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db import connections

from functions.models import Function
from platform_site.identity import ids
from platform_site.identity.plans import PLANS, plan_limits
from platform_site.postgres.transaction_settings import by_index
from projects.provisioning.suspension import plans_of_active

logger = logging.getLogger("platform.functions")

RETENTION: Final = timedelta(days=7)
MAX_ANONYMOUS_RUNS: Final = 10_000
"""Per environment. With `functions.runs.anonymous_retention.MAX_STORED_BYTES` it bounds the disk space of anonymous
callers."""
BATCH: Final = 1000

# An array, not `IN (SELECT … LIMIT …)`: a nested loop would execute that for each row and delete more than the limit.
_PURGE = """
DELETE FROM platform.functions_run
 WHERE id = ANY (ARRAY (SELECT id FROM platform.functions_run
                     WHERE id < %(oldest)s AND phase = 'ended' AND ended_at < now() - %(age)s
                     ORDER BY id LIMIT %(batch)s FOR UPDATE SKIP LOCKED))
"""
# A skip scan over the environments in the index `run_of_anonymous`. BETWEEN on the environment makes the planner use
# this index: no other has that order.
_OVER_LIMIT = """
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
_PURGE_ANONYMOUS = """
DELETE FROM platform.functions_run
 WHERE id = ANY (ARRAY (SELECT id FROM platform.functions_run
                     WHERE caller_kind = 'anonymous' AND environment_id = %(environment_id)s AND id <= %(newest)s
                       AND phase = 'ended'
                     ORDER BY id LIMIT %(batch)s FOR UPDATE SKIP LOCKED))
"""


def purge(using: str, *, older_than: timedelta = RETENTION) -> int:
    """Delete ended runs that are older than `older_than`. Returns how many."""
    oldest = ids.earliest("run", datetime.now(UTC) - older_than)
    return _in_batches(using, _PURGE, {"oldest": oldest, "age": older_than})


def purge_anonymous_runs(using: str, *, but: int = MAX_ANONYMOUS_RUNS) -> int:
    """Delete anonymous callers' ended runs except the newest `but` of each environment. Returns how many."""
    with by_index(using) as cursor:
        cursor.execute(_OVER_LIMIT, [but])
        over_limit = cursor.fetchall()
    return sum(
        _in_batches(using, _PURGE_ANONYMOUS, {"environment_id": environment_id, "newest": newest})
        for environment_id, newest in over_limit
    )


# A skip scan over the environments in the index `run_size_sample`, which has one entry per UNIT of history.
_WEIGHED = """
WITH RECURSIVE reached AS (
    (SELECT environment_id FROM platform.functions_run WHERE weight IS NOT NULL
      ORDER BY environment_id, function_id, id LIMIT 1)
    UNION ALL
    SELECT (SELECT r.environment_id FROM platform.functions_run r
             WHERE r.weight IS NOT NULL AND r.environment_id > reached.environment_id
             ORDER BY r.environment_id, r.function_id, r.id LIMIT 1)
      FROM reached WHERE reached.environment_id IS NOT NULL
)
SELECT environment_id, sums.functions, sums.weights
  FROM reached CROSS JOIN LATERAL (
       SELECT array_agg(function_id) AS functions, array_agg(weight) AS weights
         FROM (SELECT function_id, sum(weight)::bigint AS weight FROM platform.functions_run r
                WHERE r.weight IS NOT NULL
                  AND r.environment_id BETWEEN reached.environment_id AND reached.environment_id
                GROUP BY r.environment_id, r.function_id) each) sums
 WHERE (SELECT sum(weight) FROM unnest(sums.weights) weight) > %s
"""
_BEYOND = """
SELECT created_at
  FROM (SELECT id, created_at, sum(weight) OVER (ORDER BY id DESC) AS newer FROM platform.functions_run
         WHERE weight IS NOT NULL AND environment_id = %s AND function_id = %s) weighed
 WHERE newer > %s ORDER BY id DESC LIMIT 1
"""
_SHORTEN = """
DELETE FROM platform.functions_run
 WHERE id = ANY (ARRAY (SELECT id FROM platform.functions_run
                     WHERE function_id = %(function_id)s AND created_at <= %(until)s AND phase = 'ended'
                     ORDER BY created_at, id LIMIT %(batch)s FOR UPDATE SKIP LOCKED))
"""


def shorten(using: str) -> int:
    """Delete the oldest ended runs of environments whose history exceeds their plan. Returns how many. Reads plans from
    the control database if needed. Raises OperationalError while it is unavailable."""
    with by_index(using) as cursor:
        cursor.execute(_WEIGHED, [min(plan.run_history_bytes for plan in PLANS.values())])
        large = {environment_id: dict(zip(*weights, strict=True)) for environment_id, *weights in cursor.fetchall()}
    gone = 0
    for environment_id, plan in (plans_of_active(large) if large else {}).items():
        weights = large[environment_id]
        most = level(list(weights.values()), plan_limits(plan).run_history_bytes)
        for function_id in [each for each, weight in weights.items() if weight > most]:
            gone += _shorten(using, environment_id, function_id, most)
    return gone


def level(weights: list[int], budget: int) -> int:
    """The common maximum of each history so that their sum fits the budget."""
    left = budget
    for position, weight in enumerate(sorted(weights)):
        share = left // (len(weights) - position)
        if weight > share:
            return share
        left -= weight
    return budget


def shortened_at(function: Function) -> datetime | None:
    """The start of the function's history if runs of the last seven days were deleted, else None."""
    since = function.runs_since
    return since if since is not None and since > datetime.now(UTC) - RETENTION else None


def _shorten(using: str, environment_id: str, function_id: str, most: int) -> int:
    with by_index(using) as cursor:
        cursor.execute(_BEYOND, [environment_id, function_id, most])
        found = cursor.fetchone()
    if found is None:
        return 0
    # Recorded first: if interrupted between batches, the next check may find that enough was deleted, and not record
    # it.
    Function.objects.using(using).filter(pk=function_id).update(runs_since=found[0])
    gone = _in_batches(using, _SHORTEN, {"function_id": function_id, "until": found[0]})
    logger.warning(
        "the history of a function was shortened: it takes more than the plan allows",
        extra={"environment": environment_id, "function_id": function_id, "runs": gone},
    )
    return gone


def _in_batches(using: str, statement: str, parameters: dict[str, Any]) -> int:
    gone = 0
    while True:
        with connections[using].cursor() as cursor:
            cursor.execute(statement, {**parameters, "batch": BATCH})
            gone += int(cursor.rowcount)
            if cursor.rowcount < BATCH:
                return gone
