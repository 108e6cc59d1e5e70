"""What a claim costs, and which deliveries it takes, when one receiver's backlog is long."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connections, transaction
from django.db.models import F, Value
from django.db.models.functions import Concat
from django.utils import timezone

from tests.rows.conftest import Tracker
from tests.support.deliveries import write_list
from tests.support.delivery_queue import blocks_of, blocks_of_a_claim, forget_statistics, gather_statistics
from tests.support.receiver import Receiver
from tests.support.row_statistics import count_touched_rows
from tests.webhooks.conftest import Post
from webhooks.delivery import queue as delivery_queue
from webhooks.delivery import relay
from webhooks.delivery.queue import claim, longest_wait
from webhooks.delivery.reconciler import reconcile
from webhooks.delivery.relay import relay_batch
from webhooks.models import Delivery, Webhook

pytestmark = [
    pytest.mark.django_db(databases="__all__", transaction=True),
    pytest.mark.usefixtures("_nobody_gathers_statistics"),
]

BACKLOG = """
INSERT INTO platform.webhooks_delivery (id, environment_id, webhook_id, event_id, event_type, subject, sequence, depth,
       body, status, attempts, schedule_from, next_attempt_at)
SELECT 'dlv_' || n, %(env)s, %(webhook)s, 'evt_' || n, 'lists.insert', 'lists/' || n %% 50, n, 0, '{}', 'pending', 0, 0,
       now() - interval '1 hour'
  FROM generate_series(%(first)s::int, %(last)s::int) n
"""


def pile_up(tracker: Tracker, webhook: dict[str, Any], first: int, last: int) -> None:
    facts = {"env": tracker.environment_id, "webhook": webhook["id"], "first": first, "last": last}
    with transaction.atomic(using=tracker.project.cluster), connections[tracker.project.cluster].cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = 0")
        cursor.execute(BACKLOG, facts)


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_claim_costs_the_same_however_long_the_backlog(
    tracker: Tracker, receiver: Receiver, subscribe: Post, is_paused: bool
) -> None:
    """Without statistics, too: a queue grows faster than they are gathered."""
    using = tracker.project.cluster
    webhook = subscribe(events=["lists.insert"])
    paused: dict[str, Any] = (
        {"receivers": [f"{tracker.environment_id} 127.0.0.1:{receiver.port}"], "free_slots": [0]} if is_paused else {}
    )
    pile_up(tracker, webhook, 1, 1_000)
    forget_statistics(using)
    few = blocks_of_a_claim(using, **paused)
    pile_up(tracker, webhook, 1_001, 10_000)
    forget_statistics(using)
    many = blocks_of_a_claim(using, **paused)
    assert many < 2 * few + 30, (few, many)
    gather_statistics(using)
    assert blocks_of_a_claim(using, **paused) < 2 * few + 30


AGO, SOON = (timezone.now() + timedelta(hours=hours) for hours in (-1, 1))
STATES: dict[str, dict[str, Any]] = {
    "due": {},
    "due for longest": {"next_attempt_at": AGO - timedelta(hours=1)},
    "of a worker that died": {"claimed_until": AGO},
    "claimed": {"claimed_until": SOON, "next_attempt_at": AGO - timedelta(hours=2)},  # takes up no slot
    "later": {"next_attempt_at": SOON},
    "held": {"status": "held"},
    "delivered": {"status": "delivered"},
}


@pytest.mark.parametrize("ordering", ["none", "row"])
def test_what_is_due_and_nobodys_is_claimed_the_longest_wait_first(
    tracker: Tracker, subscribe: Post, ordering: str
) -> None:
    using = tracker.project.cluster
    webhook, other = (subscribe(events=["lists.insert"], ordering=how) for how in (ordering, "none"))
    for name in STATES:
        write_list(tracker, name)
    relay_batch(using)
    Webhook.objects.using(using).filter(pk=other["id"]).update(enabled=False)  # its claims belong to no worker
    names = {}
    mine = Delivery.objects.using(using).filter(webhook_id=webhook["id"]).order_by("sequence")
    for delivery, (name, state) in zip(mine, STATES.items(), strict=True):
        Delivery.objects.using(using).filter(pk=delivery.pk).update(**{"next_attempt_at": AGO, **state})
        names[delivery.pk] = name

    def claimed(limit: int = 20, initial: int = 20, **more: Any) -> list[str]:
        """The deliveries that would be claimed. The claim is rolled back."""
        with transaction.atomic(using=using):
            found = [names[each.delivery_id] for each in claim(using, limit, default_slots=initial, **more)]
            transaction.set_rollback(True, using=using)
        return sorted(found)

    due = ["due", "due for longest", "of a worker that died"]
    assert claimed() == claimed(only=webhook["id"]) == due
    assert claimed(only=other["id"]) == []
    assert claimed(limit=1) == claimed(initial=1) == ["due for longest"]
    assert len(claimed(limit=2)) == len(claimed(initial=2)) == 2
    host = Webhook.objects.using(using).get(pk=webhook["id"]).host
    receiver = f"{tracker.environment_id} {host}"
    assert claimed(free_slots={receiver: 0}) == claimed(initial=0) == []
    assert claimed(free_slots={receiver: 1}, initial=20) == ["due for longest"]
    assert claimed(free_slots={f"env_other {host}": 0}) == due, "another tenant's failures at the same host"
    stored = Webhook.objects.using(using).filter(pk=webhook["id"])
    for closed in ({"enabled": False}, {"deleted_at": AGO}, {"listens_until": SOON}):
        before = stored.values(*closed).get()
        stored.update(**closed)
        assert claimed() == []
        waiting = longest_wait(using)
        assert waiting is None, closed
        stored.update(**before)
    waiting = longest_wait(using)
    assert waiting is not None
    assert timedelta(hours=1, minutes=59) < waiting < timedelta(hours=2, minutes=59)


def test_a_batch_is_shared_out_by_receivers_and_then_by_age(tracker: Tracker, subscribe: Post) -> None:
    """One receiver's long wait does not take all of a batch."""
    using = tracker.project.cluster
    with Receiver() as second:
        slow, quick = subscribe(events=["lists.insert"]), subscribe(url=second.url(), events=["lists.insert"])
        for _ in range(3):
            write_list(tracker)
        relay_batch(using)
        of_slow = Delivery.objects.using(using).filter(webhook_id=slow["id"])
        of_slow.update(next_attempt_at=AGO)
        urls = {each.webhook_id: each.url for each in claim(using, 2, default_slots=3)}
        assert urls == {slow["id"]: slow["url"], quick["id"]: quick["url"]}


def test_a_batch_is_shared_out_by_environments(tracker: Tracker, subscribe: Post) -> None:
    """Many receivers of one tenant that have waited for long do not take all of it."""
    using = tracker.project.cluster
    mine = subscribe(events=["lists.insert"])
    write_list(tracker)
    relay_batch(using)
    secret = Webhook.objects.using(using).get(pk=mine["id"]).sealed_secret
    for number in range(30):
        other = Webhook.objects.using(using).create(
            environment_id=f"env_{'0' * 26}", url=mine["url"], host=f"h:{number}", events=["*"], sealed_secret=secret
        )
        Delivery.objects.using(using).create(
            environment_id=other.environment_id, webhook=other, event_id=f"evt_{number:026}", event_type="x",
            sequence=number, body="{}", next_attempt_at=AGO,
        )  # fmt: skip
    assert mine["id"] in {each.webhook_id for each in claim(using, 2, default_slots=2)}


@pytest.mark.parametrize("ordering", ["none", "row"])
def test_backlog_delays_no_other_deliveries(
    tracker: Tracker, receiver: Receiver, subscribe: Post, ordering: str
) -> None:
    using = tracker.project.cluster
    slow = subscribe(events=["lists.update"], ordering=ordering)
    pile_up(tracker, slow, 1, 3_000)
    with Receiver() as other:
        quick = subscribe(url=other.url(), events=["lists.insert"])
        write_list(tracker)
        relay_batch(using)
        claimed = claim(using, 4, default_slots=2)
    assert [each.webhook_id for each in claimed].count(quick["id"]) == 1
    assert len(claimed) == 3
    waits = longest_wait(using)
    assert waits is not None
    assert waits > timedelta(minutes=50)


def test_in_order_of_rows_only_the_first_of_each_row_is_claimed(
    tracker: Tracker, receiver: Receiver, subscribe: Post
) -> None:
    using = tracker.project.cluster
    pile_up(tracker, subscribe(events=["lists.*"], ordering="row"), 1, 1_000)
    claimed = claim(using, 100, default_slots=100)
    events = {each.event_id for each in claimed}
    assert events == {f"evt_{number}" for number in range(1, 51)}
    assert claim(using, 100, default_slots=100) == [], "the next of each row wait for the outcome"
    Delivery.objects.using(using).filter(event_id="evt_1").update(status="delivered")
    assert [each.event_id for each in claim(using, 100, default_slots=100)] == ["evt_51"]
    Delivery.objects.using(using).filter(event_id="evt_51").update(status="held", claimed_until=None)
    assert claim(using, 100, default_slots=100) == [], "what is held will be sent before it"


def test_only_its_own_claim_is_released(tracker: Tracker, receiver: Receiver, subscribe: Post) -> None:
    using = tracker.project.cluster
    pile_up(tracker, subscribe(events=["lists.*"]), 1, 1)
    [lost] = claim(using, 1, default_slots=1, lease=timedelta(0))
    [taken] = claim(using, 1, default_slots=1)
    delivery_queue.release(using, [lost])
    assert claim(using, 1, default_slots=1) == []
    delivery_queue.release(using, [taken])
    assert [each.attempt for each in claim(using, 1, default_slots=1)] == [taken.attempt]


@pytest.mark.parametrize("put_off", ["a retry", "what was recovered"])
def test_ordered_claim_takes_the_first_event_of_each_row(
    tracker: Tracker, receiver: Receiver, subscribe: Post, put_off: str
) -> None:
    """It is due later than all that wait behind it, and those fill what a claim looks at."""
    using = tracker.project.cluster
    pile_up(tracker, subscribe(events=["lists.*"], ordering="row"), 1, delivery_queue.ORDERED_CANDIDATE_LIMIT + 1_000)
    of_the_row = Delivery.objects.using(using)
    of_the_row.update(subject="lists/one")
    first = {f"evt_{number}" for number in range(1, 2 if put_off == "a retry" else 4)}
    of_the_row.filter(event_id__in=first).update(next_attempt_at=timezone.now() + timedelta(hours=5), attempts=1)
    assert claim(using, 100, default_slots=100) == []
    of_the_row.filter(event_id__in=first).update(next_attempt_at=timezone.now() - timedelta(seconds=1))
    for number in range(1, 5):
        assert [each.event_id for each in claim(using, 100, default_slots=100)] == [f"evt_{number}"]
        assert claim(using, 100, default_slots=100) == [], "the next one waits for the outcome"
        of_the_row.filter(event_id=f"evt_{number}").update(status="delivered")


@pytest.mark.parametrize("statistics", [False, True])
def test_in_order_of_rows_a_claim_costs_the_same_however_many_rows_wait(
    tracker: Tracker, receiver: Receiver, subscribe: Post, statistics: bool
) -> None:
    using = tracker.project.cluster
    pile_up(tracker, subscribe(events=["lists.*"], ordering="row"), 1, 20_000)
    Delivery.objects.using(using).update(
        subject=Concat(Value("lists/"), F("id")),
        next_attempt_at=F("next_attempt_at") + F("sequence") * timedelta(microseconds=1),
    )
    Delivery.objects.using(using).filter(sequence__lte=10).update(subject=None)
    (gather_statistics if statistics else forget_statistics)(using)
    with count_touched_rows(using) as cost:
        claimed = claim(using, 100, default_slots=20)
    assert {each.event_id for each in claimed} == {f"evt_{number}" for number in range(1, 21)}
    assert cost.read < delivery_queue.ORDERED_CANDIDATE_LIMIT + 1_000


EVENTS = """
INSERT INTO platform.rows_outboxevent (event_id, environment_id, type, subject, data, depth, relayed_at)
SELECT 'evt_' || n, %(env)s, 'lists.update', 'lists/hot', '{}', 0, CASE WHEN n <= %(relayed)s::int THEN now() END
  FROM generate_series(1, 20000) n
"""


@pytest.mark.parametrize("relayed", [20_000, 10_000, 0])
@pytest.mark.parametrize("statistics", [False, True])
def test_ordered_claim_does_not_read_all_events_of_a_busy_row(
    tracker: Tracker, receiver: Receiver, subscribe: Post, relayed: int, statistics: bool
) -> None:
    using = tracker.project.cluster
    pile_up(tracker, subscribe(events=["lists.*"], ordering="row"), 1, 2)
    facts = {"env": tracker.environment_id, "relayed": relayed}
    with connections[using].cursor() as cursor:
        cursor.execute(EVENTS, facts)
        cursor.execute("SELECT min(sequence) FROM platform.rows_outboxevent WHERE relayed_at IS NULL")
        (unrelayed,) = cursor.fetchone()
        cursor.execute("SELECT max(sequence) FROM platform.rows_outboxevent")
        (last,) = cursor.fetchone()
        if statistics:
            cursor.execute("ANALYZE platform.rows_outboxevent")
    if not statistics:
        forget_statistics(using, "rows_outboxevent")
    first, second = (unrelayed or last + 1) - 2, (unrelayed or last + 1) - 1
    for number, sequence in ((1, first), (2, second)):
        Delivery.objects.using(using).filter(event_id=f"evt_{number}").update(subject="lists/hot", sequence=sequence)
    with count_touched_rows(using, "platform.rows_outboxevent") as cost:
        assert [each.event_id for each in claim(using, 10, default_slots=10)] == ["evt_1"]
    assert cost.read < 100
    Delivery.objects.using(using).filter(event_id="evt_1").update(status="delivered")
    if unrelayed is not None:  # the second one's turn has not come: an earlier event is not relayed
        Delivery.objects.using(using).filter(event_id="evt_2").update(sequence=unrelayed + 1)
        assert claim(using, 10, default_slots=10) == []


def test_a_claim_passes_what_was_settled_once(tracker: Tracker, receiver: Receiver, subscribe: Post) -> None:
    """Its entries stay in the index until PostgreSQL cleans up."""
    using = tracker.project.cluster
    webhook = subscribe(events=["lists.*"])
    pile_up(tracker, webhook, 1, 20_000)
    Delivery.objects.using(using).update(
        next_attempt_at=F("next_attempt_at") + F("sequence") * timedelta(microseconds=1)
    )
    Delivery.objects.using(using).filter(sequence__lte=19_990).update(status="delivered", next_attempt_at=None)
    leap = f"WITH RECURSIVE {delivery_queue.WAITING} SELECT * FROM waiting"
    blocks_of_a_claim(using)  # PostgreSQL notes what is gone
    once = blocks_of(using, leap, {})
    assert once > 100
    assert blocks_of_a_claim(using) < 1.5 * once
    assert len(claim(using, 100, default_slots=100)) == 10


def test_a_claim_brings_no_more_than_fits_into_memory(
    tracker: Tracker, receiver: Receiver, subscribe: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_queue, "MAX_CLAIM_BYTES", 100)
    using = tracker.project.cluster
    pile_up(tracker, subscribe(events=["lists.*"]), 1, 10)
    Delivery.objects.using(using).update(body="x" * 40)
    assert len(claim(using, 100, default_slots=100)) == 3
    Delivery.objects.using(using).update(body="x" * 400)
    assert len(claim(using, 100, default_slots=100)) == 1, "the first of them always"


def test_large_events_are_relayed_a_few_at_a_time_and_each_once(
    tracker: Tracker, receiver: Receiver, subscribe: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a batch in one statement exceeded its time limit, each time again, and the region made no progress."""
    for name, size in (
        ("MAX_CHARACTERS_PER_STATEMENT", 4_000),
        ("MAX_CHARACTERS_PER_PASS", 8_000),
        ("LARGE_PAYLOAD_BYTES", 1_000),
    ):
        monkeypatch.setattr(relay, name, size)
    using = tracker.project.cluster
    for _ in range(3):
        subscribe(events=["tasks.insert"])
    home = write_list(tracker)
    task = {"title": "x", "list_id": home, "owner_id": tracker.users["alice"]}
    for size in (10, 2_000, 10, 2_000, 2_000, 10):
        assert tracker.post("key", "/rows/tasks", {**task, "notes": "x" * size}).status == 201
    written: list[int] = []

    def measure(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if "INSERT INTO platform.webhooks_delivery" in sql:
            written.append(len(params[0]))
        return execute(sql, params, many, context)

    turns = []
    with connections[using].execute_wrapper(measure):
        while events := relay_batch(using):
            turns.append(events)
    assert (sum(turns), Delivery.objects.using(using).count()) == (6, 18)
    assert len(turns) > 2
    assert max(written) < 4_000 + 5_000, "what fits, and one more"
    found = Delivery.objects.using(using).values_list("event_id", "webhook_id")
    assert len(found) == len(set(found)) == 18


def test_an_event_that_nobody_would_take_is_not_sent_and_says_so(
    tracker: Tracker, receiver: Receiver, subscribe: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "MAX_PAYLOAD_BYTES", 1_500_000)
    subscribe(events=["tasks.*"])
    task = {"title": "x", "list_id": write_list(tracker), "owner_id": tracker.users["alice"], "notes": "x" * 900_000}
    made = tracker.post("key", "/rows/tasks", task)
    assert tracker.patch("key", f"/rows/tasks/{made.json['id']}", {"title": "y"}).status == 200
    relay_batch(tracker.project.cluster)
    fates = Delivery.objects.using(tracker.project.cluster).order_by("sequence")
    assert [(each.status, each.outcome, bool(each.body)) for each in fates] == [
        ("pending", None, True),
        ("exhausted", "an event of 1 MB is not sent", False),
    ]


@pytest.mark.parametrize("known", ["nothing", "all of it pending", "what is"])
@pytest.mark.parametrize("ordering", ["none", "row"])
def test_a_claim_reads_nothing_of_what_is_over(
    tracker: Tracker, receiver: Receiver, subscribe: Post, known: str, ordering: str
) -> None:
    using = tracker.project.cluster
    webhook = subscribe(events=["lists.insert"], ordering=ordering)
    pile_up(tracker, webhook, 1, 5_000)
    if known == "all of it pending":
        gather_statistics(using)
    Delivery.objects.using(using).filter(sequence__lte=4_990).update(status="delivered", next_attempt_at=None)
    if known == "what is":
        gather_statistics(using)
    claim(using, 1, default_slots=1)  # whoever comes first walks over what has just ended
    with count_touched_rows(using) as cost:
        assert len(claim(using, 100, default_slots=100)) == 9
    assert cost.read < 200, "of some 5,000"


@pytest.mark.parametrize("known", ["nothing", "an empty table", "all of it pending"])
def test_fixing_does_not_read_ended_deliveries(
    tracker: Tracker, receiver: Receiver, subscribe: Post, known: str
) -> None:
    """Whatever the statistics were gathered from: a table fills faster than they follow."""
    using = tracker.project.cluster
    webhook = subscribe(events=["lists.insert"])
    if known == "an empty table":
        gather_statistics(using)
    pile_up(tracker, webhook, 1, 5_000)
    if known == "all of it pending":
        gather_statistics(using)
    Delivery.objects.using(using).filter(sequence__lte=4_990).update(status="delivered", next_attempt_at=None)
    with count_touched_rows(using) as nothing:
        assert reconcile(using) == 0
    Delivery.objects.using(using).filter(sequence__gt=4_995).update(status="held", next_attempt_at=None)
    with count_touched_rows(using) as few:
        assert reconcile(using) == 5
    assert (nothing.changed, few.changed) == (0, 5)
    assert nothing.read + few.read < 200, "of some 5,000"
    assert Delivery.objects.using(using).filter(status="pending").count() == 10
