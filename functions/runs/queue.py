"""Which queued run is executed next: claimed by a worker, and put back where its attempt did not count or failed.

Called by `functions.worker`. See `functions.runs.start` for what holds of all transitions.
"""

import threading
from datetime import timedelta
from typing import Any, Final

import orjson
from django.db import IntegrityError, connections

from functions.runs.start import REACHES, Started, lease_values, number_of, secrets_of, text_of
from platform_site.postgres import prepared
from projects.provisioning.suspension import suspended_in

# A skip scan from one environment to the next: no backlog is scanned, least of all that of a suspended one.
WAITING: Final = """
RECURSIVE reached AS (
    (SELECT environment_id FROM platform.functions_run WHERE phase = 'queued' ORDER BY environment_id LIMIT 1)
    UNION ALL
    SELECT (SELECT r.environment_id FROM platform.functions_run r
             WHERE r.phase = 'queued' AND r.environment_id > reached.environment_id ORDER BY r.environment_id LIMIT 1)
      FROM reached WHERE reached.environment_id IS NOT NULL
), waiting AS (
    SELECT environment_id FROM reached WHERE environment_id <> ALL ({suspended}::text[])
)"""
"""A common table expression: the environments with queued runs, but for those that are `suspended` (a parameter)."""
# The order by kind and time is that of the index `run_turn_of_crowd`: no backlog is sorted, and that of anonymous
# callers and events is not scanned. Others take the first half of the slots (`functions.runs.start`) last.
_CLAIM: Final = b"""
WITH %b, turns AS (
    SELECT due.environment_id, due.created_at, busy.runs
      FROM waiting
     CROSS JOIN LATERAL (
           SELECT r.environment_id, r.created_at, r.concurrency FROM platform.functions_run r
            WHERE r.phase = 'queued' AND r.environment_id = waiting.environment_id
              AND (r.claimed_until IS NULL OR r.claimed_until < now())
              AND EXISTS (SELECT FROM platform.functions_function f WHERE f.id = r.function_id
                             AND f.environment_id IS NOT NULL)
            ORDER BY (r.caller_kind = 'anonymous' OR r.trigger = 'event'), coalesce(r.turn_at, r.created_at)
            LIMIT 1) due
     CROSS JOIN LATERAL (
           SELECT count(*) AS runs, count(*) FILTER (WHERE b.slot >= -due.concurrency) AS taken
             FROM platform.functions_run b
            WHERE b.environment_id = waiting.environment_id AND b.slot < 0) busy
     WHERE busy.taken < due.concurrency
     ORDER BY busy.runs, due.created_at
     LIMIT 4
), next AS (
    SELECT r.id, r.free
      FROM turns
     CROSS JOIN LATERAL (
           SELECT q.id,
                  (SELECT -free FROM generate_series(1, q.concurrency) free
                    WHERE NOT EXISTS (SELECT 1 FROM platform.functions_run taken
                                       WHERE taken.environment_id = q.environment_id AND taken.slot = -free)
                    ORDER BY free <= q.concurrency / 2, random() LIMIT 1) AS free
             FROM platform.functions_run q
            WHERE q.phase = 'queued' AND q.environment_id = turns.environment_id
              AND (q.claimed_until IS NULL OR q.claimed_until < now())
              AND EXISTS (SELECT FROM platform.functions_function f WHERE f.id = q.function_id
                             AND f.environment_id IS NOT NULL)
            ORDER BY (q.caller_kind = 'anonymous' OR q.trigger = 'event'), coalesce(q.turn_at, q.created_at) LIMIT 1
              FOR UPDATE OF q SKIP LOCKED) r
     WHERE r.free IS NOT NULL
     ORDER BY turns.runs, turns.created_at
     LIMIT 1
)
UPDATE platform.functions_run r
   SET phase = 'executing', slot = next.free, attempts = r.attempts + 1, started_at = coalesce(r.started_at, now()),
       claimed_until = now() + least(f.timeout_ms * interval '1 ms' + $1::interval, $2::interval)
  FROM next, platform.functions_function f, platform.functions_version v
 WHERE r.id = next.id AND f.id = r.function_id AND v.function_id = f.id AND v.number = r.version
RETURNING r.id, r.attempts, r.environment_id, f.id, f.name, r.version, v.source_hash, f.timeout_ms, f.memory_mb,
          array_to_json(f.allowed_hosts),
          (SELECT jsonb_object_agg(s.name, encode(s.sealed_value, 'hex'))
             FROM platform.functions_secret s WHERE s.function_id = f.id AND s.sealed_value IS NOT NULL),
          r.input, r.depth, r.caller_kind, r.caller_id, r.trigger,
          NOT EXISTS (SELECT FROM waiting CROSS JOIN LATERAL (
                      SELECT FROM platform.functions_run other
                       WHERE other.phase = 'queued' AND other.environment_id = waiting.environment_id
                         AND other.id <> r.id AND (other.claimed_until IS NULL OR other.claimed_until < now())
                       ORDER BY (other.caller_kind = 'anonymous' OR other.trigger = 'event'),
                                coalesce(other.turn_at, other.created_at)
                       LIMIT 1) first)
""" % WAITING.format(suspended="$3").encode()
_IS_DUE: Final = f"""
WITH {WAITING.format(suspended="%s")}
SELECT EXISTS (SELECT FROM waiting CROSS JOIN LATERAL (
               SELECT FROM platform.functions_run r
                WHERE r.phase = 'queued' AND r.environment_id = waiting.environment_id
                  AND (r.claimed_until IS NULL OR r.claimed_until < now())
                ORDER BY (r.caller_kind = 'anonymous' OR r.trigger = 'event'), coalesce(r.turn_at, r.created_at)
                LIMIT 1) first)
"""  # noqa: S608 - constants
_claiming: Final[dict[str, threading.Lock]] = {}
# By region. Two that claim at the same moment mostly reach for the same slot: the second would wait for the first's
# commit, fail, and start over. Between processes that is left to happen.


def claim(using: str) -> tuple[Started, bool] | None:
    """Claim a queued run of the region that may execute now, and whether it was the last; None if there is none.

    Environments take turns: first the one with the fewest queued runs executing, then the longest waiting, so that one
    tenant's backlog never delays another's. Within an environment the oldest run comes first; runs of anonymous callers
    and events come after all other due runs, and among them each network's runs are spaced out
    (`functions.runs.start`). Suspended environments are skipped. The claim is on disk when this returns: after a crash
    of PostgreSQL the run would otherwise be claimed again with the same attempt number.
    """
    suspended = b"{%b}" % ",".join(suspended_in(using)).encode()
    for _ in range(REACHES):
        try:
            with _claiming.setdefault(using, threading.Lock()):
                found = prepared.run(using, _CLAIM, [*lease_values(), suspended])
        except IntegrityError:  # another worker took that slot at the same moment
            continue
        break
    else:
        return None
    if not found:
        return None
    [row] = found
    run_id, attempt, environment_id, function_id, name, version, source_hash, timeout_ms, memory_mb = row[:9]
    hosts, secrets, input_text, depth, caller_kind, caller_id, trigger, is_last = row[9:]
    started = Started(
        run_id=text_of(run_id),
        attempt=number_of(attempt),
        environment_id=text_of(environment_id),
        function_id=text_of(function_id),
        function_name=text_of(name),
        version=number_of(version),
        source_hash=text_of(source_hash),
        timeout_ms=number_of(timeout_ms),
        memory_mb=number_of(memory_mb),
        allowed_hosts=tuple(orjson.loads(hosts or b"[]")),
        sealed_secrets=secrets_of(secrets),
        input_text=text_of(input_text),
        depth=number_of(depth),
        is_async=True,
        caller_kind=text_of(caller_kind),
        caller_id=text_of(caller_id),
        cluster=using,
        trigger=text_of(trigger),
    )
    return started, is_last == b"t"


def is_due(using: str) -> bool:
    """Whether `claim` would look for a slot for anything."""
    suspended = suspended_in(using)
    with connections[using].cursor() as cursor:
        cursor.execute(_IS_DUE, [suspended])
        return bool(cursor.fetchone()[0])


_RETRY = """
UPDATE platform.functions_run r
   SET phase = 'queued', slot = NULL, claimed_until = now() + %(wait)s
 WHERE r.id = %(run_id)s AND r.attempts = %(attempt)s AND r.phase = 'executing' AND r.cancel_requested_at IS NULL
   AND r.attempts < (SELECT f.attempts FROM platform.functions_function f WHERE f.id = r.function_id)
RETURNING r.id
"""


def retry_later(started: Started, wait: timedelta) -> bool:
    """Put a failed async run back into the queue if its function's policy has attempts left."""
    with connections[started.cluster].cursor() as cursor:
        parameters: dict[str, Any] = {"run_id": started.run_id, "attempt": started.attempt, "wait": wait}
        cursor.execute(_RETRY, parameters)
        return cursor.fetchone() is not None


_RELEASE = """
UPDATE platform.functions_run
   SET phase = 'queued', slot = NULL, attempts = attempts - 1, claimed_until = now() + %(wait)s,
       started_at = CASE WHEN attempts > 1 THEN started_at END
 WHERE id = %(run_id)s AND attempts = %(attempt)s AND phase = 'executing'
"""


def release(started: Started, wait: timedelta) -> None:
    """Put a claimed run whose attempt never began back into the queue, to be claimed after `wait`: nothing of it
    counts. To be called once: the next attempt has this one's number."""
    with connections[started.cluster].cursor() as cursor:
        parameters: dict[str, Any] = {"run_id": started.run_id, "attempt": started.attempt, "wait": wait}
        cursor.execute(_RELEASE, parameters)
