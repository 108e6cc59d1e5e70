"""Leases of executing runs: the executing process renews its lease, and a run whose lease ran out is settled.

Called by `functions.runs.lease_renewer` and periodic jobs. `functions.runs.start` describes all transitions.
"""

from collections.abc import Collection
from datetime import timedelta
from typing import Any, Final

from django.conf import settings
from django.db import connections

from functions.runs.anonymous_retention import end_without_outcome
from functions.runs.completion import EVENT_OF_RUN
from functions.runs.start import Started

LOST_ATTEMPTS: Final = 3
"""How often a run is begun at all when workers keep dying under it."""

_RENEW = """
WITH ours AS (
    SELECT * FROM unnest(%(ids)s::text[], %(attempts)s::int[], %(functions)s::text[]) AS ours(id, attempt, function_id)
), renewed AS (
    UPDATE platform.functions_run r SET claimed_until = now() + %(lease)s
      FROM ours JOIN platform.functions_function f ON f.id = ours.function_id AND f.environment_id IS NOT NULL
     WHERE r.id = ours.id AND r.attempts = ours.attempt AND r.phase = 'executing'
 RETURNING r.id
)
SELECT id FROM renewed
 UNION ALL
SELECT ours.id FROM ours JOIN platform.functions_function f ON f.id = ours.function_id
 WHERE f.environment_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM platform.functions_run r WHERE r.id = ours.id)
"""
_CANCELLED = "SELECT id FROM platform.functions_run WHERE id = ANY (%s) AND cancel_requested_at IS NOT NULL"


def renew(using: str, executing: Collection[Started]) -> set[str]:
    """Hold the leases of these runs for another while. Returns the ids of those that are still ours.

    One that a crash of PostgreSQL forgot is (`begin`); one that went with its function is not.
    """
    parameters: dict[str, Any] = {
        "lease": settings.FUNCTION_LEASE,
        "ids": [started.run_id for started in executing],
        "attempts": [started.attempt for started in executing],
        "functions": [started.function_id for started in executing],
    }
    with connections[using].cursor() as cursor:
        cursor.execute(_RENEW, parameters)
        return {run_id for (run_id,) in cursor.fetchall()}


def cancelled_among(using: str, run_ids: list[str]) -> list[str]:
    """Which of these executing runs are cancelled."""
    with connections[using].cursor() as cursor:
        cursor.execute(_CANCELLED, [run_ids])
        return [run_id for (run_id,) in cursor.fetchall()]


_LOST = f"""
WITH lost AS (
    SELECT id, is_async AND attempts < %(most)s AND cancel_requested_at IS NULL AS is_retried,
           cancel_requested_at IS NOT NULL AS is_cancelled
      FROM platform.functions_run
     WHERE phase = 'executing' AND claimed_until < now()
     ORDER BY claimed_until LIMIT 500 FOR UPDATE SKIP LOCKED
), again AS (
    UPDATE platform.functions_run r SET phase = 'queued', slot = NULL, claimed_until = NULL
      FROM lost WHERE r.id = lost.id AND lost.is_retried
    RETURNING r.id
), failed AS (
    UPDATE platform.functions_run r
       SET status = 'failed', phase = 'ended', slot = NULL, ended_at = now(), claimed_until = NULL,
           {end_without_outcome()},
           -- The service may have stood still for longer than the 24 days that the column holds.
           duration_ms = least(extract(epoch FROM now() - r.started_at) * 1000, 2147483647),
           error = CASE WHEN lost.is_cancelled
                        THEN '{{"name": "Cancelled", "reason": "cancelled", "message": "the run was cancelled"}}'
                        ELSE '{{"name": "WorkerLost", "reason": "worker_lost",
                               "message": "the process that executed the run died"}}' END::jsonb
      FROM lost WHERE r.id = lost.id AND NOT lost.is_retried
    RETURNING r.id, r.environment_id, r.function_id, r.version, r.request_id, r.depth, r.duration_ms, r.error
), told AS ({EVENT_OF_RUN})
SELECT (SELECT count(*) FROM again), (SELECT count(*) FROM failed), (SELECT count(*) FROM told)
"""  # noqa: S608 - constants


def settle_lost(using: str) -> tuple[int, int, int]:
    """Settle runs whose lease ran out: async ones are queued again, others end as `worker_lost`.

    Returns how many were queued again, how many failed, and how many of those have subscribers.
    """
    with connections[using].cursor() as cursor:
        cursor.execute(_LOST, {"most": LOST_ATTEMPTS})
        again, failed, told = cursor.fetchone()
    return int(again), int(failed), int(told)


_REPAIR_FUTURE_TIMES = """
UPDATE platform.functions_run
   SET claimed_until = now() + CASE WHEN phase = 'executing' THEN %(lease)s ELSE interval '0' END
  -- Spelled so that each half has its partial index: the history is not read.
 WHERE phase = 'executing' AND claimed_until > now() + %(longest)s
    OR phase = 'queued' AND claimed_until > now() + %(longest)s
"""
_LONGEST_LEASE: Final = timedelta(hours=2)
"""Beyond what FUNCTION_LEASE_SECONDS may be, in any process, and beyond any wait for the next attempt."""


def repair_future_times(using: str) -> int:
    """Bring back what a clock of PostgreSQL has put off that was set back since: attempts are due now, and leases last
    as long as a new one, since their workers may be alive. Returns how many. Reads all that has not ended."""
    parameters: dict[str, Any] = {"lease": settings.FUNCTION_LEASE, "longest": _LONGEST_LEASE}
    with connections[using].cursor() as cursor:
        cursor.execute(_REPAIR_FUTURE_TIMES, parameters)
        return int(cursor.rowcount)
