"""Turns committed outbox events into deliveries, one per event and subscribed webhook. Several processes may relay at
once (SKIP LOCKED, unique pairs). Other consumers (`rows.outbox.subscriptions`) join the transaction."""

import json
import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

import orjson
from django.db import InterfaceError, OperationalError, transaction
from django.db.models import Case, F, Q, When
from django.db.models.functions import Now

from platform_site.identity import call_depth, ids
from platform_site.postgres import statements
from platform_site.postgres.sql_functions import OctetLength
from platform_site.postgres.sqlstates import is_unavailable, lost_connection
from platform_site.postgres.transaction_settings import by_index
from rows.events.payloads import Hidden, InvalidFilter, Payloads
from rows.events.time_budget import ExpensiveEnvironments, TimeBudget
from rows.outbox import event_types, subscriptions
from rows.outbox.models import OutboxEvent
from rows.rules.evaluator import TooCostly
from webhooks.models import Delivery, Webhook

logger = logging.getLogger(__name__)

BATCH: Final = 200
MAX_CHARACTERS_PER_STATEMENT: Final = 4 * 2**20
"""Characters of bodies per statement: more could exceed the statement timeout at every pass and block the region."""
MAX_CHARACTERS_PER_PASS: Final = 4 * MAX_CHARACTERS_PER_STATEMENT
MAX_EVENTS_PER_PASS: Final = 5_000
EXPENSIVE_BATCH: Final = 50
LARGE_PAYLOAD_BYTES: Final = 64 * 1024
"""Larger events are read one by one."""
MAX_PAYLOAD_BYTES: Final = 8 * 2**20


_expensive: Final[dict[str, ExpensiveEnvironments]] = defaultdict(ExpensiveEnvironments)
_last: Final[dict[str, str]] = {}
"""By region, the environment of the last event."""


def relay_batch(using: str, *, batch: int = BATCH) -> int:
    """Returns how many events were relayed. Environments with expensive events come after all others, one per pass."""
    relayed = _relay_or_isolate(using, batch)
    for environment_id in _expensive[using]:
        further = _relay_or_isolate(using, min(batch, EXPENSIVE_BATCH), only=environment_id)
        if further:
            return relayed + further
        _expensive[using].discard(environment_id)
    return relayed


def _relay_or_isolate(using: str, batch: int, *, only: str | None = None) -> int:
    """Relay events of the environment `only`, or of all that are not expensive. An event that cannot be relayed
    (invalid JSON) is logged and leaves failed deliveries."""
    try:
        return _relay(using, batch, only)
    except (OperationalError, InterfaceError):
        raise  # the database's fault, not an event's
    except Exception as error:
        if is_unavailable(error):  # a terminated session raises another class
            raise OperationalError(str(error)) from error
        if batch > 1:
            # One delivery cannot be written, and the error does not say which. Write the first one alone; if it
            # succeeds, the next batch continues after it.
            return _relay_or_isolate(using, 1, only=only)
        logger.exception("an event was recorded as undeliverable: its deliveries cannot be written")
        return _relay(using, 1, only, why=f"no delivery: {type(error).__name__}")


def _relay(using: str, batch: int, only: str | None, *, why: str | None = None) -> int:
    """One batch, in one transaction. `why`: its events cannot be relayed."""
    with transaction.atomic(using=using):
        due = _due(using, batch, only)
        if not due:
            return 0
        environment_ids = {event.environment_id for event in due}
        webhooks = _webhooks_of(environment_ids, using)
        consumers = [factory(environment_ids, using) for factory in subscriptions.consumer_factories]
        payloads = Payloads(using)
        deliveries = _NewDeliveries(using)
        relayed = []
        budget = TimeBudget()
        for event in due:
            is_full = any(consumer.count > MAX_EVENTS_PER_PASS for consumer in consumers)
            if budget.is_over or is_full or deliveries.characters > MAX_CHARACTERS_PER_PASS:
                break
            if budget.has_used_share(event.environment_id):
                continue
            if event.text is not None:
                event.data = event.text
            for consumer in consumers:
                consumer.add(event)
            subscribed = _subscribed(event, webhooks[event.environment_id])
            if why is not None or event.size > MAX_PAYLOAD_BYTES:
                outcome = why or f"an event of {event.size >> 20} MB is not sent"
                deliveries.add(_delivery(event, webhook, Delivery.Status.EXHAUSTED, outcome) for webhook in subscribed)
            else:
                deliveries.add(_deliveries_of(event, subscribed, payloads))
            budget.charge(event.environment_id)
            relayed.append(event)
        deliveries.write()
        for consumer in consumers:
            consumer.write()
        done = OutboxEvent.objects.using(using).filter(pk__in=[event.pk for event in relayed])
        done.update(relayed_at=Now())
    if only is None and batch > 1:  # after a batch of one, the rest of the failed batch is next
        _last[using] = relayed[-1].environment_id
    for environment_id in budget.expensive if only is None else [only]:
        _expensive[using].add(environment_id)
    return len(relayed)


def _due(using: str, batch: int, only: str | None) -> list[Any]:
    """The events of one pass, locked, in order per environment, with `size` and, below LARGE_PAYLOAD_BYTES, `text`. If
    there are expensive environments, others are read by index ranges that skip their backlog."""
    waiting = (
        OutboxEvent.objects.using(using)
        .filter(relayed_at__isnull=True)
        .select_for_update(skip_locked=True)
        .defer("data")
        .annotate(size=OctetLength("data"), text=Case(When(size__lt=LARGE_PAYLOAD_BYTES, then=F("data"))))
    )
    expensive = list(_expensive[using])
    if only is None and not expensive:
        return list(waiting.order_by("sequence")[:batch])
    ranges = _all_but(expensive, _last.get(using)) if only is None else [_only(only)]
    found: list[Any] = []
    with by_index(using):
        for environments in ranges:
            found += waiting.filter(environments).order_by("environment_id", "sequence")[: batch - len(found)]
            if len(found) >= batch:
                break
    return found


def _all_but(expensive: Collection[str], last: str | None) -> Iterator[Q]:
    """Ranges of all environments but the expensive ones. They start after `last` and end with it, so that no backlog
    always comes first."""
    start = last or min(expensive)
    earlier = sorted(each for each in expensive if each < start)
    later = sorted(each for each in expensive if each > start)
    for low, high in pairwise([start, *later, None, *earlier, start]):
        above = Q() if low is None else Q(environment_id__gt=low)
        below = Q() if high is None else Q(environment_id__lt=high)
        yield above & below
    if start not in expensive:
        yield _only(start)


def _only(environment_id: str) -> Q:
    # A range: with `=`, the planner may pick an index that scans all environments.
    return Q(environment_id__range=(environment_id, environment_id))


def _webhooks_of(environment_ids: Iterable[str], using: str) -> dict[str, list[Webhook]]:
    found: dict[str, list[Webhook]] = defaultdict(list)
    live = Webhook.objects.using(using).filter(environment_id__in=environment_ids, deleted_at__isnull=True)
    for webhook in live.order_by("id"):
        found[webhook.environment_id].append(webhook)
    return found


def _subscribed(event: OutboxEvent, webhooks: Iterable[Webhook]) -> list[Webhook]:
    if event.type == "webhook.test":
        tested = json.loads(event.data).get("webhook_id")
        return [webhook for webhook in webhooks if webhook.id == tested]
    return [webhook for webhook in webhooks if event_types.matches(webhook.events, event.type)]


NewDelivery = dict[str, Any]

# One parameter, whatever the number of rows: the ORM spends 100 µs on each in writing and reading placeholders.
_INSERT = """
INSERT INTO platform.webhooks_delivery
       (id, environment_id, webhook_id, event_id, event_type, subject, sequence, depth, body, status, outcome,
        next_attempt_at, attempts, schedule_from)
SELECT id, environment_id, webhook_id, event_id, event_type, subject, sequence, depth, body, status, outcome,
       CASE WHEN status = 'pending' THEN now() END, 0, 0
  FROM json_to_recordset(%s::json) AS made (
       id text, environment_id text, webhook_id text, event_id text, event_type text, subject text, sequence bigint,
       depth smallint, body text, status text, outcome text)
    ON CONFLICT DO NOTHING
"""


class _NewDeliveries:
    """The deliveries of one pass, written MAX_CHARACTERS_PER_STATEMENT characters at a time. Existing ones stay."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._waiting: list[NewDelivery] = []
        self._waiting_characters = 0
        self.characters = 0

    def add(self, deliveries: Iterable[NewDelivery]) -> None:
        for delivery in deliveries:
            self._waiting.append(delivery)
            self.characters += len(delivery["body"])
            self._waiting_characters += len(delivery["body"])
            if self._waiting_characters > MAX_CHARACTERS_PER_STATEMENT:
                self.write()

    def write(self) -> None:
        if self._waiting:
            statements.execute(self._using, _INSERT, [orjson.dumps(self._waiting).decode()])
        self._waiting, self._waiting_characters = [], 0


def _deliveries_of(event: OutboxEvent, subscribed: Iterable[Webhook], payloads: Payloads) -> Iterator[NewDelivery]:
    """One for each webhook, exhausted if its payload cannot be made; none if role `server` may not read the row."""
    data: dict[str, Any] | None = None
    for webhook in subscribed:
        try:
            data = json.loads(event.data) if data is None else data
            made = _delivery_of(event, data, webhook, payloads)
        except Hidden:
            return
        except TooCostly:
            # Webhooks without a filter still get their delivery: only these conditions cannot be decided.
            outcome = "evaluating the filter or a rule on a row this large would take too long"
            made = _delivery(event, webhook, Delivery.Status.EXHAUSTED, outcome)
        except Exception as error:
            if lost_connection(error):
                raise
            facts = {"event_id": event.event_id, "webhook_id": webhook.id}
            logger.exception("no payload could be made for an event", extra=facts)
            made = _delivery(event, webhook, Delivery.Status.EXHAUSTED, f"no payload: {type(error).__name__}")
        yield made


def _delivery_of(event: OutboxEvent, data: Mapping[str, Any], webhook: Webhook, payloads: Payloads) -> NewDelivery:
    try:
        payload = payloads.payload_of(event, data, webhook)
    except InvalidFilter as error:
        at = f", at {error.path}" if error.path else ""
        outcome = f"the webhook's filter is not valid for {error.table}{at}"
        return _delivery(event, webhook, Delivery.Status.FILTERED, outcome[:200])
    if payload is None:
        return _delivery(event, webhook, Delivery.Status.FILTERED, "the webhook's filter does not match it")
    if event.depth >= call_depth.MAX_DEPTH:
        outcome = f"not sent, to prevent a loop: a chain of {event.depth} calls led to the event"
        return _delivery(event, webhook, Delivery.Status.DROPPED, outcome)
    body = event_types.body(event, payload)
    if not webhook.enabled:
        return _delivery(event, webhook, Delivery.Status.HELD, "the webhook is disabled", body)
    return _delivery(event, webhook, Delivery.Status.PENDING, None, body)


def _delivery(
    event: OutboxEvent, webhook: Webhook, status: Delivery.Status, outcome: str | None, body: str = ""
) -> NewDelivery:
    return {
        "id": ids.new("dlv"),
        "environment_id": event.environment_id,
        "webhook_id": webhook.id,
        "event_id": event.event_id,
        "event_type": event.type,
        "subject": event.subject,
        "sequence": event.sequence,
        "depth": event.depth,
        "body": body,
        "status": status.value,
        "outcome": outcome,
    }
