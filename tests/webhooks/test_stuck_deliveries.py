"""Deliveries that a race with switching their webhook left behind, and events that no payload can be made of."""

import copy
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.db.models import F
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from rows.events import payloads
from rows.outbox.models import OutboxEvent
from tests.rows.conftest import Tracker
from tests.support.deliveries import deliveries, write_list
from tests.support.receiver import Receiver, answer
from tests.webhooks.conftest import Post, bodies
from webhooks.delivery.clock_skew import repair_future_times
from webhooks.delivery.dispatcher import Dispatcher
from webhooks.delivery.queue import longest_wait
from webhooks.delivery.reconciler import MAX_ATTEMPTS, reconcile
from webhooks.delivery.relay import relay_batch
from webhooks.models import Delivery, Webhook

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(databases="__all__", transaction=True)]

Dispatch = Callable[[], int]


def test_delivery_that_contradicts_its_webhook_is_fixed(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    using = tracker.project.cluster
    webhook = subscribe(events=["lists.insert"])
    webhooks = Webhook.objects.using(using).filter(pk=webhook["id"])
    write_list(tracker)
    relay_batch(using)
    webhooks.update(enabled=False)  # as if the relay had read the webhook a moment before it was disabled
    assert dispatch() == 0
    assert longest_wait(using) is None  # the periodic job does not notify workers for it for ever
    assert reconcile(using) == 1
    assert [each["status"] for each in deliveries(tracker, webhook)] == ["held"]
    webhooks.update(enabled=True)  # as if the relay had read it a moment before it was enabled
    Delivery.objects.using(using).update(attempts=3)
    assert dispatch() == 0
    assert reconcile(using) == 1
    assert reconcile(using) == 0
    assert Delivery.objects.using(using).get().schedule_from == 3, "all its attempts are before it again"
    assert dispatch() == 1
    assert [each["status"] for each in deliveries(tracker, webhook)] == ["delivered"]


def test_what_a_clock_put_off_that_was_set_back_since_is_due_again(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    """The host of PostgreSQL was three days ahead: a retry waits for a time, and a dead worker's lease lasts until one,
    that are now three days ahead. Deliveries by the right clock still wait."""
    using = tracker.project.cluster
    receiver.behave = answer("500 Oh")
    webhook = subscribe(events=["lists.insert"])
    for name in ("retry", "claimed", "waiting"):
        write_list(tracker, name)
    assert dispatch() == 3
    *_, claimed, retry = deliveries(tracker, webhook)
    ahead = F("last_attempt_at") + timedelta(days=3)
    Delivery.objects.using(using).filter(pk=retry["id"]).update(
        last_attempt_at=ahead, next_attempt_at=ahead + timedelta(hours=5)
    )
    Delivery.objects.using(using).filter(pk=claimed["id"]).update(
        next_attempt_at=ahead, claimed_until=ahead + timedelta(seconds=30)
    )
    Delivery.objects.using(using).exclude(pk__in=[retry["id"], claimed["id"]]).update(
        next_attempt_at=F("last_attempt_at") + timedelta(days=1)
    )
    receiver.behave = answer()
    assert dispatch() == 0
    assert repair_future_times(using) == 2
    assert repair_future_times(using) == 0
    assert dispatch() == 1, "the lease has to run out first: its worker may be alive"
    Delivery.objects.using(using).filter(claimed_until__isnull=False).update(claimed_until=Now())
    assert dispatch() == 1
    assert sorted(each["status"] for each in deliveries(tracker, webhook)) == ["delivered", "delivered", "pending"]


def test_event_without_payload_fails_and_delays_nothing(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    webhook = subscribe(events=["lists.insert"])
    write_list(tracker, "broken")
    OutboxEvent.objects.using(tracker.project.cluster).update(data="{")
    write_list(tracker, "whole")
    assert dispatch() == 1
    fates = {each["status"]: each["outcome"] for each in deliveries(tracker, webhook)}
    assert fates == {"exhausted": "no payload: JSONDecodeError", "delivered": "200"}
    assert Delivery.objects.using(tracker.project.cluster).count() == 2


def test_event_with_unwritable_deliveries_fails_and_delays_nothing(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    using = tracker.project.cluster
    webhook = subscribe(events=["lists.insert"])
    with connections[using].cursor() as cursor:
        cursor.execute("ALTER TABLE platform.webhooks_delivery ADD CONSTRAINT bound CHECK (body NOT LIKE '%broken%')")
    try:
        for name in ("one", "broken", "two"):
            write_list(tracker, name)
        assert dispatch() == 2
    finally:
        with connections[using].cursor() as cursor:
            cursor.execute("ALTER TABLE platform.webhooks_delivery DROP CONSTRAINT bound")
    fates = sorted((each["status"], each["outcome"]) for each in deliveries(tracker, webhook))
    assert fates == [("delivered", "200"), ("delivered", "200"), ("exhausted", "no delivery: IntegrityError")]
    # Of two rows, which are sent side by side: in either order.
    assert sorted(body["data"]["record"]["name"] for body in bodies(receiver)) == ["one", "two"]


def test_delivery_attempts_are_bounded_and_delay_no_others(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    using = tracker.project.cluster
    webhook = subscribe(events=["lists.insert"])
    path = f"/webhooks/{webhook['id']}"
    write_list(tracker, "often")
    assert dispatch() == 1
    (often,) = deliveries(tracker, webhook)
    attempted = Delivery.objects.using(using).filter(pk=often["id"])
    again = f"{path}/deliveries/{often['id']}/redeliver"
    attempted.update(attempts=MAX_ATTEMPTS - 1)
    assert tracker.post("owner", again, {}).status == 202
    assert dispatch() == 1
    attempted.update(attempts=2**15 - 1)  # the column holds no more
    assert tracker.post("owner", again, {}).status == 409
    attempted.update(status="exhausted")
    recovered = tracker.post("owner", f"{path}/recover", {"since": "2020-01-01T00:00:00Z"})
    assert (recovered.status, recovered.json) == (202, {"deliveries": 0, "more": False})
    attempted.update(status="held")
    assert tracker.patch("owner", path, {"enabled": False}).status == 200
    assert tracker.patch("owner", path, {"enabled": True}).status == 200
    write_list(tracker, "other")
    assert dispatch() == 1
    fates = {each["status"]: each["outcome"] for each in deliveries(tracker, webhook)}
    assert fates == {"delivered": "200", "exhausted": "attempted 1000 times or more"}


def test_slow_filter_is_abandoned(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payloads, "MAX_EFFORT", 80)
    plain, costly = subscribe(events=["lists.insert"]), subscribe(
        events=["lists.insert"], filter={"name": {"$like": "%a_b%"}}
    )  # fmt: skip
    write_list(tracker, "aab")
    assert dispatch() == 2
    write_list(tracker, "a" * 50 + "b")
    assert dispatch() == 2
    write_list(tracker, "a" * 100)
    assert dispatch() == 1
    assert [each["status"] for each in deliveries(tracker, plain)] == ["delivered"] * 3
    assert [each["status"] for each in deliveries(tracker, costly)] == ["exhausted", "delivered", "delivered"]
    assert "too long" in deliveries(tracker, costly)[0]["outcome"]


PARENTS: dict[str, Any] = {
    "par": {
        "columns": {"n": {"type": "integer"}, "m": {"type": "integer", "default": 0}},
        "rules": {"server": {"insert": {}, "update": {}}},
    },
    "chi": {
        "columns": {
            "n": {"type": "integer", "default": 0},
            "text": {"type": "text", "null": True},
            "meta": {"type": "json", "null": True},
            "par": {"type": "reference", "to": "par", "on_delete": "cascade", "related_name": "chi"},
        },
        "rules": {"server": {"read": {}, "insert": {}}},
    },
}


def parents(make_tracker: Any, where: dict[str, Any]) -> Tracker:
    """Tables `par` and `chi`; role `server` reads a `par` where `where` holds."""
    document = copy.deepcopy({"tables": PARENTS})
    document["tables"]["par"]["rules"]["server"]["read"] = {"where": where}
    made: Tracker = make_tracker(document)
    assert made.post("key", "/rows/par", {"id": "one", "n": 1}).status == 201
    return made


@pytest.mark.parametrize(("children", "fate"), [(30, "delivered"), (1000, "exhausted")])
def test_relations_in_relations_are_asked_for_once_and_counted(
    make_tracker: Any, receiver: Receiver, children: int, fate: str
) -> None:
    """A rule that goes back and forth looks at the square of the rows, and would ask for them at each of them."""
    where = {"$or": [{"chi": {"$some": {"par.chi": {"$some": {"n": -1}}}}}, {"n": {"$gte": 0}}]}
    tracker = parents(make_tracker, where)
    using = tracker.project.cluster
    for at_once in [min(children, 100)] * -(-children // 100):
        assert tracker.post("key", "/rows/chi", [{"par_id": "one"}] * at_once).status == 201
    assert tracker.post("key", "/rows/par", {"id": "two", "n": 1}).status == 201
    webhook = tracker.post("owner", "/webhooks", {"url": receiver.url(), "events": ["par.update", "chi.insert"]}).json
    assert tracker.patch("operator", "/rows/par/one", {"m": 1}).status == 200
    assert tracker.post("operator", "/rows/chi", {"n": 5, "par_id": "two"}).status == 201
    with CaptureQueriesContext(connections[using]) as asked:
        assert relay_batch(using) == 2
    assert sum('"par_id"' in each["sql"] for each in asked) <= 1
    Dispatcher(using).run(linger=0)
    fates = {each["event_type"]: each["status"] for each in deliveries(tracker, webhook)}
    assert fates == {"par.update": fate, "chi.insert": "delivered"}


@pytest.mark.parametrize(("size", "fate"), [(2_000, "delivered"), (900_000, "exhausted")])
@pytest.mark.parametrize("column", ["text", "meta"])
def test_far_rows_are_not_read_beyond_some_megabytes(
    make_tracker: Any, receiver: Receiver, column: str, size: int, fate: str
) -> None:
    condition = {"text": {"$ne": "x"}} if column == "text" else {"meta": {"$contains": {"a": 1}}}
    tracker = parents(make_tracker, {"$or": [{"chi": {"$some": condition}}, {"n": 1}]})
    using = tracker.project.cluster
    cell: Any = "a" * size if column == "text" else {"b": "a" * size}
    for _ in range(20):
        assert tracker.post("key", "/rows/chi", {"par_id": "one", column: cell}).status == 201
    webhook = tracker.post("owner", "/webhooks", {"url": receiver.url(), "events": ["par.update"]}).json
    assert tracker.patch("operator", "/rows/par/one", {"m": 1}).status == 200
    with CaptureQueriesContext(connections[using]) as asked:
        relay_batch(using)
    reads = [each["sql"] for each in asked if '"chi"' in each["sql"] and "octet_length" not in each["sql"]]
    assert len(reads) == (fate == "delivered")
    other = "meta" if column == "text" else "text"
    assert not any(f'"{other}"' in sql for sql in reads), "only what the rule asks about"
    Dispatcher(using).run(linger=0)
    assert [each["status"] for each in deliveries(tracker, webhook)] == [fate]
