"""Event triggers: each event becomes exactly one run of every function that subscribes to it. The relay
(`webhooks.delivery.relay`) makes a `PendingEvent` in the transaction that settles the event; `queue` makes a queued run
in the transaction that deletes it. There are two steps because the relay serves all webhooks of a region: it must not
wait for the control database to learn a plan, nor create ten thousand runs of a bulk write before it continues."""

import json
import logging
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import orjson
from django.db import InterfaceError, OperationalError, transaction
from django.db.models import Case, F, When

from functions.models import PendingEvent
from functions.quotas.slots import anonymous_slots
from functions.runs.completion import EVENT_OF_RUN
from functions.runs.storage import sampled_size
from functions.triggers.event_subscriptions import covers
from functions.triggers.pending_events import REACHED
from platform_site.background import advisory_locks
from platform_site.background.advisory_locks import LockSpace
from platform_site.background.periodic import log_failures
from platform_site.identity import call_depth, ids, signals
from platform_site.identity.plans import PlanLimits, plan_limits
from platform_site.postgres import sql_files, statements
from platform_site.postgres.sql_functions import OctetLength
from platform_site.postgres.sqlstates import is_unavailable, lost_connection
from platform_site.postgres.transaction_settings import by_index, prevent_sorts_and_scans
from projects.provisioning.suspension import FRESH_SECONDS, plans_of_active, suspended_in
from rows.events.payloads import Hidden, Payloads
from rows.events.time_budget import ExpensiveEnvironments, TimeBudget
from rows.outbox import event_types
from rows.outbox.models import OutboxEvent
from rows.rules.evaluator import TooCostly

logger = logging.getLogger("platform.functions")

MAX_QUEUED: Final = 200
"""Per environment. More are queued once half of them have begun, so that a hundred runs cost one check."""
AT_ONCE: Final = 4 * 2**20
"""Bytes of events that one transaction reads."""
ROUNDS: Final = 25
"""Transactions of one environment per pass, so that its events do not delay others."""
MAX_INPUT_BYTES: Final = 8 * 2**20
"""As for a delivery: an update has the row twice."""

_plan_cache: Final[dict[str, tuple[str, float]]] = {}
"""The plan of each environment, and when it was read."""
_expensive: Final[dict[str, ExpensiveEnvironments]] = defaultdict(ExpensiveEnvironments)  # by region

# Reads the index `run_queue_order`: at most MAX_QUEUED entries and the anonymous callers' runs.
_QUEUED_OF_ENVIRONMENT: Final = """
SELECT count(*), coalesce(sum(octet_length(input)), 0)
  FROM (SELECT input FROM platform.functions_run r
         WHERE r.phase = 'queued' AND r.environment_id = {environment}
           AND (r.caller_kind = 'anonymous' OR r.trigger = 'event') AND r.trigger = 'event' LIMIT {most}) few
"""
_SQL: Final = sql_files.load(
    __file__,
    event_of_run=EVENT_OF_RUN,
    reached=REACHED,
    queued_of_each=_QUEUED_OF_ENVIRONMENT.format(environment="reached.environment_id", most="%(half)s + 1"),
    weight=sampled_size("octet_length(input)", "caller_kind"),
)
_FUNCTIONS: Final = _SQL["functions"]
# Locked until the runs that reference them are committed, to serialize with deletions.
_FUNCTIONS_LOCKED: Final = f"{_FUNCTIONS} FOR KEY SHARE"
_COUNT_QUEUED: Final = _QUEUED_OF_ENVIRONMENT.format(environment="%s", most="%s")


@dataclass(frozen=True, slots=True)
class _Decision:
    """The decision about an event: queued runs with this input, or failed runs that never began."""

    type: str | None = None
    """None: the event has expired."""
    request_id: str | None = None
    depth: int = 0
    input: str = "{}"
    error: Mapping[str, str] | None = None

    def failed(self, name: str, reason: str, message: str) -> "_Decision":
        return replace(self, error={"name": name, "reason": reason, "message": message})


class _Subscription(NamedTuple):
    version: int
    patterns: list[str]
    caller_kind: str
    caller_id: str


def queue(using: str) -> int:
    """Returns how many runs were queued: up to MAX_QUEUED in each environment; of those with expensive events in one,
    after the others. Raises OperationalError while the control database, which knows the plans, is unavailable."""
    with by_index(using):
        facts = {"suspended": suspended_in(using), "half": MAX_QUEUED // 2}
        waiting = statements.column(using, _SQL["waiting"], facts)
    queued = 0
    plans = _plans(waiting)
    expensive = _expensive[using]
    budget = TimeBudget()
    for environment_id in expensive.select(plans):
        expensive.discard(environment_id)
        with log_failures(f"events for functions of {environment_id}", using=using):
            limits = plan_limits(plans[environment_id])
            for _ in range(ROUNDS):
                processed, count = _queue_next(environment_id, limits, using)
                queued += count
                budget.charge(environment_id)
                if not processed or budget.has_used_share(environment_id):
                    break
        budget.charge(environment_id)
        if budget.has_used_share(environment_id):
            expensive.add(environment_id)
    return queued


def _plans(environment_ids: Collection[str]) -> dict[str, str]:
    now = time.monotonic()
    for environment_id, (_, asked_at) in list(_plan_cache.items()):
        if now - asked_at >= FRESH_SECONDS:
            _plan_cache.pop(environment_id, None)
    if unknown := [each for each in environment_ids if each not in _plan_cache]:
        _plan_cache.update({each: (plan, now) for each, plan in plans_of_active(unknown).items()})
    found = {each: _plan_cache.get(each) for each in environment_ids}
    return {each: known[0] for each, known in found.items() if known is not None}


def _queue_next(environment_id: str, limits: PlanLimits, using: str, *, most: int | None = None) -> tuple[int, int]:
    try:
        return _queue_batch(environment_id, limits, using, most=most)
    except (OperationalError, InterfaceError):
        raise  # not the fault of an event
    except Exception as error:
        if is_unavailable(error):
            raise  # another exception class if PostgreSQL ended the session
        if most != 1:
            # One run cannot be written, and the error does not say which.
            return _queue_next(environment_id, limits, using, most=1)
        logger.exception("an event's run cannot be written", extra={"environment_id": environment_id})
        return _queue_batch(environment_id, limits, using, most=1, is_unwritable=True)


def _queue_batch(
    environment_id: str, limits: PlanLimits, using: str, *, most: int | None = None, is_unwritable: bool = False
) -> tuple[int, int]:
    """Returns how many pending events are processed, and how many runs are queued for them. `is_unwritable`: no input
    can be made of its only event."""
    with transaction.atomic(using=using):
        # One worker at a time queues runs of an environment, so that they are created in order; others return.
        if not advisory_locks.try_lock(using, LockSpace.NAMED, f"pending-events:{environment_id}"):
            return 0, 0
        pending = _next_pending(environment_id, limits, using)[:most]
        if not pending:
            return 0, 0
        # Subscriptions are read twice: events without subscribers are not decided, and no function is locked for as
        # long as deciding takes.
        subscriptions = _subscriptions_of(pending, environment_id, using, _FUNCTIONS)
        batch, events = _read(pending, subscriptions, using)
        processed: list[PendingEvent] = []
        decisions: dict[str, _Decision] = {}
        payloads, budget = Payloads(using), TimeBudget()
        for each in batch:
            if budget.has_used_share(environment_id):
                break
            processed.append(each)
            if each.event_id in events:
                decision = _decide(events.pop(each.event_id), payloads, is_unwritable=is_unwritable)
                if decision is not None:
                    decisions[each.event_id] = decision
                budget.charge(environment_id)
        subscriptions = _subscriptions_of(processed, environment_id, using, _FUNCTIONS_LOCKED)
        runs = []
        for each in processed:
            decision = decisions.get(each.event_id)
            if decision is not None and _is_subscribed(subscriptions, each, decision.type):
                runs.append(_new_run(each, decision, subscriptions[each.function_id], limits))
        queued, has_event = 0, False
        if runs:
            queued, has_event = statements.row(using, _SQL["queue"], [orjson.dumps(runs).decode()])
        prevent_sorts_and_scans(using, prevented=True)
        PendingEvent.objects.using(using).filter(pk__in=[each.pk for each in processed]).delete()
        if has_event:
            signals.run_finished.send(sender=None, using=using)
        return len(processed), queued


def _next_pending(environment_id: str, limits: PlanLimits, using: str) -> list[PendingEvent]:
    count, size = statements.row(using, _COUNT_QUEUED, [environment_id, MAX_QUEUED])
    if count >= MAX_QUEUED or size >= limits.queued_bytes:
        return []
    # Without statistics, or with old ones, the planner would fetch and sort all rows.
    prevent_sorts_and_scans(using, prevented=True)
    waiting = PendingEvent.objects.using(using).filter(environment_id=environment_id).order_by("sequence")
    found = list(waiting[: MAX_QUEUED - count])
    prevent_sorts_and_scans(using, prevented=False)
    return found


def _new_run(
    pending: PendingEvent, decision: _Decision, subscription: _Subscription, limits: PlanLimits
) -> dict[str, Any]:
    return {
        "id": ids.new("run"), "environment_id": pending.environment_id, "function_id": pending.function_id,
        "version": subscription.version, "event_id": pending.event_id, "caller_kind": subscription.caller_kind,
        "caller_id": subscription.caller_id, "concurrency": anonymous_slots(limits.function_concurrency),
        "request_id": decision.request_id, "depth": decision.depth, "input": decision.input, "error": decision.error,
    }  # fmt: skip


def _subscriptions_of(
    pending: Sequence[PendingEvent], environment_id: str, using: str, statement: str
) -> dict[str, _Subscription]:
    found = statements.rows(using, statement, [list({each.function_id for each in pending}), environment_id])
    return {function_id: _Subscription(*rest) for function_id, *rest in found}


def _is_subscribed(subscriptions: Mapping[str, _Subscription], each: PendingEvent, event_type: str | None) -> bool:
    found = subscriptions.get(each.function_id)
    return found is not None and (event_type is None or covers(found.patterns, event_type))


def _read(
    pending: Sequence[PendingEvent], subscriptions: Mapping[str, _Subscription], using: str
) -> tuple[list[PendingEvent], dict[str, OutboxEvent | None]]:
    """The first pending events, up to AT_ONCE bytes in all, and the subscribed events by id, None for an expired one.
    `data` is deferred if it is longer than MAX_INPUT_BYTES."""
    known = OutboxEvent.objects.using(using).filter(event_id__in=[each.event_id for each in pending])
    kept = known.annotate(size=OctetLength("data")).values_list("event_id", "type", "size")
    types_and_sizes = {event_id: (event_type, size) for event_id, event_type, size in kept}
    batch: list[PendingEvent] = []
    found: dict[str, OutboxEvent | None] = {}
    total = 0
    for each in pending:
        event_type, size = types_and_sizes.get(each.event_id, (None, 0))
        if _is_subscribed(subscriptions, each, event_type) and each.event_id not in found:
            total += size
            if found and total > AT_ONCE:
                break
            found[each.event_id] = None
        batch.append(each)
    small = Case(When(size__lte=MAX_INPUT_BYTES, then=F("data")))
    for event in known.filter(event_id__in=found).defer("data").annotate(size=OctetLength("data"), text=small):
        if event.text is not None:
            event.data = event.text
        found[event.event_id] = event
    return batch, found


def _decide(event: OutboxEvent | None, payloads: Payloads, *, is_unwritable: bool) -> _Decision | None:
    """None if role `server` may not read the row: no run may reveal that it was written."""
    if event is None:
        return _Decision().failed("EventGone", "event_gone", "the event expired before the function could run")
    decision = _Decision(event.type, event.request_id, event.depth)
    if event.depth >= call_depth.MAX_DEPTH:
        message = f"not run, to prevent a loop: a chain of {event.depth} functions and webhooks led to the event"
        return decision.failed("Loop", "chain_cut", message)
    if "data" in event.get_deferred_fields():
        message = f"the event is larger than {MAX_INPUT_BYTES >> 20} MB, the limit for functions"
        return decision.failed("EventTooLarge", "event_too_large", message)
    try:
        if is_unwritable:
            raise ValueError("its run cannot be written")
        payload = payloads.payload_of(event, json.loads(event.data)) or {}
        return replace(decision, input=event_types.body(event, payload))
    except Hidden:
        return None
    except TooCostly:
        message = "a rule would take too long on a row as large as this"
        return decision.failed("EventTooCostly", "event_too_costly", message)
    except (OperationalError, InterfaceError):
        raise
    except Exception as error:
        if lost_connection(error):
            raise
        logger.exception("no run can be made of an event", extra={"event_id": event.event_id})
        return decision.failed("PlatformError", "platform", "no input could be made of the event")
