"""Which events of an environment have subscribers. Apps register their subscriptions and call `refresh` in the
transaction of each change, under one lock per environment, which updates `rows.outbox.models.EventInterest`. Consumers
of events run in the transaction of the relay (`webhooks.delivery.relay`)."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, Protocol

from platform_site.background import advisory_locks
from platform_site.background.advisory_locks import LockSpace
from rows.outbox import event_types
from rows.outbox.models import ANY, EventInterest, OutboxEvent

PatternsOf = Callable[[str, str], Iterable[Sequence[str]]]
"""`(environment_id, using)` to the event patterns of each subscription. One query."""


class EventConsumer(Protocol):
    """Of one batch of the relay: `add` receives each event, `write` stores what was made of them."""

    count: int

    def add(self, event: OutboxEvent) -> None:
        pass

    def write(self) -> None:
        pass


ConsumerFactory = Callable[[Collection[str], str], EventConsumer]
"""`(environment ids, using)`: called at the start of each batch of the relay."""

_sources: Final[list[tuple[PatternsOf, bool]]] = []
consumer_factories: Final[list[ConsumerFactory]] = []
"""Filled in `ready` of `functions.apps`."""


def register(patterns_of: PatternsOf, *, is_for_relay: bool = True) -> None:
    """Called in `ready` of `rows.apps`, `webhooks.apps` and `functions.apps`."""
    _sources.append((patterns_of, is_for_relay))


def refresh(environment_id: str, using: str) -> None:
    """With the `lock` held unless the environment is being created."""
    wanted: dict[tuple[str, str], bool] = {}
    for patterns_of, is_for_relay in _sources:
        for patterns in patterns_of(environment_id, using):
            for pair in event_types.interests(patterns):
                wanted[pair] = wanted.get(pair, False) or is_for_relay
    interests = EventInterest.objects.using(using).filter(environment_id=environment_id)
    known = {(each.table_name, each.action, each.is_for_relay): each.pk for each in interests}
    due = {(table, action, is_for_relay) for (table, action), is_for_relay in wanted.items()}
    interests.filter(pk__in=[pk for each, pk in known.items() if each not in due]).delete()
    EventInterest.objects.using(using).bulk_create(
        EventInterest(environment_id=environment_id, table_name=table, action=action, is_for_relay=is_for_relay)
        for table, action, is_for_relay in sorted(due - known.keys())
    )


def interests_of(environment_id: str, using: str) -> set[tuple[str, str]]:
    """The (table, action) pairs, `*` for any, with subscribers. One query."""
    found = EventInterest.objects.using(using).filter(environment_id=environment_id)
    return set(found.values_list("table_name", "action"))


def is_wanted(event_type: str, environment_id: str, using: str) -> bool:
    """One query."""
    [(name, action)] = event_types.interests([event_type])
    interests = EventInterest.objects.using(using).filter(environment_id=environment_id)
    return interests.filter(table_name__in=(name, ANY), action__in=(action, ANY)).exists()


def lock(environment_id: str, using: str) -> None:
    """Serialize changes of subscriptions until the transaction ends."""
    advisory_locks.lock(using, LockSpace.NAMED, f"webhooks:{environment_id}")
