"""The life of a run in PostgreSQL, from its beginning: `begin` makes it, executing or queued.

A queued one is claimed (`claims`), who executes it holds its lease (`leases`), and it ends (`endings`). Every
transition is one statement. `attempts` is the fencing token of a run and `claimed_until` its lease, in the database's
time: an outcome counts only if it is the current attempt's and the run has not ended. A sweep finds leases that ran
out. `slot` is an executing run's seat among those that its plan allows, unique in its environment: 1 to the limit for
synchronous runs, -1 to -limit for queued ones, which so take no seat from those somebody waits for. Visitors, who show
a key that everybody has, sit on the first half of each alone (`visitor_seats`), the others there last; so do runs of
events (`functions.triggers.events`).
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

from functions.errors import NoSuchFunction, TooManyRuns, TooManyVisits
from functions.quotas import queue_quotas
from functions.quotas.client_networks import Visit, has_share, open_to_all
from functions.runs.statement_batching import Together
from functions.runs.visitor_retention import is_input_kept
from platform_site.http.requests import current_request_id
from platform_site.identity import ids
from platform_site.identity.callers import Caller, Place
from platform_site.identity.plans import plan_limits
from platform_site.postgres import prepared, sqlstates

LEASE_MARGIN: Final = timedelta(seconds=10)
"""How long beyond its timeout a run may take: then it is lost, if it is not by `FUNCTION_LEASE`
(`functions.runs.lease_renewer`)."""


TURN: Final = timedelta(seconds=10)
"""By how much later each queued run of a network has its turn than the one before: about what one takes of visitors'
seats, whatever the plan, where all take as long as they may. So a newcomer waits behind one or two of each network."""


def lease_values() -> list[bytes]:
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
    trigger: str = "call"
    """One of `Run.Trigger`."""
    address_id: str | None = None
    """The inbound address by which a synchronous one came."""

    @property
    def program_key(self) -> str:
        """What a warm process is warm for."""
        return program_key(self.function_id, self.version, self.source_hash, self.memory_mb)


def program_key(function_id: str, version: int, source_hash: str, memory_mb: int) -> str:
    """The name of a version's warm processes."""
    return f"{function_id}:{version}:{source_hash}:{memory_mb}"


# $1 environment, $2 function, $3 kind of caller that must be allowed, $4 seats that it may take, $5 phase to begin in,
# $6 run, $7 input, $8 kind of caller, $9 its id, $10 request, $11 depth, $12 margin and $13 lease (`lease_values`),
# $14 those seats in the order in which to look at them (`_seats`), $15 what is not kept of it; of a visit $16 its
# network, $17 how much later its turn comes, $18 the seats that are visitors'; $19 how it came about, $20 by which
# inbound address; $21 and $22 are those of `Together`.
_CHOOSE: Final = b"""
WITH chosen AS (
    SELECT f.id, f.name, f.active_version, f.timeout_ms, f.memory_mb, f.allowed_hosts, v.source_hash,
           (SELECT jsonb_object_agg(s.name, encode(s.sealed_value, 'hex'))
              FROM platform.functions_secret s WHERE s.function_id = f.id AND s.sealed_value IS NOT NULL) AS secrets,
           (SELECT seat FROM unnest($14::int[]) seat
             WHERE $5::text = 'executing'
               AND ($16::bigint IS NULL OR (
                   SELECT count(*) FILTER (WHERE r.network = $16::bigint) = 0 OR 2 * count(*) < $18::int
                     FROM platform.functions_run r
                    WHERE r.environment_id = $1::text AND r.slot BETWEEN 1 AND $18::int))
               AND NOT EXISTS (
                   SELECT 1 FROM platform.functions_run r WHERE r.environment_id = $1::text AND r.slot = seat)
             LIMIT 1) AS slot
      FROM platform.functions_function f
      JOIN platform.functions_version v ON v.function_id = f.id AND v.number = f.active_version
     WHERE f.environment_id = $1::text AND f.name = $2::text
       AND (f.invoke IN ('public', $3::text) OR (f.invoke IS NULL AND $3::text <> 'anonymous'))
), made AS (
    INSERT INTO platform.functions_run
           (id, environment_id, function_id, version, status, phase, is_async, trigger, address_id, input, not_kept,
            logs, walls, caller_kind, caller_id, network, turn_at, request_id, depth, concurrency, slot, attempts,
            created_at, started_at, claimed_until)
    SELECT $6::text, $1::text, id, active_version, 'running', $5::text, $5::text = 'queued', $19::text, $20::text,
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
       CASE WHEN $21::boolean THEN set_config('synchronous_commit', 'off', true) END, $22::text
  FROM chosen
"""
# $1 run. As the row of `_CHOOSE`.
_FIND_AGAIN: Final = b"""
SELECT f.id, f.name, r.version, v.source_hash, f.timeout_ms, f.memory_mb, array_to_json(f.allowed_hosts),
       (SELECT jsonb_object_agg(s.name, encode(s.sealed_value, 'hex'))
          FROM platform.functions_secret s WHERE s.function_id = f.id AND s.sealed_value IS NOT NULL),
       true, true, NULL
  FROM platform.functions_run r
  JOIN platform.functions_function f ON f.id = r.function_id
  JOIN platform.functions_version v ON v.function_id = f.id AND v.number = r.version
 WHERE r.id = $1::text
"""
# A seat is taken by an unique index, so that no race goes past the limit. Two that reach for the same one at the same
# moment: the second waits for the first's commit and reaches again. Each begins to look at another seat, so that this
# is rare and the first one looked at is mostly free: to look at all sixty-four and sort them cost more than the insert.
REACHES: Final = 50


def visitor_seats(limit: int) -> int:
    """How many of the `limit` seats of an environment its visitors may take: the first so many."""
    return max(1, limit // 2)


def slots_for(place: Place, caller: Caller, visit: Visit | None) -> int:
    """How many synchronous calls of such a caller the plan allows at the same time."""
    limit = plan_limits(place.plan).function_concurrency
    if caller.kind != "anonymous":
        return limit
    theirs = visitor_seats(limit)
    return open_to_all(theirs) if visit is not None and visit.is_heavy else theirs


@cache
def _seats(limit: int, may_take: int, start: int) -> bytes:
    """Seats 1 to `may_take` of `limit` as an array of PostgreSQL's, each half from another one on for each `start`.

    Those that visitors may take come last, so that they have them as long as the others need no more than their half;
    and of those at the end the ones that heavy networks may take (`functions.quotas.client_networks`).
    """
    shared = visitor_seats(limit)
    parts = (range(shared + 1, may_take + 1), range(open_to_all(shared) + 1, min(shared, may_take) + 1))
    order = [seat for part in (*parts, range(1, open_to_all(shared) + 1)) for seat in _rotated(part, start)]
    return b"{%b}" % ",".join(map(str, order)).encode()


def _rotated(seats: range, start: int) -> list[int]:
    first = start % max(1, len(seats))
    return [*seats[first:], *seats[:first]]


_begins: Final = Together(_CHOOSE, is_durable=False)
_queueings: Final = Together(_CHOOSE, is_durable=True)


def begin(
    place: Place,
    caller: Caller,
    name: str,
    input_text: str,
    *,
    depth: int = 0,
    is_async: bool = False,
    visit: Visit | None = None,
    address_id: str | None = None,
) -> Started:
    """Make the run, executing (a lease is ours) or queued. One statement; a queued one of a visitor takes one more, and
    now and then one of somebody else (`functions.quotas.queue_quotas`).

    One that executes is committed when this returns, and on disk before it can have any effect: a row that it writes
    and its end come later in the same log and wait for it, and `make_durable` goes before what leaves the database.
    So a synchronous call waits for the disk once. If PostgreSQL crashes in between, `end` finds no run and writes it
    down whole. In a transaction of the caller's, and where it is queued, its commit waits as any other. Where the
    answer is lost with the connection, the run is looked for on a new one by the id that it has, and begun if it is not
    there: nobody else would execute it, and it would keep its seat for as long as its lease.

    `visit` says where a visitor comes from; without it their network has no share of its own. `address_id`: the inbound
    address by which it came. Raises NoSuchFunction (or one that this kind of caller may not invoke), TooManyRuns,
    TooManyVisits, TooManyQueued.
    """
    limit, is_visit = plan_limits(place.plan).function_concurrency, caller.kind == "anonymous"
    theirs = visitor_seats(limit) if is_visit else limit
    may_take = theirs if is_async else slots_for(place, caller, visit)
    trigger = "call" if address_id is None else "inbound"
    behind = 0
    input_bytes = input_text.encode()
    if is_async and is_visit:
        behind = _check_room_for_a_visit(place, visit, len(input_bytes))
    elif is_async:
        queue_quotas.admit(place, caller, len(input_bytes), address_id=address_id)
    # A queued one needs it until it ends.
    is_kept = is_async or is_input_kept(caller.kind, trigger, input_bytes)
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
        None if visit is None else b"%d" % visit.network,
        b"%f s" % (behind * TURN.total_seconds()) if behind else None,
        b"%d" % theirs,
        trigger.encode(),
        None if address_id is None else address_id.encode(),
    ]
    was_lost = False
    for _ in range(REACHES):
        start = int(random.random() * limit)  # noqa: S311 - not a secret
        seated = [*values, _seats(limit, may_take, start), None if is_kept else b"{input}", *origin]
        try:
            found = prepared.run(place.cluster, _FIND_AGAIN, [run_id.encode()]) if was_lost else []
            found = found or (_queueings if is_async else _begins).run(place.cluster, seated)
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
        [(function_id, found_name, version, source_hash, timeout_ms, memory_mb, hosts, secrets, had_seat, made, _)] = (
            found
        )
        if made == b"t":
            return Started(
                run_id=run_id,
                attempt=1,
                environment_id=place.environment_id,
                function_id=text_of(function_id),
                function_name=text_of(found_name),
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
        if had_seat != b"t":
            break
    raise TooManyRuns(theirs, of_visitors=is_visit)


# Of `run_turn_of_crowd` the limit's entries are looked at, and those of events that are queued, which are few. No input
# is read for its size.
_WAITING_VISITS: Final = """
SELECT count(*), coalesce(sum(octet_length(input)), 0), count(*) FILTER (WHERE network = %s)
  FROM (SELECT input, network FROM platform.functions_run
         WHERE phase = 'queued' AND environment_id = %s AND (caller_kind = 'anonymous' OR trigger = 'event')
           AND caller_kind = 'anonymous'
         ORDER BY coalesce(turn_at, created_at) LIMIT %s) few
"""


def waiting_visits(place: Place) -> tuple[int, int]:
    """How many queued runs of visitors wait in the environment, and how many bytes their inputs have together; no more
    than the plan's limit are counted."""
    count, size, _ = _waiting_visits(place)
    return count, size


def _waiting_visits(place: Place, network: int | None = None) -> tuple[int, int, int]:
    """How many wait, with how many bytes of input, and how many of them are this network's."""
    most = plan_limits(place.plan).visitor_queued_runs
    with connections[place.cluster].cursor() as cursor:
        cursor.execute(_WAITING_VISITS, [network, place.environment_id, most])
        count, size, own = cursor.fetchone()
        return int(count), int(size), int(own)


def _check_room_for_a_visit(place: Place, visit: Visit | None, input_size: int) -> int:
    """How many of its network wait before it. Raises TooManyVisits. Not under a lock: those that come at the same
    moment may pass the limits together."""
    limits = plan_limits(place.plan)
    count, size, own = _waiting_visits(place, None if visit is None else visit.network)
    if not has_share(limits.visitor_queued_runs, count, own):
        raise TooManyVisits(f"{limits.visitor_queued_runs} queued runs", is_share=count < limits.visitor_queued_runs)
    most = limits.visitor_queued_bytes
    if size + input_size > (most // 2 if own else most):
        raise TooManyVisits(f"{most} bytes of input in queued runs", is_share=size + input_size <= most)
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
    found = prepared.run_again_if_lost(connections[started.cluster], _SOURCE, values)
    if not found:
        raise NoSuchFunction
    [(source,)] = found
    return source or b""
