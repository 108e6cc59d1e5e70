"""Events that take long to decide: a turn ends with what is decided by then, and others are not behind them."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError, connections

from rows.outbox.models import OutboxEvent
from tests.rows.conftest import Tracker
from tests.support.deliveries import deliveries
from tests.support.receiver import Receiver
from tests.support.row_statistics import count_touched_rows
from tests.webhooks.conftest import Post
from webhooks.delivery import relay
from webhooks.delivery.relay import relay_batch
from webhooks.models import Delivery

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(databases="__all__", transaction=True)]

NOTES = {"tables": {"notes": {"columns": {"body": {"type": "text"}}, "rules": {"server": {"read": {}, "insert": {}}}}}}
LONG = "ab" * 20_000
COSTLY = {"$or": [{"body": {"$like": f"%a{'_' * (2 * gap + 1)}b%"}} for gap in range(45)]}
"""None of these is found in LONG, and each looks at all of it: some tenths of a second, less than an event may take."""


@pytest.fixture(autouse=True)
def _nobody_is_costly() -> Iterator[None]:
    relay._expensive.clear()
    relay._last.clear()
    yield
    relay._expensive.clear()


@pytest.fixture
def tracker(make_tracker: Any) -> Tracker:
    made: Tracker = make_tracker(NOTES)
    return made


def write(tracker: Tracker, count: int, body: str = LONG) -> None:
    rows = [{"body": body}] * count
    for first in range(0, count, 20):
        answer = tracker.post("key", "/rows/notes", rows[first : first + 20])
        assert answer.status == 201, answer.json


def due(tracker: Tracker) -> int:
    events = OutboxEvent.objects.using(tracker.project.cluster).filter(environment_id=tracker.environment_id)
    return events.filter(relayed_at=None).count()


def test_many_costly_events_do_not_hold_up_another_tenant(
    tracker: Tracker, make_tracker: Any, receiver: Receiver, subscribe: Post
) -> None:
    using = tracker.project.cluster
    neighbour: Tracker = make_tracker(NOTES, name="Other")
    costly = subscribe(events=["notes.insert"], filter=COSTLY)
    plain = neighbour.post("owner", "/webhooks", {"url": receiver.url(), "events": ["notes.insert"]}).json
    count = relay.BATCH + 10
    write(tracker, count)
    write(neighbour, 3, "plain")
    for _ in range(2):
        assert 0 < relay_batch(using) < 30, "what was decided is settled, the rest waits"
    assert [each["status"] for each in deliveries(neighbour, plain)] == ["pending"] * 3
    made = Delivery.objects.using(using).filter(webhook_id=costly["id"])
    filtered = made.filter(status="filtered")
    assert 0 < filtered.count() == made.count() == count - due(tracker)
    settled = list(made.order_by("sequence").values_list("sequence", flat=True))
    events = OutboxEvent.objects.using(using).filter(environment_id=tracker.environment_id).order_by("sequence")
    assert settled == list(events.values_list("sequence", flat=True)[: len(settled)]), "in their order"
    assert tracker.delete("owner", f"/webhooks/{costly['id']}").status == 204
    while relay_batch(using):
        pass
    assert (due(tracker), due(neighbour)) == (0, 0)
    assert list(relay._expensive[using]) == [], "an environment with an empty backlog is treated like others"


def test_costly_ones_take_turns(
    tracker: Tracker, make_tracker: Any, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rows.events.time_budget.SHARE", 0)
    using = tracker.project.cluster
    others = [tracker, *(make_tracker(NOTES, name=name) for name in ("Two", "Three"))]
    for each in others:
        answer = each.post("owner", "/webhooks", {"url": receiver.url(), "events": ["notes.insert"]})
        assert answer.status == 201
        write(each, 4, "plain")
    assert relay_batch(using) == 4
    assert sorted(due(each) for each in others) == [2, 3, 3]
    for left in ([2, 2, 3], [2, 2, 2], [1, 2, 2]):
        assert relay_batch(using) == 1
        assert sorted(due(each) for each in others) == left
    while relay_batch(using):
        pass
    assert [due(each) for each in others] == [0, 0, 0]


def pile_up(tracker: Tracker, count: int) -> None:
    """So many unprocessed events of the environment."""
    with connections[tracker.project.cluster].cursor() as cursor:
        cursor.execute(
            "INSERT INTO platform.rows_outboxevent (event_id, environment_id, type, data, depth)"
            " SELECT %s || lpad(n::text, 8, '0'), %s, 'notes.insert', '{}', 0 FROM generate_series(1, %s) n",
            [f"evt_{tracker.environment_id[-18:]}", tracker.environment_id, count],
        )


@pytest.mark.parametrize("statistics", ["old", "cleaned up", "new"])
def test_backlog_of_slow_events_is_not_scanned(
    tracker: Tracker, make_tracker: Any, receiver: Receiver, statistics: str
) -> None:
    """Between two costly ones, behind them and before them, whatever PostgreSQL believes of how much waits."""
    using = tracker.project.cluster
    others = [tracker, *(make_tracker(NOTES, name=f"N{n}") for n in range(4))]
    others.sort(key=lambda each: each.environment_id)
    costly, quick = others[1::2], others[::2]
    for each in quick:
        assert each.post("owner", "/webhooks", {"url": receiver.url(), "events": ["notes.insert"]}).status == 201
    with connections[using].cursor() as cursor:
        cursor.execute("ANALYZE platform.rows_outboxevent")
        for each in costly:
            relay._expensive[using].add(each.environment_id)
            pile_up(each, 6_000)
        if statistics != "old":
            cursor.execute("SET statement_timeout = 0")
            cursor.execute("VACUUM platform.rows_outboxevent" if statistics == "cleaned up" else "VACUUM ANALYZE")
            cursor.execute("RESET statement_timeout")
    for each in quick:
        write(each, 2, "plain")
    with count_touched_rows(using, "platform.rows_outboxevent") as cost:
        assert relay._relay_or_isolate(using, relay.BATCH) == 6
    assert cost.read < 60
    assert [due(each) for each in quick] == [0, 0, 0]
    pile_up(quick[0], 6_000)
    with count_touched_rows(using, "platform.rows_outboxevent") as cost:
        further = relay._relay_or_isolate(using, relay.EXPENSIVE_BATCH, only=costly[1].environment_id)
    assert further == relay.EXPENSIVE_BATCH
    assert cost.read < 6 * relay.EXPENSIVE_BATCH
    assert [due(each) for each in costly] == [6_000, 6_000 - relay.EXPENSIVE_BATCH]


def test_large_backlogs_beside_slow_events_take_turns(tracker: Tracker, make_tracker: Any) -> None:
    using = tracker.project.cluster
    others = [tracker, *(make_tracker(NOTES, name=f"N{n}") for n in range(3))]
    costly, *quick = others
    relay._expensive[using].add(costly.environment_id)
    for each in others:
        pile_up(each, 30)
    for _ in range(3):
        assert relay._relay_or_isolate(using, 10) == 10
    assert [due(each) for each in quick] == [20, 20, 20], "each had a turn"
    assert due(costly) == 30
    relay._expensive.clear()
    while relay_batch(using):
        pass
    assert [due(each) for each in others] == [0, 0, 0, 0]


def test_unwritable_event_is_detected_beside_slow_events(
    tracker: Tracker, make_tracker: Any, receiver: Receiver
) -> None:
    using = tracker.project.cluster
    others = sorted(
        [tracker, *(make_tracker(NOTES, name=f"N{n}") for n in range(3))], key=lambda each: each.environment_id
    )
    costly, *quick = others
    relay._expensive[using].add(costly.environment_id)
    for each in quick:
        assert each.post("owner", "/webhooks", {"url": receiver.url(), "events": ["notes.insert"]}).status == 201
        write(each, 3, "plain")
    poison = OutboxEvent.objects.using(using).filter(environment_id=quick[1].environment_id).order_by("sequence")[1]
    with connections[using].cursor() as cursor:
        cursor.execute(
            "ALTER TABLE platform.webhooks_delivery ADD CONSTRAINT picky"
            f" CHECK (event_id <> '{poison.event_id}' OR status = 'exhausted')"
        )
        try:
            turns = 0
            while relay._relay_or_isolate(using, relay.BATCH):
                turns += 1
        finally:
            cursor.execute("ALTER TABLE platform.webhooks_delivery DROP CONSTRAINT picky")
    assert turns <= 9
    assert [due(each) for each in quick] == [0, 0, 0]
    made = Delivery.objects.using(using).filter(environment_id__in=[each.environment_id for each in quick])
    parked = made.filter(status="exhausted")
    assert [each.event_id for each in parked] == [poison.event_id]
    assert made.filter(status="pending").count() == 8


def test_ended_session_during_a_filter_is_not_blamed_on_the_event(tracker: Tracker, subscribe: Post) -> None:
    using = tracker.project.cluster
    webhook = subscribe(events=["notes.insert"], filter=COSTLY)
    write(tracker, 2)
    with connections[using].cursor() as cursor:
        cursor.execute("SET idle_in_transaction_session_timeout = '20ms'")
    try:
        with pytest.raises(OperationalError):
            relay_batch(using)
    finally:
        connections[using].close()
    assert due(tracker) == 2
    while relay_batch(using):
        pass
    assert [each["status"] for each in deliveries(tracker, webhook)] == ["filtered"] * 2
