"""The life of a run in PostgreSQL: begun, claimed, ended, and never left behind.

Every transition is one statement. `attempts` is the fencing token of a run and `claimed_until` its lease, in the
database's time: an outcome counts only if it is the current attempt's and the run has not ended. A sweep finds leases
that ran out. `slot` is an executing run's seat among those that its plan allows, unique in its environment: 1 to the
limit for synchronous runs, -1 to -limit for queued ones, which so take no seat from those somebody waits for. Design
section 8; reliability F2, F4, F5.
"""

import random
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import orjson
from django.conf import settings
from django.db import IntegrityError, InterfaceError, OperationalError, connections

from functions.errors import NoSuchFunction, TooManyRuns
from functions.together import Together
from platform_site.api import ids
from platform_site.api.callers import Caller, Place
from platform_site.api.plans import plan_limits
from platform_site.api.requests import current_request_id
from projects.suspension import suspended_in
from rows import execution

LEASE_MARGIN: Final = timedelta(seconds=10)
"""How long beyond its timeout a run may take: then it is lost, if it is not by `FUNCTION_LEASE` (`functions.watch`)."""
LOST_ATTEMPTS: Final = 3
"""How often a run is begun at all when workers keep dying under it."""


def _lease() -> list[bytes]:
    """The margin and the lease, as `_CHOOSE` and `_CLAIM` take them."""
    return [b"%f s" % LEASE_MARGIN.total_seconds(), b"%f s" % settings.FUNCTION_LEASE.total_seconds()]


@dataclass(frozen=True, slots=True)
class Started:
    """A run to execute now, and what to execute."""

    run_id: str
    attempt: int
    environment_id: str
    function_id: str
    function_name: str
    version: int
    source_hash: str
    timeout_ms: int
    memory_mb: int
    allowed_hosts: tuple[str, ...]
    sealed_secrets: Mapping[str, bytes]
    input_text: str
    depth: int
    is_async: bool
    caller_kind: str
    caller_id: str
    cluster: str
    is_scheduled: bool = False

    @property
    def program_key(self) -> str:
        """What a warm process is warm for."""
        return program_key(self.function_id, self.version, self.source_hash, self.memory_mb)


def program_key(function_id: str, version: int, source_hash: str, memory_mb: int) -> str:
    """The name of a version's warm processes."""
    return f"{function_id}:{version}:{source_hash}:{memory_mb}"


# $1 environment, $2 function, $3 kind of caller that must be allowed, $4 limit of the plan, $5 phase to begin in,
# $6 run, $7 input, $8 kind of caller, $9 its id, $10 request, $11 depth, $12 margin and $13 lease (`_lease`), $14 the
# seat to look at first, counted from 0; $15 and $16 are those of `Together`.
_CHOOSE: Final = b"""
WITH chosen AS (
    SELECT f.id, f.name, f.active_version, f.timeout_ms, f.memory_mb, f.allowed_hosts, v.source_hash,
           (SELECT jsonb_object_agg(s.name, encode(s.sealed_value, 'hex'))
              FROM platform.functions_secret s WHERE s.function_id = f.id AND s.sealed_value IS NOT NULL) AS secrets,
           (SELECT seat FROM (SELECT 1 + (n + $14::int) % $4::int AS seat FROM generate_series(1, $4::int) n) seats
             WHERE $5::text = 'executing' AND NOT EXISTS (
                   SELECT 1 FROM platform.functions_run r WHERE r.environment_id = $1::text AND r.slot = seat)
             LIMIT 1) AS slot
      FROM platform.functions_function f
      JOIN platform.functions_version v ON v.function_id = f.id AND v.number = f.active_version
     WHERE f.environment_id = $1::text AND f.name = $2::text
       AND (f.invoke IN ('public', $3::text) OR (f.invoke IS NULL AND $3::text <> 'anonymous'))
), made AS (
    INSERT INTO platform.functions_run
           (id, environment_id, function_id, version, status, phase, is_async, input, logs, walls, caller_kind,
            caller_id, request_id, depth, concurrency, slot, attempts, created_at, started_at, claimed_until)
    SELECT $6::text, $1::text, id, active_version, 'running', $5::text, $5::text = 'queued', $7::text, '[]'::jsonb,
           '{}', $8::text, $9::text, $10::text, $11::smallint, $4::int, slot,
           CASE WHEN $5::text = 'executing' THEN 1 ELSE 0 END,
           CASE WHEN $5::text = 'executing' THEN now() ELSE statement_timestamp() END,
           CASE WHEN $5::text = 'executing' THEN now() END,
           CASE WHEN $5::text = 'executing' THEN
                     now() + least(timeout_ms * interval '1 ms' + $12::interval, $13::interval) END
      FROM chosen WHERE $5::text = 'queued' OR slot IS NOT NULL
    ON CONFLICT (environment_id, slot) WHERE slot IS NOT NULL DO NOTHING
    RETURNING id
)
SELECT id, name, active_version, source_hash, timeout_ms, memory_mb, array_to_json(allowed_hosts), secrets,
       slot IS NOT NULL, EXISTS (SELECT 1 FROM made),
       CASE WHEN $15::boolean THEN set_config('synchronous_commit', 'off', true) END, $16::text
  FROM chosen
"""
# A seat is taken by an unique index, so that no race goes past the limit. Two that reach for the same one at the same
# moment: the second waits for the first's commit and reaches again. Each begins to look at another seat, so that this
# is rare and the first one looked at is mostly free: to look at all sixty-four and sort them cost more than the insert.
_REACHES: Final = 50
_begins: Final = Together(_CHOOSE, is_durable=False)
_queueings: Final = Together(_CHOOSE, is_durable=True)


def begin(
    place: Place, caller: Caller, name: str, input_text: str, *, depth: int = 0, is_async: bool = False
) -> Started:
    """Make the run, executing (a lease is ours) or queued. One statement.

    One that executes is committed when this returns, and on disk before it can have any effect: a row that it writes
    and its end come later in the same log and wait for it, and `make_durable` goes before what leaves the database.
    So a synchronous call waits for the disk once. If PostgreSQL crashes in between, `end` finds no run and writes it
    down whole. In a transaction of the caller's, and where it is queued, its commit waits as any other.

    Raises NoSuchFunction (or one that this kind of caller may not invoke), TooManyRuns.
    """
    limit = plan_limits(place.plan).function_concurrency
    run_id, request_id = ids.new("run"), current_request_id()
    values = [
        place.environment_id.encode(),
        name.encode(),
        caller.kind.encode() if caller.kind in ("user", "anonymous") else b"key",
        b"%d" % limit,
        b"queued" if is_async else b"executing",
        run_id.encode(),
        input_text.encode(),
        caller.kind.encode(),
        caller.id.encode(),
        None if request_id is None else request_id.encode(),
        b"%d" % depth,
        *_lease(),
    ]
    for _ in range(_REACHES):
        seated = [*values, b"%d" % int(random.random() * limit)]  # noqa: S311 - not a secret
        try:
            found = (_queueings if is_async else _begins).run(place.cluster, seated)
        except IntegrityError:  # the function was deleted before we could commit: look again
            if connections[place.cluster].in_atomic_block:
                raise
            continue
        if not found:
            raise NoSuchFunction
        [(function_id, found_name, version, source_hash, timeout_ms, memory_mb, hosts, secrets, had_seat, made, _)] = (
            found
        )
        if made == b"t":
            return Started(
                run_id=run_id,
                attempt=1,
                environment_id=place.environment_id,
                function_id=_text(function_id),
                function_name=_text(found_name),
                version=_number(version),
                source_hash=_text(source_hash),
                timeout_ms=_number(timeout_ms),
                memory_mb=_number(memory_mb),
                allowed_hosts=tuple(orjson.loads(hosts or b"[]")),
                sealed_secrets=_unhexed(secrets),
                input_text=input_text,
                depth=depth,
                is_async=is_async,
                caller_kind=caller.kind,
                caller_id=caller.id,
                cluster=place.cluster,
            )
        if had_seat != b"t":
            break
    raise TooManyRuns(limit)


def _text(value: bytes | None) -> str:
    return (value or b"").decode()


def _number(value: bytes | None) -> int:
    return int(value or 0)


def _unhexed(secrets: bytes | None) -> dict[str, bytes]:
    return {name: bytes.fromhex(text) for name, text in orjson.loads(secrets or b"{}").items()}


# In leaps from one environment to the next: nobody's backlog is walked over, and least that of a suspended one.
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
            ORDER BY r.created_at LIMIT 1) due
     CROSS JOIN LATERAL (
           SELECT count(*) AS runs FROM platform.functions_run b
            WHERE b.environment_id = waiting.environment_id AND b.slot < 0) busy
     WHERE busy.runs < due.concurrency
     ORDER BY busy.runs, due.created_at
     LIMIT 4
), next AS (
    SELECT r.id, r.seat
      FROM turns
     CROSS JOIN LATERAL (
           SELECT q.id,
                  (SELECT -seat FROM generate_series(1, q.concurrency) seat
                    WHERE NOT EXISTS (SELECT 1 FROM platform.functions_run taken
                                       WHERE taken.environment_id = q.environment_id AND taken.slot = -seat)
                    ORDER BY random() LIMIT 1) AS seat
             FROM platform.functions_run q
            WHERE q.phase = 'queued' AND q.environment_id = turns.environment_id
              AND (q.claimed_until IS NULL OR q.claimed_until < now())
              AND EXISTS (SELECT FROM platform.functions_function f WHERE f.id = q.function_id
                             AND f.environment_id IS NOT NULL)
            ORDER BY q.created_at LIMIT 1 FOR UPDATE OF q SKIP LOCKED) r
     WHERE r.seat IS NOT NULL
     ORDER BY turns.runs, turns.created_at
     LIMIT 1
)
UPDATE platform.functions_run r
   SET phase = 'executing', slot = next.seat, attempts = r.attempts + 1, started_at = coalesce(r.started_at, now()),
       claimed_until = now() + least(f.timeout_ms * interval '1 ms' + $1::interval, $2::interval)
  FROM next, platform.functions_function f, platform.functions_version v
 WHERE r.id = next.id AND f.id = r.function_id AND v.function_id = f.id AND v.number = r.version
RETURNING r.id, r.attempts, r.environment_id, f.id, f.name, r.version, v.source_hash, f.timeout_ms, f.memory_mb,
          array_to_json(f.allowed_hosts),
          (SELECT jsonb_object_agg(s.name, encode(s.sealed_value, 'hex'))
             FROM platform.functions_secret s WHERE s.function_id = f.id AND s.sealed_value IS NOT NULL),
          r.input, r.depth, r.caller_kind, r.caller_id, r.trigger = 'schedule',
          NOT EXISTS (SELECT 1 FROM waiting JOIN platform.functions_run other
                                 ON other.phase = 'queued' AND other.environment_id = waiting.environment_id
                       WHERE other.id <> r.id AND (other.claimed_until IS NULL OR other.claimed_until < now()))
""" % WAITING.format(suspended="$3").encode()
_IS_DUE: Final = f"""
WITH {WAITING.format(suspended="%s")}
SELECT EXISTS (SELECT 1 FROM waiting JOIN platform.functions_run r
                          ON r.phase = 'queued' AND r.environment_id = waiting.environment_id
                WHERE r.claimed_until IS NULL OR r.claimed_until < now())
"""  # noqa: S608 - constants
_claiming: Final[dict[str, threading.Lock]] = {}
# By region. Two that claim at the same moment mostly reach for the same seat: the second would wait for the first's
# commit, fail, and start over. Between processes that is left to happen.


def claim(using: str) -> tuple[Started, bool] | None:
    """A queued run of the region that may execute now, ours for its lease, and whether it was the last; None if there
    is none.

    Environments take turns: first the one with the fewest queued runs executing, then the longest wait, so that nobody
    stands behind a neighbour's thousand. Within an environment the oldest comes first. Suspended ones have no turn.
    The claim is on disk when this returns: one that a crash forgot would be given out again, by the same number, while
    we execute it.
    """
    suspended = b"{%b}" % ",".join(suspended_in(using)).encode()
    for _ in range(_REACHES):
        try:
            with _claiming.setdefault(using, threading.Lock()):
                found = execution.run(using, _CLAIM, [*_lease(), suspended])
        except IntegrityError:  # another worker took that seat at the same moment
            continue
        break
    else:
        return None
    if not found:
        return None
    [row] = found
    run_id, attempt, environment_id, function_id, name, version, source_hash, timeout_ms, memory_mb = row[:9]
    hosts, secrets, input_text, depth, caller_kind, caller_id, is_scheduled, is_last = row[9:]
    started = Started(
        run_id=_text(run_id),
        attempt=_number(attempt),
        environment_id=_text(environment_id),
        function_id=_text(function_id),
        function_name=_text(name),
        version=_number(version),
        source_hash=_text(source_hash),
        timeout_ms=_number(timeout_ms),
        memory_mb=_number(memory_mb),
        allowed_hosts=tuple(orjson.loads(hosts or b"[]")),
        sealed_secrets=_unhexed(secrets),
        input_text=_text(input_text),
        depth=_number(depth),
        is_async=True,
        caller_kind=_text(caller_kind),
        caller_id=_text(caller_id),
        cluster=using,
        is_scheduled=is_scheduled == b"t",
    )
    return started, is_last == b"t"


def is_due(using: str) -> bool:
    """Whether `claim` would look for a seat for anything."""
    suspended = suspended_in(using)
    with connections[using].cursor() as cursor:
        cursor.execute(_IS_DUE, [suspended])
        return bool(cursor.fetchone()[0])


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
    """Which of these executing runs somebody has asked to cancel."""
    with connections[using].cursor() as cursor:
        cursor.execute(_CANCELLED, [run_ids])
        return [run_id for (run_id,) in cursor.fetchall()]


_TELL_END: Final = b"""
    INSERT INTO platform.rows_outboxevent (event_id, environment_id, type, data, request_id, depth)
    SELECT $9::text, ended.environment_id, 'function.run.' || $3::text,
           jsonb_build_object('run_id', ended.id, 'function', $10::text, 'version', ended.version,
                              'duration_ms', $8::int, 'error', $5::jsonb)::text,
           ended.request_id, ended.depth
      FROM ended
     WHERE EXISTS (SELECT 1 FROM platform.rows_eventinterest i
                    WHERE i.environment_id = ended.environment_id AND i.table_name IN ('*', 'function.run'))
    RETURNING 1
"""
# $1 run, $2 attempt, $3 status, $4 output, $5 error, $6 log, $7 walls, $8 milliseconds, $9 event, $10 the function's
# name; $11 and $12 are those of `Together`. `_WRITE_WHOLE` has in their place $11 function, $12 version, $13 input,
# $14 kind of caller, $15 its id, $16 request, $17 depth.
_END: Final = (
    b"""
WITH ended AS (
    UPDATE platform.functions_run
       SET status = $3::text, phase = 'ended', output = $4::text, error = $5::jsonb, logs = $6::jsonb,
           walls = $7::text[], duration_ms = $8::int, ended_at = now(), claimed_until = NULL, slot = NULL
     WHERE id = $1::text AND attempts = $2::int AND phase = 'executing'
 RETURNING id, environment_id, version, request_id, depth
), told AS (%b)
SELECT EXISTS (SELECT 1 FROM ended), EXISTS (SELECT 1 FROM told),
       CASE WHEN $11::boolean THEN set_config('synchronous_commit', 'off', true) END, $12::text
"""
    % _TELL_END
)
_ends: Final = Together(_END, is_durable=True)
_WRITE_WHOLE: Final = (
    b"""
WITH ended AS (
    INSERT INTO platform.functions_run
           (id, environment_id, function_id, version, status, phase, is_async, input, output, error, logs, walls,
            caller_kind, caller_id, request_id, depth, attempts, started_at, ended_at, duration_ms)
    SELECT $1::text, f.environment_id, f.id, $12::int, $3::text, 'ended', false, $13::text, $4::text, $5::jsonb,
           $6::jsonb, $7::text[], $14::text, $15::text, $16::text, $17::smallint, $2::int,
           now() - $8::int * interval '1 ms', now(), $8::int
      FROM platform.functions_function f WHERE f.id = $11::text AND f.environment_id IS NOT NULL
    ON CONFLICT (id) DO NOTHING
 RETURNING id, environment_id, version, request_id, depth
), told AS (%b)
SELECT EXISTS (SELECT 1 FROM ended), EXISTS (SELECT 1 FROM told)
"""
    % _TELL_END
)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended; `output` is JSON text."""

    status: str
    duration_ms: int
    output: str | None = None
    error: Mapping[str, Any] | None = None
    logs: tuple[Mapping[str, Any], ...] = ()
    walls: tuple[str, ...] = ()


def end(started: Started, ending: Ending) -> tuple[bool, bool]:
    """Write the outcome and its event. Returns (it counted, somebody is to be told): it counts only while the run is
    this attempt's. One statement; another where PostgreSQL crashed and forgot a synchronous run (`begin`)."""
    values = [
        started.run_id.encode(),
        b"%d" % started.attempt,
        ending.status.encode(),
        None if ending.output is None else ending.output.encode(),
        None if ending.error is None else orjson.dumps(ending.error),
        orjson.dumps(ending.logs),
        b"{%b}" % ",".join(ending.walls).encode(),
        b"%d" % ending.duration_ms,
        ids.new("evt").encode(),
        started.function_name.encode(),
    ]
    for pause in (0.1, 0.5, 2.0, None):
        try:
            [(counted, told, _)] = _ends.run(started.cluster, values)
            if counted != b"t" and not started.is_async:
                [(counted, told)] = execution.run(started.cluster, _WRITE_WHOLE, [*values, *_whole(started)])
            return counted == b"t", told == b"t"
        except (OperationalError, InterfaceError):
            # The connection is gone, with or without our outcome: `attempts` and `phase` make a second try harmless.
            if pause is None or connections[started.cluster].in_atomic_block:
                raise
            connections[started.cluster].close()
            time.sleep(pause)
    raise AssertionError("unreachable")


def _whole(started: Started) -> list[bytes | None]:
    """What `_WRITE_WHOLE` takes beyond the outcome."""
    request_id = current_request_id()
    return [
        started.function_id.encode(),
        b"%d" % started.version,
        started.input_text.encode(),
        started.caller_kind.encode(),
        started.caller_id.encode(),
        None if request_id is None else request_id.encode(),
        b"%d" % started.depth,
    ]


_AGAIN = """
UPDATE platform.functions_run r
   SET phase = 'queued', slot = NULL, claimed_until = now() + %(wait)s
 WHERE r.id = %(run_id)s AND r.attempts = %(attempt)s AND r.phase = 'executing' AND r.cancel_requested_at IS NULL
   AND r.attempts < (SELECT f.attempts FROM platform.functions_function f WHERE f.id = r.function_id)
RETURNING r.id
"""


def try_again(started: Started, wait: timedelta) -> bool:
    """Put a failed async run back into the queue if its function's policy has attempts left."""
    with connections[started.cluster].cursor() as cursor:
        parameters: dict[str, Any] = {"run_id": started.run_id, "attempt": started.attempt, "wait": wait}
        cursor.execute(_AGAIN, parameters)
        return cursor.fetchone() is not None


_GIVE_BACK = """
UPDATE platform.functions_run
   SET phase = 'queued', slot = NULL, attempts = attempts - 1, claimed_until = now() + %(wait)s,
       started_at = CASE WHEN attempts > 1 THEN started_at END
 WHERE id = %(run_id)s AND attempts = %(attempt)s AND phase = 'executing'
"""


def give_back(started: Started, wait: timedelta) -> None:
    """Put a claimed run whose attempt never began back into the queue, to be claimed after `wait`: nothing of it
    counts. To be called once: the next attempt has this one's number."""
    with connections[started.cluster].cursor() as cursor:
        parameters: dict[str, Any] = {"run_id": started.run_id, "attempt": started.attempt, "wait": wait}
        cursor.execute(_GIVE_BACK, parameters)


_TOLD = """
    INSERT INTO platform.rows_outboxevent (event_id, environment_id, type, data, request_id, depth)
    SELECT 'evt' || substr(failed.id, 4), failed.environment_id, 'function.run.failed',
           jsonb_build_object('run_id', failed.id, 'function', f.name, 'version', failed.version,
                              'duration_ms', failed.duration_ms, 'error', failed.error)::text,
           failed.request_id, failed.depth
      FROM failed JOIN platform.functions_function f ON f.id = failed.function_id
     WHERE EXISTS (SELECT 1 FROM platform.rows_eventinterest i
                    WHERE i.environment_id = failed.environment_id AND i.table_name IN ('*', 'function.run'))
    RETURNING 1
"""
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
           -- The service may have stood still for longer than the 24 days that the column holds.
           duration_ms = least(extract(epoch FROM now() - r.started_at) * 1000, 2147483647),
           error = CASE WHEN lost.is_cancelled
                        THEN '{{"name": "Cancelled", "reason": "cancelled", "message": "the run was cancelled"}}'
                        ELSE '{{"name": "WorkerLost", "reason": "worker_lost",
                               "message": "the process that executed the run died"}}' END::jsonb
      FROM lost WHERE r.id = lost.id AND NOT lost.is_retried
    RETURNING r.id, r.environment_id, r.function_id, r.version, r.request_id, r.depth, r.duration_ms, r.error
), told AS ({_TOLD})
SELECT (SELECT count(*) FROM again), (SELECT count(*) FROM failed), (SELECT count(*) FROM told)
"""  # noqa: S608 - constants


def settle_lost(using: str) -> tuple[int, int, int]:
    """Runs whose lease ran out: async ones go back into the queue, others end as `worker_lost`.

    Returns how many were requeued, how many failed, and how many of those somebody is to be told of.
    """
    with connections[using].cursor() as cursor:
        cursor.execute(_LOST, {"most": LOST_ATTEMPTS})
        again, failed, told = cursor.fetchone()
    return int(again), int(failed), int(told)


_MEND_FUTURE_TIMES = """
UPDATE platform.functions_run
   SET claimed_until = now() + CASE WHEN phase = 'executing' THEN %(lease)s ELSE interval '0' END
  -- Spelled so that each half has its partial index: the history is not read.
 WHERE phase = 'executing' AND claimed_until > now() + %(longest)s
    OR phase = 'queued' AND claimed_until > now() + %(longest)s
"""
_LONGEST_LEASE: Final = timedelta(hours=2)
"""Beyond what FUNCTION_LEASE_SECONDS may be, in any process, and beyond any wait for the next attempt."""


def mend_future_times(using: str) -> int:
    """Bring back what a clock of PostgreSQL has put off that was set back since: attempts are due now, and leases last
    as long as a new one, since their workers may be alive. Returns how many. Reads all that has not ended."""
    parameters: dict[str, Any] = {"lease": settings.FUNCTION_LEASE, "longest": _LONGEST_LEASE}
    with connections[using].cursor() as cursor:
        cursor.execute(_MEND_FUTURE_TIMES, parameters)
        return int(cursor.rowcount)


_SOURCE = """
SELECT source FROM platform.functions_version WHERE function_id = %s AND number = %s
"""


def source_of(started: Started) -> bytes:
    """The module's text. Asked once per process and version (`functions.executor` keeps it). Raises NoSuchFunction if
    the function was deleted since."""
    with connections[started.cluster].cursor() as cursor:
        cursor.execute(_SOURCE, [started.function_id, started.version])
        found = cursor.fetchone()
    if found is None:
        raise NoSuchFunction
    return str(found[0]).encode()


_CANCEL = f"""
WITH asked AS (
    UPDATE platform.functions_run
       SET cancel_requested_at = now(),
           status = CASE WHEN phase = 'queued' THEN 'failed' ELSE status END,
           error = CASE WHEN phase = 'queued'
                        THEN '{{"name": "Cancelled", "reason": "cancelled", "message": "the run was cancelled"}}'::jsonb
                        ELSE error END,
           ended_at = CASE WHEN phase = 'queued' THEN now() END,
           duration_ms = CASE WHEN phase = 'queued' THEN 0 ELSE duration_ms END,
           phase = CASE WHEN phase = 'queued' THEN 'ended' ELSE phase END
     WHERE id = %(run_id)s AND phase <> 'ended'
 RETURNING id, environment_id, function_id, version, request_id, depth, duration_ms, error, phase
), failed AS (
    SELECT * FROM asked WHERE phase = 'ended'
), told AS ({_TOLD})
SELECT EXISTS (SELECT 1 FROM asked), EXISTS (SELECT 1 FROM told)
"""  # noqa: S608 - constants


def request_cancel(using: str, run_id: str) -> tuple[bool, bool]:
    """Cancel: a queued run ends at once, an executing one as soon as its process is told.

    Returns whether it had not ended yet, and whether somebody is to be told of its end.
    """
    with connections[using].cursor() as cursor:
        cursor.execute(_CANCEL, {"run_id": run_id})
        was_open, told = cursor.fetchone()
    return bool(was_open), bool(told)
