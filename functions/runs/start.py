"""The life of a run in PostgreSQL. `start_run` creates it, executing or queued.

A queued run is claimed (`queue`), its executor holds the lease (`leases`), and it ends (`completion`). Each transition
is one statement. `attempts` is the run's fencing token and `claimed_until` its lease, in database time: an outcome
counts only for the current attempt of a run that has not ended. A periodic job finds expired leases. `slot` is the
concurrency slot of an executing run, unique in its environment: 1 to the plan's limit for synchronous runs, -1 to
-limit for queued ones, so that these take no slot of a waiting caller. Anonymous callers may only use the first half of
each (`anonymous_slots`), which others take last; so do runs of events (`functions.triggers.events`).
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Final

import orjson
from django.conf import settings
from django.db import Error, IntegrityError, connections

from functions.errors import NoSuchFunction, TooManyAnonymousCalls, TooManyRuns
from functions.quotas import queue_quotas
from functions.quotas.client_networks import AnonymousCall, has_share, slots_for_all_networks
from functions.runs.anonymous_retention import stores_input
from functions.runs.statement_batching import StatementBatcher
from platform_site.http.requests import current_request_id
from platform_site.identity import ids
from platform_site.identity.callers import Caller, EnvironmentRef
from platform_site.identity.plans import plan_limits
from platform_site.postgres import libpq, prepared, sqlstates

LEASE_MARGIN: Final = timedelta(seconds=10)
"""How long beyond its timeout a run may take: then it is lost, if it is not by `FUNCTION_LEASE`
(`functions.runs.lease_renewer`)."""


TURN: Final = timedelta(seconds=10)
"""The spacing between queued runs of one network, about the duration of one at the longest timeout. So a new network
waits behind one or two runs of each other network."""


def lease_values() -> list[bytes]:
    """The margin and the lease, as `_START_RUN` and `_CLAIM` take them."""
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
    trigger: str = "call"
    """One of `Run.Trigger`."""
    address_id: str | None = None
    """The inbound endpoint of a synchronous call."""

    @property
    def program_key(self) -> str:
        """What a warm process is warm for."""
        return program_key(self.function_id, self.version, self.source_hash, self.memory_mb)


def program_key(function_id: str, version: int, source_hash: str, memory_mb: int) -> str:
    """The name of a version's warm processes."""
    return f"{function_id}:{version}:{source_hash}:{memory_mb}"


# $1 environment, $2 function, $3 kind of caller that must be allowed, $4 slots that it may take, $5 initial phase, $6
# run, $7 input, $8 kind of caller, $9 its id, $10 request, $11 depth, $12 margin and $13 lease (`lease_values`), $14
# the slots in the order in which to try them (`_slots`), $15 the fields that are not stored; for an anonymous caller
# $16 its network, $17 the delay of its turn; $18 trigger, $19 inbound endpoint; the last two are those of
# `StatementBatcher`. Two texts, because PostgreSQL would plan one at every call: a generic plan pays for the check of
# the network even where there is none. OFFSET 0 keeps the order of the slots, which a join would not.
_START_RUN: Final = b"""
WITH chosen AS (
    SELECT f.id, f.name, f.active_version, f.timeout_ms, f.memory_mb, f.allowed_hosts, v.source_hash,
           (SELECT jsonb_object_agg(s.name, encode(s.sealed_value, 'hex'))
              FROM platform.functions_secret s WHERE s.function_id = f.id AND s.sealed_value IS NOT NULL) AS secrets,
           (SELECT free FROM unnest($14::int[]) free
             WHERE $5::text = 'executing' %(check)b
               AND NOT EXISTS (
                   SELECT 1 FROM platform.functions_run r WHERE r.environment_id = $1::text AND r.slot = free OFFSET 0)
             LIMIT 1) AS slot
      FROM platform.functions_function f
      JOIN platform.functions_version v ON v.function_id = f.id AND v.number = f.active_version
     WHERE f.environment_id = $1::text AND f.name = $2::text
       AND (f.invoke IN ('public', $3::text) OR (f.invoke IS NULL AND $3::text <> 'anonymous'))
), made AS (
    INSERT INTO platform.functions_run
           (id, environment_id, function_id, version, status, phase, is_async, trigger, address_id, input, not_stored,
            logs, sandbox_layers, caller_kind, caller_id, network, turn_at, request_id, depth, concurrency, slot,
            attempts, created_at, started_at, claimed_until)
    SELECT $6::text, $1::text, id, active_version, 'running', $5::text, $5::text = 'queued', $18::text, $19::text,
           $7::text, $15::text[], '[]'::jsonb, '{}', $8::text, $9::text, $16::bigint,
           statement_timestamp() + $17::interval, $10::text, $11::smallint, $4::int, slot,
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
       CASE WHEN %(is_asynchronous)b::boolean THEN set_config('synchronous_commit', 'off', true) END, %(mark)b::text
  FROM chosen
"""
_START_KNOWN: Final = _START_RUN % {b"check": b"", b"is_asynchronous": b"$20", b"mark": b"$21"}
# $20 the slots of anonymous callers.
_START_ANONYMOUS: Final = _START_RUN % {
    b"check": b"""
               AND (SELECT count(*) FILTER (WHERE r.network = $16::bigint) = 0 OR 2 * count(*) < $20::int
                      FROM platform.functions_run r
                     WHERE r.environment_id = $1::text AND r.slot BETWEEN 1 AND $20::int)""",
    b"is_asynchronous": b"$21",
    b"mark": b"$22",
}
# $1 run. As the row of `_START_RUN`.
_FIND_RUN: Final = b"""
SELECT f.id, f.name, r.version, v.source_hash, f.timeout_ms, f.memory_mb, array_to_json(f.allowed_hosts),
       (SELECT jsonb_object_agg(s.name, encode(s.sealed_value, 'hex'))
          FROM platform.functions_secret s WHERE s.function_id = f.id AND s.sealed_value IS NOT NULL),
       true, true, NULL
  FROM platform.functions_run r
  JOIN platform.functions_function f ON f.id = r.function_id
  JOIN platform.functions_version v ON v.function_id = f.id AND v.number = r.version
 WHERE r.id = $1::text
"""
# A slot is taken by an unique index, so that no race goes past the limit. Two that reach for the same one at the same
# moment: the second waits for the first's commit and reaches again. Each begins to look at another slot, so that this
# is rare and the first one looked at is mostly free: to look at all sixty-four and sort them cost more than the insert.
REACHES: Final = 50


def anonymous_slots(limit: int) -> int:
    """How many of the `limit` slots of an environment anonymous callers may take: the first ones."""
    return max(1, limit // 2)


def slots_for(place: EnvironmentRef, caller: Caller, anonymous: AnonymousCall | None) -> int:
    """How many synchronous calls of such a caller the plan allows at the same time."""
    limit = plan_limits(place.plan).function_concurrency
    if caller.kind != "anonymous":
        return limit
    theirs = anonymous_slots(limit)
    return slots_for_all_networks(theirs) if anonymous is not None and anonymous.is_heavy else theirs


@cache
def _slots(limit: int, may_take: int, start: int) -> bytes:
    """Slots 1 to `may_take` of `limit` as a PostgreSQL array, each half rotated by `start`.

    The slots of anonymous callers come last, so that they are free while others need at most their own half; at the
    very end come those that networks with high recent usage may take (`functions.quotas.client_networks`).
    """
    shared = anonymous_slots(limit)
    parts = (range(shared + 1, may_take + 1), range(slots_for_all_networks(shared) + 1, min(shared, may_take) + 1))
    order = [slot for part in (*parts, range(1, slots_for_all_networks(shared) + 1)) for slot in _rotated(part, start)]
    return b"{%b}" % ",".join(map(str, order)).encode()


def _rotated(slots: range, start: int) -> list[int]:
    first = start % max(1, len(slots))
    return [*slots[first:], *slots[:first]]


_start_batcher: Final = StatementBatcher(_START_KNOWN, is_durable=False)
_start_anonymous_batcher: Final = StatementBatcher(_START_ANONYMOUS, is_durable=False)
_queue_batcher: Final = StatementBatcher(_START_KNOWN, is_durable=True)


def start_run(
    place: EnvironmentRef,
    caller: Caller,
    name: str,
    input_text: str,
    *,
    depth: int = 0,
    is_async: bool = False,
    anonymous: AnonymousCall | None = None,
    address_id: str | None = None,
) -> Started:
    """Create the run, executing (with a lease of this process) or queued. One statement; one more for a queued run of
    an anonymous caller, and now and then for others (`functions.quotas.queue_quotas`).

    An executing run is committed when this returns, and on disk before it can have any effect: its row writes and its
    end come later in the same log, and `make_durable` precedes everything that leaves the database. So a synchronous
    call waits for the disk once. If PostgreSQL crashes in between, `end` finds no run and writes all of it. In a
    transaction of the caller, and for a queued run, the commit waits as usual. If the connection is lost before the
    response, the run is looked up on a new connection by its id, and created if it does not exist: no one else would
    execute it, and it would hold its slot until its lease ends.

    `anonymous` is the network of an anonymous caller, `address_id` the inbound endpoint of the call. Raises
    NoSuchFunction (also if this kind of caller may not invoke it), TooManyRuns, TooManyAnonymousCalls, TooManyQueued.
    """
    limit, is_anonymous = plan_limits(place.plan).function_concurrency, caller.kind == "anonymous"
    theirs = anonymous_slots(limit) if is_anonymous else limit
    may_take = theirs if is_async else slots_for(place, caller, anonymous)
    trigger = "call" if address_id is None else "inbound"
    input_bytes = input_text.encode()
    delay = _admit_to_queue(place, caller, anonymous, len(input_bytes), address_id) if is_async else None
    # A queued run needs its input until it ends.
    is_kept = is_async or stores_input(caller.kind, trigger, input_bytes)
    run_id, request_id = ids.new("run"), current_request_id()
    values = [
        place.environment_id.encode(),
        name.encode(),
        caller.kind.encode() if caller.kind in ("user", "anonymous") else b"key",
        b"%d" % may_take,
        b"queued" if is_async else b"executing",
        run_id.encode(),
        input_bytes if is_kept else b"",
        caller.kind.encode(),
        caller.id.encode(),
        None if request_id is None else request_id.encode(),
        b"%d" % depth,
        *lease_values(),
    ]
    origin = [
        None if anonymous is None else b"%d" % anonymous.network,
        delay,
        trigger.encode(),
        None if address_id is None else address_id.encode(),
    ]
    batcher = _queue_batcher if is_async else _start_batcher
    if anonymous is not None and not is_async:
        batcher = _start_anonymous_batcher
        origin.append(b"%d" % theirs)
    was_lost = False
    for _ in range(REACHES):
        start = int(random.random() * limit)  # noqa: S311 - not a secret
        full_values = [*values, _slots(limit, may_take, start), None if is_kept else b"{input}", *origin]
        try:
            found = prepared.run(place.cluster, _FIND_RUN, [run_id.encode()]) if was_lost else []
            found = found or batcher.run(place.cluster, full_values)
        except IntegrityError:  # the function was deleted before we could commit, or it is there by now: look again
            if connections[place.cluster].in_atomic_block:
                raise
            continue
        except Error as error:
            if was_lost or connections[place.cluster].in_atomic_block or not sqlstates.lost_connection(error):
                raise
            was_lost = True
            continue
        if not found:
            raise NoSuchFunction
        *_, had_slot, was_made, _ = found[0]
        if was_made == b"t":
            return _started(found[0], run_id, place, caller, input_text, depth, is_async, trigger, address_id)
        if had_slot != b"t":
            break
    raise TooManyRuns(theirs, of_visitors=is_anonymous)


def _admit_to_queue(
    place: EnvironmentRef, caller: Caller, anonymous: AnonymousCall | None, input_size: int, address_id: str | None
) -> bytes | None:
    """The delay of its turn behind other runs of its network; None for others. Raises TooManyAnonymousCalls,
    TooManyQueued."""
    if caller.kind != "anonymous":
        queue_quotas.admit(place, caller, input_size, address_id=address_id)
        return None
    behind = _check_anonymous_quota(place, anonymous, input_size)
    return b"%f s" % (behind * TURN.total_seconds()) if behind else None


def _started(
    row: libpq.Row,
    run_id: str,
    place: EnvironmentRef,
    caller: Caller,
    input_text: str,
    depth: int,
    is_async: bool,
    trigger: str,
    address_id: str | None,
) -> Started:
    """What to execute, by a row of `_START_RUN`."""
    function_id, name, version, source_hash, timeout_ms, memory_mb, hosts, secrets, *_ = row
    return Started(
        run_id=run_id,
        attempt=1,
        environment_id=place.environment_id,
        function_id=text_of(function_id),
        function_name=text_of(name),
        version=number_of(version),
        source_hash=text_of(source_hash),
        timeout_ms=number_of(timeout_ms),
        memory_mb=number_of(memory_mb),
        allowed_hosts=tuple(orjson.loads(hosts or b"[]")),
        sealed_secrets=secrets_of(secrets),
        input_text=input_text,
        depth=depth,
        is_async=is_async,
        caller_kind=caller.kind,
        caller_id=caller.id,
        cluster=place.cluster,
        trigger=trigger,
        address_id=address_id,
    )


# Of `run_turn_of_crowd` the limit's entries are looked at, and those of events that are queued, which are few. No input
# is read for its size.
_WAITING_ANONYMOUS_RUNS: Final = """
SELECT count(*), coalesce(sum(octet_length(input)), 0), count(*) FILTER (WHERE network = %s)
  FROM (SELECT input, network FROM platform.functions_run
         WHERE phase = 'queued' AND environment_id = %s AND (caller_kind = 'anonymous' OR trigger = 'event')
           AND caller_kind = 'anonymous'
         ORDER BY coalesce(turn_at, created_at) LIMIT %s) few
"""


def waiting_anonymous_runs(place: EnvironmentRef) -> tuple[int, int]:
    """How many queued runs of anonymous callers wait in the environment, and the bytes of their inputs; counts at most
    the plan's limit."""
    count, size, _ = _count_waiting_anonymous_runs(place)
    return count, size


def _count_waiting_anonymous_runs(place: EnvironmentRef, network: int | None = None) -> tuple[int, int, int]:
    """How many wait, with how many bytes of input, and how many of them are this network's."""
    most = plan_limits(place.plan).visitor_queued_runs
    with connections[place.cluster].cursor() as cursor:
        cursor.execute(_WAITING_ANONYMOUS_RUNS, [network, place.environment_id, most])
        count, size, own = cursor.fetchone()
        return int(count), int(size), int(own)


def _check_anonymous_quota(place: EnvironmentRef, anonymous: AnonymousCall | None, input_size: int) -> int:
    """How many of its network wait before it. Raises TooManyVisits. Not under a lock: those that come at the same
    moment may pass the limits together."""
    limits = plan_limits(place.plan)
    count, size, own = _count_waiting_anonymous_runs(place, None if anonymous is None else anonymous.network)
    if not has_share(limits.visitor_queued_runs, count, own):
        raise TooManyAnonymousCalls(
            f"{limits.visitor_queued_runs} queued runs", is_share=count < limits.visitor_queued_runs
        )
    most = limits.visitor_queued_bytes
    if size + input_size > (most // 2 if own else most):
        raise TooManyAnonymousCalls(f"{most} bytes of input in queued runs", is_share=size + input_size <= most)
    return own


def text_of(value: bytes | None) -> str:
    return (value or b"").decode()


def number_of(value: bytes | None) -> int:
    return int(value or 0)


def secrets_of(secrets: bytes | None) -> dict[str, bytes]:
    return {name: bytes.fromhex(text) for name, text in orjson.loads(secrets or b"{}").items()}


_SOURCE: Final = b"""
SELECT source FROM platform.functions_version WHERE function_id = $1::text AND number = $2::int
"""


def source_of(started: Started) -> bytes:
    """The module's text. Asked once per process and version (`functions.execution.executor` keeps it). Raises
    NoSuchFunction if the function was deleted since."""
    values = [started.function_id.encode(), b"%d" % started.version]
    found = prepared.retry_if_lost(connections[started.cluster], _SOURCE, values)
    if not found:
        raise NoSuchFunction
    [(source,)] = found
    return source or b""
