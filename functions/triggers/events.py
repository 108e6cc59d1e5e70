"""From events to runs: each event of an environment becomes one run of every function that runs on it.

    the relay (`webhooks.delivery.relay`) ─▶ a `Heard` for each event and function, in the transaction that settles the
    event
                                    `queue` ─▶ a queued run, in the transaction that takes the `Heard` away

So one event is one run, whatever dies: both steps are transactions of the region's database, the first is taken once
because the event is settled once, the second because its row is gone; unique indexes hold both to it.

Why two steps: the relay serves all of a region's webhooks, and must not wait for the control database to say on which
plan an environment is, nor make ten thousand runs of one bulk write before it goes on. What was heard costs a line, and
waits here without end and in order; of these at most ROOM are queued in an environment at the same time, and no more
once their inputs have as many bytes as its plan lets wait; they take half of its seats and come after its calls
(`functions.runs.queue`). Environments take turns, ROOM at a time.
"""

import json
import logging
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson
from django.db import InterfaceError, OperationalError, connections, transaction

from functions import notify as function_notify
from functions.models import Function, Heard
from functions.runs.completion import TOLD
from functions.runs.sampled_sizes import weighed
from functions.runs.start import visitor_seats
from functions.triggers.event_subscriptions import covers
from platform_site.background.periodic import apart
from platform_site.identity import call_depth, ids
from platform_site.identity.plans import PlanLimits, plan_limits
from platform_site.postgres.sizes import OctetLength
from platform_site.postgres.sqlstates import is_away, lost_connection
from projects.provisioning.suspension import KNOWN_SECONDS, plans_of_active, suspended_in
from rows.events.payloads import Hidden, Payloads
from rows.events.time_budget import Costly, Turn
from rows.outbox import event_types
from rows.outbox.models import OutboxEvent
from rows.rules.evaluator import TooCostly

logger = logging.getLogger("platform.functions")

ROOM: Final = 200
"""Runs of events that are queued in one environment at the same time. More are queued once half of them have begun, so
that a hundred runs cost one look."""
AT_ONCE: Final = 4 * 2**20
"""Bytes of events that one transaction reads and makes inputs of."""
ROUNDS: Final = 25
"""Transactions that one environment gets in its turn: what was heard for nothing, since its function is gone, goes by
thousands and keeps nobody waiting."""
LARGEST: Final = 8 * 2**20
"""Bytes of an event that still makes a run, as it makes a delivery: an update has the row twice."""


_known: Final[dict[str, tuple[str, float]]] = {}
"""Of each environment its plan, and when it was asked (`time.monotonic()`)."""
_costly: Final[dict[str, Costly]] = defaultdict(Costly)
"""By region."""

# ── Heard ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_HEAR: Final = """
INSERT INTO platform.functions_heard (environment_id, function_id, event_id, sequence)
SELECT environment_id, function_id, event_id, sequence
  FROM unnest(%s::text[], %s::text[], %s::text[], %s::bigint[]) AS told(environment_id, function_id, event_id, sequence)
    ON CONFLICT DO NOTHING
"""


class Hearing:
    """What functions make of one turn of the relay. Implements `rows.outbox.subscriptions.Taking`; asks one query to
    begin with, and nothing more where no function of these environments runs on events."""

    def __init__(self, environment_ids: Collection[str], using: str) -> None:
        self.count = 0
        self._using = using
        self._heard: list[tuple[str, str, str, int]] = []
        self._listening: dict[str, list[tuple[str, list[str]]]] = defaultdict(list)
        listening = Function.objects.using(using).filter(events__isnull=False, events_stopped=None)
        found = listening.filter(environment_id__in=environment_ids).order_by("pk")
        for environment_id, function_id, patterns in found.values_list("environment_id", "pk", "events"):
            self._listening[environment_id or ""].append((function_id, patterns or []))

    def add(self, event: OutboxEvent) -> None:
        for function_id, patterns in self._listening.get(event.environment_id, ()):
            if covers(patterns, event.type):
                self._heard.append((event.environment_id, function_id, event.event_id, event.sequence))
                self.count += 1

    def write(self) -> None:
        if not self._heard:
            return
        with connections[self._using].cursor() as cursor:
            cursor.execute(_HEAR, [list(column) for column in zip(*self._heard, strict=True)])
        function_notify.after_commit(self._using)


def forget_environment(environment_id: str, using: str) -> None:
    """What was heard in an environment that is gone, in batches."""
    heard = Heard.objects.using(using).filter(environment_id=environment_id).order_by("pk")
    while batch := list(heard.values_list("pk", flat=True)[:1000]):
        Heard.objects.using(using).filter(pk__in=batch).delete()


# ── Queued ──────────────────────────────────────────────────────────────────────────────────────────────────────────

# In leaps from one environment to the next, whatever waits in each.
REACHED: Final = """
RECURSIVE reached AS (
    (SELECT environment_id FROM platform.functions_heard ORDER BY environment_id LIMIT 1)
    UNION ALL
    SELECT (SELECT h.environment_id FROM platform.functions_heard h
             WHERE h.environment_id > reached.environment_id ORDER BY h.environment_id LIMIT 1)
      FROM reached WHERE reached.environment_id IS NOT NULL
)"""
"""A common table expression: the environments in which something waits, and null."""
# By the index that has the order: without statistics the planner expects few, and would fetch and sort all of them.
_IN_ORDER: Final = "SELECT set_config('enable_sort', %s, true)"
# Of `run_turn_of_crowd`, no more than the room and what visitors have there. No input is read for its size.
_QUEUED: Final = """
SELECT count(*), coalesce(sum(octet_length(input)), 0)
  FROM (SELECT input FROM platform.functions_run r
         WHERE r.phase = 'queued' AND r.environment_id = {environment}
           AND (r.caller_kind = 'anonymous' OR r.trigger = 'event') AND r.trigger = 'event' LIMIT {most}) few
"""
_WAITING: Final = f"""
WITH {REACHED}
SELECT reached.environment_id
  FROM reached
 CROSS JOIN LATERAL ({_QUEUED.format(environment="reached.environment_id", most="%(half)s + 1")}) queued (count, size)
 WHERE reached.environment_id <> ALL (%(suspended)s::text[]) AND queued.count <= %(half)s
"""  # noqa: S608 - constants
# One worker at a time queues of an environment, so that runs are made in order; another has nothing to do there.
_ALONE: Final = "SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 0))"
_FUNCTIONS: Final = """
SELECT id, active_version, events, events_kind, events_id FROM platform.functions_function
 WHERE id = ANY (%s) AND environment_id = %s AND events IS NOT NULL AND events_stopped IS NULL
"""
# Held until the runs that name them are committed, so that a deletion comes before or after. Whoever deploys at this
# moment is waited for: one that is not found is gone, and its events with it.
_FUNCTIONS_HELD: Final = f"{_FUNCTIONS} FOR KEY SHARE"
_ROOM: Final = _QUEUED.format(environment="%s", most="%s")
_QUEUE: Final = f"""
WITH made AS (
    INSERT INTO platform.functions_run
           (id, environment_id, function_id, version, status, phase, is_async, trigger, event_id, input, error, logs,
            walls, caller_kind, caller_id, request_id, depth, attempts, concurrency, created_at, ended_at, duration_ms,
            weight)
    SELECT id, environment_id, function_id, version, CASE WHEN error IS NULL THEN 'running' ELSE 'failed' END,
           CASE WHEN error IS NULL THEN 'queued' ELSE 'ended' END, true, 'event', event_id, input, error, '[]', '{{}}',
           caller_kind, caller_id, request_id, depth, 0, concurrency, clock_timestamp(),
           CASE WHEN error IS NOT NULL THEN now() END, CASE WHEN error IS NOT NULL THEN 0 END,
           CASE WHEN error IS NOT NULL THEN {weighed("octet_length(input)", "caller_kind")} END
      FROM json_to_recordset(%s::json) AS made (
           id text, environment_id text, function_id text, version int, event_id text, input text, error jsonb,
           caller_kind text, caller_id text, request_id text, depth smallint, concurrency int)
        ON CONFLICT (event_id, function_id) WHERE event_id IS NOT NULL DO NOTHING
 RETURNING id, environment_id, function_id, version, request_id, depth, duration_ms, error, phase
), failed AS (
    SELECT * FROM made WHERE phase = 'ended'
), told AS ({TOLD})
SELECT (SELECT count(*) FROM made WHERE phase = 'queued'), EXISTS (SELECT 1 FROM told)
"""  # noqa: S608 - constants


@dataclass(frozen=True, slots=True)
class _Everything:
    """What is told to functions: all that role `server` may read. Implements `rows.events.payloads.Subscriber`."""

    id: str = ""
    filter: Mapping[str, Any] | None = None
    columns: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class _Fate:
    """What becomes of an event: runs with this input, or ones that have failed before they began."""

    type: str | None = None
    """None: it is not kept any more."""
    request_id: str | None = None
    depth: int = 0
    input: str = "{}"
    error: Mapping[str, str] | None = None
    is_hidden: bool = False
    """Role `server` may not read the row: no run says that it was written."""


@dataclass(frozen=True, slots=True)
class _NewRun:
    """A row to be, with the fields of `Run`."""

    id: str
    environment_id: str
    function_id: str
    version: int
    event_id: str
    caller_kind: str
    caller_id: str
    concurrency: int
    request_id: str | None
    depth: int
    input: str
    error: Mapping[str, str] | None


def queue(using: str) -> int:
    """Queue runs of what was heard, in each environment as many as there is room for. Returns how many.

    Of the environments whose events take long to decide one has its turn, after the others. Asks the control database,
    if anything waits: for plans, and whether the environment is there and not suspended. Raises OperationalError while
    it is away; all stays as it is then.
    """
    with connections[using].cursor() as cursor:
        cursor.execute(_WAITING, {"suspended": suspended_in(using), "half": ROOM // 2})
        waiting = [environment_id for (environment_id,) in cursor.fetchall()]
    queued = 0
    plans = _plans(waiting)
    costly = _costly[using]
    turn = Turn()
    for environment_id in costly.one_of(plans):
        costly.discard(environment_id)
        with apart(f"what functions of {environment_id} heard", using=using):
            limits = plan_limits(plans[environment_id])
            for _ in range(ROUNDS):
                looked_at, made = _queue_some(environment_id, limits, using)
                queued += made
                turn.book(environment_id)
                if not looked_at or turn.has_had(environment_id):
                    break
        turn.book(environment_id)
        if turn.has_had(environment_id):
            costly.add(environment_id)
    return queued


def _plans(environment_ids: Collection[str]) -> dict[str, str]:
    """The plans of those where something may begin, as they were KNOWN_SECONDS ago at most. Raises OperationalError."""
    now = time.monotonic()
    for environment_id, (_, asked_at) in list(_known.items()):
        if now - asked_at >= KNOWN_SECONDS:
            _known.pop(environment_id, None)
    if unknown := [each for each in environment_ids if each not in _known]:
        _known.update({each: (plan, now) for each, plan in plans_of_active(unknown).items()})
    return {each: known[0] for each in environment_ids if (known := _known.get(each)) is not None}


def _queue_some(environment_id: str, limits: PlanLimits, using: str, *, most: int | None = None) -> tuple[int, int]:
    try:
        return _queue(environment_id, limits, using, most=most)
    except (OperationalError, InterfaceError):
        raise  # says nothing against any event
    except Exception as error:
        if is_away(error):
            raise  # nor does this: a session that PostgreSQL ended has another name
        if most != 1:
            # One of them cannot be written, and nobody says which. The first goes alone, the others in the next batch.
            return _queue_some(environment_id, limits, using, most=1)
        logger.exception("an event's run cannot be written", extra={"environment_id": environment_id})
        return _queue(environment_id, limits, using, most=1, is_hopeless=True)


def _queue(
    environment_id: str, limits: PlanLimits, using: str, *, most: int | None = None, is_hopeless: bool = False
) -> tuple[int, int]:
    """One batch, in one transaction. Returns how much of what was heard is dealt with, and how many runs are queued for
    it. `is_hopeless`: no input can be made of the event in it."""
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute(_ALONE, [f"heard:{environment_id}"])
        if not cursor.fetchone()[0]:
            return 0, 0
        cursor.execute(_ROOM, [environment_id, ROOM])
        count, size = cursor.fetchone()
        room = ROOM - count
        if room <= 0 or size >= limits.queued_bytes:
            return 0, 0
        cursor.execute(_IN_ORDER, ["off"])
        waiting = Heard.objects.using(using).filter(environment_id=environment_id).order_by("sequence")
        heard = list(waiting[: most or room])
        cursor.execute(_IN_ORDER, ["on"])
        # Who wants which of them is asked first, and again when it is decided what they are: no function is locked for
        # as long as that takes, and what nobody wants is not decided.
        listening = _listening(heard, environment_id, using, _FUNCTIONS)
        batch, events_of_batch = _read(heard, listening, using)
        if not batch:
            return 0, 0
        fates: dict[str, _Fate] = {}
        payloads = Payloads(using)
        turn = Turn()
        decided = []
        for each in batch:
            if turn.is_over or turn.has_had(environment_id):
                break
            decided.append(each)
            if each.event_id in events_of_batch and each.event_id not in fates:
                event = events_of_batch[each.event_id]
                fates[each.event_id] = _fate_of(event, payloads, is_hopeless=is_hopeless)
                turn.book(environment_id)
        listening = _listening(decided, environment_id, using, _FUNCTIONS_HELD)
        made: list[_NewRun] = []
        seats = visitor_seats(limits.function_concurrency)
        for each in decided:
            fate = fates.get(each.event_id)
            if fate is None or fate.is_hidden or not _wants(listening, each, fate.type):
                continue
            version, _, caller_kind, caller_id = listening[each.function_id]
            made.append(_NewRun(
                ids.new("run"), environment_id, each.function_id, version, each.event_id, caller_kind, caller_id, seats,
                fate.request_id, fate.depth, fate.input, fate.error,
            ))  # fmt: skip
        queued, told = 0, False
        if made:
            cursor.execute(_QUEUE, [orjson.dumps(made).decode()])
            queued, told = cursor.fetchone()
        Heard.objects.using(using).filter(pk__in=[each.pk for each in decided]).delete()
        if told:
            transaction.on_commit(lambda: function_notify.tell(using), using=using)
        return len(decided), int(queued)


def _listening(
    heard: Sequence[Heard], environment_id: str, using: str, statement: str
) -> dict[str, tuple[int, list[str], str, str]]:
    """Of the functions that heard these, and run on events now: version, patterns, and as whom."""
    with connections[using].cursor() as cursor:
        cursor.execute(statement, [list({each.function_id for each in heard}), environment_id])
        return {function_id: tuple(rest) for function_id, *rest in cursor.fetchall()}


def _wants(listening: Mapping[str, tuple[int, list[str], str, str]], each: Heard, event_type: str | None) -> bool:
    """Whether its function is still there, and was not deployed without this event since. `event_type`: None where the
    event is not kept any more."""
    found = listening.get(each.function_id)
    return found is not None and (event_type is None or covers(found[1], event_type))


def _read(
    heard: Sequence[Heard], listening: Mapping[str, tuple[int, list[str], str, str]], using: str
) -> tuple[list[Heard], dict[str, OutboxEvent | None]]:
    """The first of what was heard, as many as have AT_ONCE together, and the events by id that are wanted, None where
    one is not kept any more. What is not wanted is not read, nor is the `data` of one that has more than LARGEST."""
    known = OutboxEvent.objects.using(using).filter(event_id__in=[each.event_id for each in heard])
    kept = known.annotate(size=OctetLength("data")).values_list("event_id", "type", "size")
    types_and_sizes = {event_id: (event_type, size) for event_id, event_type, size in kept}
    batch: list[Heard] = []
    found: dict[str, OutboxEvent | None] = {}
    large = []
    total = 0
    for each in heard:
        event_type, size = types_and_sizes.get(each.event_id, (None, 0))
        if _wants(listening, each, event_type) and each.event_id not in found:
            total += size
            if found and total > AT_ONCE:
                break
            found[each.event_id] = None
            if size > LARGEST:
                large.append(each.event_id)
        batch.append(each)
    found |= {event.event_id: event for event in known.filter(event_id__in=found.keys() - set(large))}
    return batch, found | {event.event_id: event for event in known.filter(event_id__in=large).defer("data")}


def _fate_of(event: OutboxEvent | None, payloads: Payloads, *, is_hopeless: bool) -> _Fate:
    if event is None:
        return _Fate(error=_error("EventGone", "event_gone", "the event was no longer kept when its turn came"))
    fate = _Fate(event.type, event.request_id, event.depth)
    if event.depth >= call_depth.LONGEST:
        message = f"a chain of {event.depth} functions and webhooks led here; it was cut"
        return replace(fate, error=_error("Loop", "chain_cut", message))
    if "data" in event.get_deferred_fields():
        message = f"no function runs on an event of more than {LARGEST >> 20} MB"
        return replace(fate, error=_error("EventTooLarge", "event_too_large", message))
    try:
        if is_hopeless:
            raise ValueError("its run cannot be written")
        return replace(fate, input=_input_of(event, payloads))
    except Hidden:
        return replace(fate, is_hidden=True)
    except TooCostly:
        message = "a rule would take too long on a row as large as this"
        return replace(fate, error=_error("EventTooCostly", "event_too_costly", message))
    except (OperationalError, InterfaceError):
        raise
    except Exception as error:
        if lost_connection(error):
            raise
        logger.exception("no run can be made of an event", extra={"event_id": event.event_id})
        return replace(fate, error=_error("PlatformError", "platform", "no input could be made of the event"))


def _input_of(event: OutboxEvent, payloads: Payloads) -> str:
    """The body of a webhook's delivery, with all that role `server` may read. Raises Hidden, TooCostly."""
    return event_types.body(event, payloads.carried(event, json.loads(event.data), _Everything()) or {})


def _error(name: str, reason: str, message: str) -> Mapping[str, str]:
    """Of a run that ends before it begins, visibly."""
    return {"name": name, "reason": reason, "message": message}
