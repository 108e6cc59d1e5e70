"""Which events of an environment have subscribers: higher apps register them here, and a write reads one table.
`rows.outbox.models.EventInterest` is kept equal to what all of them want, in the transaction that changes a
subscription and under one lock per environment: each app registers what its subscriptions are, and calls `refresh` when
they change. The relay (`webhooks.delivery.relay`) settles each event once. Other apps that process events register a
consumer, which is called in the same transaction: its writes are committed with the event, or not at all."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, Protocol

from django.db import connections
from django.db.models import Q

from platform_site.background import advisory_locks
from platform_site.background.advisory_locks import LockSpace
from rows.outbox import event_types
from rows.outbox.models import ANY, EventInterest, OutboxEvent

PatternsOf = Callable[[str, str], Iterable[Sequence[str]]]
"""`(environment_id, using)` to the event patterns of each subscription. One query."""


class ConsumerInterest(Protocol):
    """The events that one consumer takes in one batch of the relay."""

    count: int
    """How many rows it will write: the relay ends a batch that becomes large."""

    def add(self, event: OutboxEvent) -> None:
        """Take an event that the current transaction settles; its `data` may not be loaded."""

    def write(self) -> None:
        """Called once, at the end of the batch."""


Consumer = Callable[[Collection[str], str], ConsumerInterest]
"""`(environment ids, using)`: called at the beginning of a batch with events of these environments."""

_sources: Final[list[tuple[PatternsOf, bool]]] = []
_consumers: Final[list[Consumer]] = []


def register(patterns_of: PatternsOf, *, is_for_relay: bool = True) -> None:
    """Called once at start by an app that has subscriptions. Not `is_for_relay`: it reads the events by itself."""
    _sources.append((patterns_of, is_for_relay))


def register_consumer(consumer: Consumer) -> None:
    """Called once at start by an app that processes events."""
    _consumers.append(consumer)


def interests_of_consumers(environment_ids: Collection[str], using: str) -> list[ConsumerInterest]:
    """One for each consumer, for a batch that begins."""
    return [consumer(environment_ids, using) for consumer in _consumers]


def refresh(environment_id: str, using: str) -> None:
    """Make the table of event interests equal to the subscriptions, in the current transaction, which holds the `lock`
    unless the environment is still being created."""
    wanted: dict[tuple[str, str], bool] = {}
    for patterns_of, is_for_relay in _sources:
        for patterns in patterns_of(environment_id, using):
            for pair in event_types.interests(patterns):
                wanted[pair] = wanted.get(pair, False) or is_for_relay
    interests = EventInterest.objects.using(using).filter(environment_id=environment_id)
    known = {(each.table_name, each.action): each for each in interests}
    interests.filter(pk__in=[each.pk for pair, each in known.items() if pair not in wanted]).delete()
    for is_for_relay in (True, False):
        other = [each.pk for pair, each in known.items() if wanted.get(pair) is is_for_relay is not each.is_for_relay]
        if other:
            interests.filter(pk__in=other).update(is_for_relay=is_for_relay)
    EventInterest.objects.using(using).bulk_create(
        EventInterest(environment_id=environment_id, table_name=table, action=action, is_for_relay=is_for_relay)
        for (table, action), is_for_relay in sorted(wanted.items())
        if (table, action) not in known
    )


def is_wanted(event_type: str, environment_id: str, using: str) -> bool:
    """Whether this system event has a subscriber, by its name or by `*`. One query."""
    [(name, action)] = event_types.interests([event_type])
    by_name_or_all = Q(table_name=name, action=action) | Q(table_name=ANY, action=ANY)
    return EventInterest.objects.using(using).filter(by_name_or_all, environment_id=environment_id).exists()


def lock(environment_id: str, using: str) -> None:
    """One change of an environment's subscriptions at a time, until the transaction ends."""
    with connections[using].cursor() as cursor:
        advisory_locks.lock(cursor, LockSpace.NAMED, f"webhooks:{environment_id}")
