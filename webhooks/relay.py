"""From the outbox to deliveries: each committed event becomes one delivery for every webhook that wants its kind.

Many relays work side by side: events are claimed by their state with SKIP LOCKED, never by "the last number seen"
(reliability F17), and (webhook, event) is unique. All of it is one transaction of the region's database, without
network. An event that no webhook wants any more is done all the same; one that a filter refuses leaves a delivery that
says so.
"""

import json
import logging
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import orjson
from django.db import connections, transaction
from django.db.models.functions import Now

from platform_site.api import ids
from rows.outbox import OutboxEvent
from webhooks import events
from webhooks.models import Delivery, Webhook
from webhooks.payloads import Payloads

logger = logging.getLogger(__name__)

BATCH: Final = 200
MAX_DEPTH: Final = 8
"""A chain of webhook, function and row write is cut here."""


@dataclass(frozen=True, slots=True)
class Relayed:
    events: int
    deliveries: int


def relay_batch(using: str, *, batch: int = BATCH) -> Relayed:
    """Relay up to `batch` committed events of the region `using`. Zero events: there was nothing (left) to do.

    Four statements whatever the number of events and webhooks. An event that cannot be relayed (a payload that is no
    JSON) is logged and leaves deliveries that say so; the queue moves on (F26).
    """
    with transaction.atomic(using=using):
        due = list(
            OutboxEvent.objects.using(using)
            .select_for_update(skip_locked=True)
            .filter(relayed_at__isnull=True)
            .order_by("sequence")[:batch]
        )
        if not due:
            return Relayed(0, 0)
        wanted = _webhooks_of({event.environment_id for event in due}, using)
        payloads = Payloads(using)
        deliveries: list[NewDelivery] = []
        for event in due:
            interested = [w for w in wanted[event.environment_id] if events.matches(w.events, event.type)]
            if event.type == "webhook.test":
                interested = _only_the_tested(event, wanted[event.environment_id])
            if interested:
                try:
                    deliveries += _deliveries_of(event, interested, payloads)
                except Exception as error:
                    logger.exception("event parked: no delivery can be made of it", extra={"event_id": event.event_id})
                    deliveries += _failures_of(event, interested, f"no payload: {type(error).__name__}")
        _insert(deliveries, using)
        OutboxEvent.objects.using(using).filter(pk__in=[event.pk for event in due]).update(relayed_at=Now())
        return Relayed(len(due), len(deliveries))


def _webhooks_of(environment_ids: Iterable[str], using: str) -> dict[str, list[Webhook]]:
    found: dict[str, list[Webhook]] = defaultdict(list)
    live = Webhook.objects.using(using).filter(environment_id__in=environment_ids, deleted_at__isnull=True)
    for webhook in live.order_by("id"):
        found[webhook.environment_id].append(webhook)
    return found


def _only_the_tested(event: OutboxEvent, webhooks: Iterable[Webhook]) -> list[Webhook]:
    webhook_id = json.loads(event.data).get("webhook_id")
    return [webhook for webhook in webhooks if webhook.id == webhook_id]


@dataclass(slots=True)
class NewDelivery:
    """A row to be, with the fields of `Delivery`."""

    id: str
    environment_id: str
    webhook_id: str
    event_id: str
    event_type: str
    subject: str | None
    sequence: int
    depth: int
    body: str = ""
    status: str = Delivery.Status.PENDING.value
    outcome: str | None = None


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


def _insert(deliveries: list[NewDelivery], using: str) -> None:
    if deliveries:
        with connections[using].cursor() as cursor:
            cursor.execute(_INSERT, [orjson.dumps(deliveries).decode()])


def _deliveries_of(event: OutboxEvent, interested: Iterable[Webhook], payloads: Payloads) -> list[NewDelivery]:
    data: dict[str, Any] = json.loads(event.data)
    made = []
    for webhook in interested:
        carried = payloads.carried(event, data, webhook)
        delivery = _delivery(event, webhook)
        if carried is None:
            delivery.status, delivery.outcome = Delivery.Status.FILTERED.value, "the webhook's filter refused it"
        elif event.depth >= MAX_DEPTH:
            delivery.status, delivery.outcome = Delivery.Status.DROPPED.value, f"a chain of {event.depth} calls was cut"
        else:
            delivery.body = events.body(
                event_id=event.event_id,
                event_type=event.type,
                at=event.created_at,
                environment_id=event.environment_id,
                schema_version=event.schema_version,
                request_id=event.request_id,
                data=carried,
            )
            if not webhook.enabled:
                delivery.status, delivery.outcome = Delivery.Status.HELD.value, "the webhook is disabled"
        made.append(delivery)
    return made


def _failures_of(event: OutboxEvent, interested: Iterable[Webhook], outcome: str) -> list[NewDelivery]:
    """The fate of an event that no payload can be made of: visible in the history, nothing to send."""
    made = [_delivery(event, webhook) for webhook in interested]
    for delivery in made:
        delivery.status, delivery.outcome = Delivery.Status.EXHAUSTED.value, outcome
    return made


def _delivery(event: OutboxEvent, webhook: Webhook) -> NewDelivery:
    return NewDelivery(
        id=ids.new("dlv"),
        environment_id=event.environment_id,
        webhook_id=webhook.id,
        event_id=event.event_id,
        event_type=event.type,
        subject=event.subject,
        sequence=event.sequence,
        depth=event.depth,
    )
