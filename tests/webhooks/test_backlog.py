"""Webhooks with a long backlog are switched: what it costs whoever switches, and what becomes of each delivery."""

import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connections, transaction
from django.db.models import F
from django.db.models.functions import Now

from tests.rows.conftest import Tracker
from tests.support.deliveries import deliveries, write_list
from tests.support.delivery_queue import blocks_of_a_claim, counted, forget_statistics, gather_statistics, pile_up
from tests.support.receiver import Receiver, answer
from tests.support.row_statistics import count_touched_rows
from tests.webhooks.conftest import Post, bodies
from webhooks.delivery import reconciler
from webhooks.delivery import retention as delivery_retention
from webhooks.delivery.queue import Failing, claim, disable, longest_wait
from webhooks.delivery.reconciler import BATCH, MAX_ATTEMPTS, REQUEST_BATCH, reconcile, reconcile_webhook
from webhooks.delivery.relay import relay_batch
from webhooks.models import Delivery, Webhook
from webhooks.subscriptions import service as webhook_service

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.django_db(databases="__all__", transaction=True),
    pytest.mark.usefixtures("_nobody_gathers_statistics"),
]

Dispatch = Callable[[], int]


def settle_all(using: str, batch: int = BATCH) -> int:
    return reconcile(using, batch=batch, seconds=600)


def patch(tracker: Tracker, webhook: dict[str, Any], **values: Any) -> None:
    changed = tracker.patch("owner", f"/webhooks/{webhook['id']}", values)
    assert changed.status == 200, changed.json


def disabled(tracker: Tracker, webhook: dict[str, Any]) -> None:
    """Without any of its deliveries being touched."""
    Webhook.objects.using(tracker.project.cluster).filter(pk=webhook["id"]).update(enabled=False)


LONG = 20_000
EARLIER = "2020-01-01T00:00:00Z"
SWITCHES: dict[str, tuple[str, bool, Callable[[Tracker, dict[str, Any]], object], str]] = {
    # What the backlog is, whether its webhook is enabled, what is done, and what the backlog is at last.
    "disable": ("pending", True, lambda t, w: patch(t, w, enabled=False), "held"),
    "enable": ("held", False, lambda t, w: patch(t, w, enabled=True), "pending"),
    "drop": ("held", False, lambda t, w: patch(t, w, enabled=True, held="drop"), "dropped"),
    "by itself": ("pending", True, lambda t, w: disable(t.project.cluster, Failing(w["id"], "gone", 1)), "held"),
    "recover": (
        "exhausted", True, lambda t, w: t.post("owner", f"/webhooks/{w['id']}/recover", {"since": EARLIER}), "pending",
    ),
    "rotate": ("pending", True, lambda t, w: t.post("owner", f"/webhooks/{w['id']}/rotate-secret", {}), "pending"),
    "delete": ("pending", True, lambda t, w: t.delete("owner", f"/webhooks/{w['id']}"), "pending"),
}  # fmt: skip


@pytest.mark.parametrize("statistics", [False, True])
@pytest.mark.parametrize("switch", SWITCHES)
def test_a_switch_touches_a_batch_of_deliveries_however_many_there_are(
    tracker: Tracker, receiver: Receiver, subscribe: Post, switch: str, statistics: bool
) -> None:
    using = tracker.project.cluster
    before, is_enabled, act, after = SWITCHES[switch]
    webhook, other = subscribe(events=["lists.insert"]), subscribe(events=["lists.insert"])
    pile_up(tracker, webhook, LONG, before)
    pile_up(tracker, other, 100, before)
    (gather_statistics if statistics else forget_statistics)(using)
    if not is_enabled:
        disabled(tracker, webhook)
        disabled(tracker, other)
    with count_touched_rows(using) as cost:
        act(tracker, webhook)
    assert cost.changed <= REQUEST_BATCH
    assert cost.read <= 6 * REQUEST_BATCH
    disabled(tracker, other)
    relay_batch(using)  # who is disabled by itself makes an event
    if after != "pending" or switch == "delete":
        assert claim(using, 100, default_slots=100) == [], "not one is sent, whatever it says of itself still"
        assert longest_wait(using) is None
    with count_touched_rows(using) as more:
        settle_all(using)
    assert counted(tracker, webhook) == {after: LONG}
    assert counted(tracker, other) == {"held" if before == "pending" else before: 100}
    assert more.read < 12 * LONG, "each batch goes on where the last one stopped"


def test_a_claim_does_not_read_what_a_disabled_webhook_has(
    tracker: Tracker, receiver: Receiver, subscribe: Post
) -> None:
    using = tracker.project.cluster
    webhook, other = subscribe(events=["lists.insert"]), subscribe(events=["lists.insert"])
    pile_up(tracker, other, 100, "pending")
    few = blocks_of_a_claim(using)
    pile_up(tracker, webhook, LONG, "pending")
    disabled(tracker, webhook)
    for status in ("pending", "held"):
        assert blocks_of_a_claim(using) < 2 * few + 30, status
        gather_statistics(using)
        assert blocks_of_a_claim(using) < 2 * few + 30, status
        settle_all(using)
    assert counted(tracker, webhook) == {"held": LONG}
    Webhook.objects.using(using).filter(pk=webhook["id"]).update(enabled=True, drop_before="2020-01-01T00:00Z")
    assert {each.webhook_id for each in claim(using, 100, default_slots=100)} == {other["id"]}


def test_what_was_held_is_sent_in_the_order_of_its_events(
    tracker: Tracker, receiver: Receiver, subscribe: Post
) -> None:
    using = tracker.project.cluster
    webhook = subscribe(events=["lists.insert"])
    pile_up(tracker, webhook, 500, "held")
    with connections[using].cursor() as cursor:  # where a row lies in the table says nothing any more
        cursor.execute("UPDATE platform.webhooks_delivery SET depth = 1 WHERE sequence % 7 = 3")
        cursor.execute("UPDATE platform.webhooks_delivery SET depth = 1 WHERE sequence % 11 = 5")
    settle_all(using, batch=100)
    sent: list[str] = []
    while claimed := claim(using, 20, default_slots=20):
        sent += sorted((each.event_id for each in claimed), key=lambda event: int(event[4:]))
        Delivery.objects.using(using).filter(pk__in=[each.delivery_id for each in claimed]).update(status="delivered")
    assert sent == [f"evt_{number}" for number in range(1, 501)]


def test_ordered_delivery_never_overtakes_a_held_event_of_its_row(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    using = tracker.project.cluster
    monkeypatch.setattr(webhook_service, "REQUEST_BATCH", 1)
    webhook = subscribe(events=["lists.*"], ordering="row", enabled=False)
    rows = [write_list(tracker, name) for name in ("first", "second")]
    dispatch()
    patch(tracker, webhook, enabled=True)
    for row in rows:
        assert tracker.patch("key", f"/rows/lists/{row}", {"name": "changed"}).status == 200
    other = write_list(tracker, "other")
    dispatch()

    def arrived() -> list[tuple[str, str]]:
        return [(body["data"]["id"], body["type"]) for body in bodies(receiver)]

    assert sorted(arrived()) == sorted(
        [(rows[0], "lists.insert"), (rows[0], "lists.update"), (other, "lists.insert")]
    ), "the second row waits in the queue, and nothing waits for it"
    settle_all(using)
    dispatch()
    assert arrived()[3:] == [(rows[1], "lists.insert"), (rows[1], "lists.update")]


class Killed(BaseException):
    """An exception that no handler catches."""


def test_kill_between_batches_leaves_a_resumable_state(tracker: Tracker, receiver: Receiver, subscribe: Post) -> None:
    """Its session is ended by PostgreSQL, in the middle of a batch."""
    using = tracker.project.cluster
    webhook = subscribe(events=["lists.insert"])
    pile_up(tracker, webhook, 1_000, "held")
    batches = 0
    failed: list[str] = []

    def die_in_the_fourth(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal batches
        if sql == reconciler.SQL["release"]:
            batches += 1
            if batches == 4:
                execute(sql, params, many, context)
                return execute("SELECT pg_terminate_backend(pg_backend_pid())", None, many, context)
        return execute(sql, params, many, context)

    def work() -> None:
        try:
            with connections[using].execute_wrapper(die_in_the_fourth):
                settle_all(using, batch=100)
        except OperationalError as error:
            failed.append(type(error).__name__)
        finally:
            connections.close_all()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert failed == ["OperationalError"]
    assert counted(tracker, webhook) == {"pending": 300, "held": 700}
    claimed = claim(using, 1_000, default_slots=1_000)
    assert [each.event_id for each in sorted(claimed, key=lambda each: int(each.event_id[4:]))] == [
        f"evt_{number}" for number in range(1, 301)
    ], "the first ones"
    assert settle_all(using, batch=100) == 700
    assert {each.event_id for each in claim(using, 1_000, default_slots=1_000)} == {
        f"evt_{number}" for number in range(301, 1_001)
    }


def test_a_sweep_stops_after_its_time_and_serves_webhooks_in_turn(
    tracker: Tracker, receiver: Receiver, subscribe: Post
) -> None:
    using = tracker.project.cluster
    long, short = subscribe(events=["lists.insert"]), subscribe(events=["lists.insert"])
    pile_up(tracker, long, 1_000, "held")
    pile_up(tracker, short, 10, "held")
    assert reconcile(using, batch=100, seconds=0) == 0
    turns = 0

    def time_is_over_in_the_third(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal turns
        turns += sql == reconciler.SQL["release"]
        if turns == 3:
            raise Killed
        return execute(sql, params, many, context)

    with pytest.raises(Killed), connections[using].execute_wrapper(time_is_over_in_the_third):
        settle_all(using, batch=100)
    assert (counted(tracker, long)["pending"], counted(tracker, short)["pending"]) == (100, 10)


def test_drop_is_completed_despite_later_switches_and_drops_nothing_else(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    using = tracker.project.cluster
    webhook = subscribe(events=["lists.insert"], enabled=False)
    path = f"/webhooks/{webhook['id']}"
    pile_up(tracker, webhook, REQUEST_BATCH + 500, "held")
    patch(tracker, webhook, enabled=True, held="drop")
    assert counted(tracker, webhook) == {"dropped": REQUEST_BATCH, "held": 500}
    write_list(tracker, "after it")
    assert dispatch() == 0, "it waits until what was before it is gone"
    assert longest_wait(using) is None
    (after_it, *_) = deliveries(tracker, webhook)
    for address, body in (
        (f"{path}/recover", {"since": EARLIER}),
        (f"{path}/deliveries/{after_it['id']}/redeliver", {}),
    ):
        refused = tracker.post("owner", address, body)
        assert refused.status == 409
        assert "being dropped" in str(refused.json)
    assert counted(tracker, webhook) == {"dropped": REQUEST_BATCH, "held": 500, "pending": 1}
    patch(tracker, webhook, enabled=False)
    write_list(tracker, "while it is disabled")
    dispatch()
    patch(tracker, webhook, enabled=True)
    settle_all(using)
    assert dispatch() == 2
    arrived = {body["data"]["record"]["name"] for body in bodies(receiver)}
    assert arrived == {"after it", "while it is disabled"}
    assert counted(tracker, webhook) == {"dropped": REQUEST_BATCH + 500, "delivered": 2}
    assert tracker.post("owner", f"{path}/recover", {"since": EARLIER}).json == {
        "deliveries": REQUEST_BATCH,
        "more": True,
    }


def test_to_drop_takes_along_what_was_not_held_yet_since_it_was_disabled(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    using = tracker.project.cluster
    webhook = subscribe(events=["lists.insert"])
    pile_up(tracker, webhook, 3 * REQUEST_BATCH, "pending")
    patch(tracker, webhook, enabled=False)
    assert counted(tracker, webhook) == {"held": REQUEST_BATCH, "pending": 2 * REQUEST_BATCH}
    patch(tracker, webhook, enabled=True, held="drop")
    assert dispatch() == 0
    settle_all(using)
    assert counted(tracker, webhook) == {"dropped": 3 * REQUEST_BATCH}
    assert dispatch() == 0
    assert receiver.requests == []


def test_deliveries_being_dropped_are_not_released_if_the_drop_fails(
    tracker: Tracker, receiver: Receiver, subscribe: Post
) -> None:
    using = tracker.project.cluster
    webhook = subscribe(events=["lists.insert"])
    pile_up(tracker, webhook, 50, "held")
    Webhook.objects.using(using).filter(pk=webhook["id"]).update(drop_before="2100-01-01T00:00Z")
    is_dropping, may_fail = threading.Event(), threading.Event()

    def drop_and_fail() -> None:
        try:
            with transaction.atomic(using=using):
                reconcile_webhook(using, webhook["id"], batch=20)
                is_dropping.set()
                may_fail.wait(30)
                transaction.set_rollback(True, using=using)
        finally:
            connections.close_all()

    thread = threading.Thread(target=drop_and_fail)
    thread.start()
    assert is_dropping.wait(30)
    settle_all(using)
    assert counted(tracker, webhook) == {"dropped": 30, "held": 20}
    may_fail.set()
    thread.join(30)
    settle_all(using)
    assert counted(tracker, webhook) == {"dropped": 50}
    assert Webhook.objects.using(using).get(pk=webhook["id"]).drop_before is None


def test_disabling_during_enabling_holds_everything_and_repeats_nothing(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    using = tracker.project.cluster
    webhook = subscribe(events=["lists.insert"], enabled=False)
    pile_up(tracker, webhook, REQUEST_BATCH + 50, "held")
    for _ in range(2):  # who enables twice enables once
        patch(tracker, webhook, enabled=True)
        assert counted(tracker, webhook) == {"pending": REQUEST_BATCH, "held": 50}
    sent = [each.delivery_id for each in claim(using, 10, default_slots=10)]
    Delivery.objects.using(using).filter(pk__in=sent).update(status="delivered", claimed_until=None)
    patch(tracker, webhook, enabled=False)
    assert dispatch() == 0
    settle_all(using)
    assert counted(tracker, webhook) == {"held": REQUEST_BATCH + 40, "delivered": 10}
    patch(tracker, webhook, enabled=True)
    settle_all(using)
    assert dispatch() == REQUEST_BATCH + 40
    assert counted(tracker, webhook) == {"delivered": REQUEST_BATCH + 50}
    assert Counter(body["n"] for body in bodies(receiver)) == dict.fromkeys(range(11, REQUEST_BATCH + 51), 1)
    assert tracker.get("owner", f"/webhooks/{webhook['id']}").json["success_rate"] == 1.0


def test_releasing_prevents_expiry_and_holding_permits_it(
    tracker: Tracker, receiver: Receiver, subscribe: Post
) -> None:
    using = tracker.project.cluster
    going, staying = (subscribe(events=["lists.insert"], enabled=False) for _ in range(2))
    for webhook in (going, staying):
        pile_up(tracker, webhook, REQUEST_BATCH + 50, "held")
    patch(tracker, going, enabled=True)
    assert delivery_retention.expire_held(using, older_than=timedelta(minutes=1)) == REQUEST_BATCH + 50
    assert counted(tracker, going) == {"pending": REQUEST_BATCH, "held": 50}
    assert counted(tracker, staying) == {"dropped": REQUEST_BATCH + 50}
    patch(tracker, going, enabled=False)
    settle_all(using)
    assert delivery_retention.expire_held(using, older_than=timedelta(minutes=1)) == 50, (
        "the others were due a moment ago"
    )
    assert delivery_retention.expire_held(using, older_than=timedelta(0)) == REQUEST_BATCH
    assert counted(tracker, going) == {"dropped": REQUEST_BATCH + 50}


@pytest.mark.parametrize("statistics", [False, True])
def test_expiry_scan_does_not_read_recently_held_deliveries(
    tracker: Tracker, receiver: Receiver, subscribe: Post, statistics: bool
) -> None:
    using = tracker.project.cluster
    webhook, other = (subscribe(events=["lists.insert"], enabled=False) for _ in range(2))
    pile_up(tracker, webhook, LONG, "held")
    pile_up(tracker, other, 10, "held")
    if statistics:
        gather_statistics(using)
    old = Delivery.objects.using(using).filter(webhook_id=webhook["id"], sequence__lte=5)
    old.update(next_attempt_at=F("next_attempt_at") - timedelta(days=7), created_at=F("created_at") - timedelta(days=7))
    with count_touched_rows(using) as cost:
        assert delivery_retention.expire_held(using, older_than=timedelta(days=7)) == 5
        assert delivery_retention.expire_held(using, older_than=timedelta(days=7)) == 0
    assert cost.read < 200
    assert counted(tracker, webhook) == {"dropped": 5, "held": LONG - 5}


def test_failed_deliveries_are_resent_once_and_new_failures_are_kept(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    using = tracker.project.cluster
    webhook = subscribe(events=["lists.insert"])
    lost = Delivery.objects.using(using)
    pile_up(tracker, webhook, 2 * REQUEST_BATCH + 300, "exhausted")
    lost.filter(sequence__lte=100).update(body="")
    lost.filter(sequence__gt=100, sequence__lte=200).update(attempts=MAX_ATTEMPTS)
    lost.filter(sequence__gt=200, sequence__lte=300).update(status="delivered")
    recover = f"/webhooks/{webhook['id']}/recover"
    assert tracker.post("owner", recover, {"since": EARLIER}).json == {"deliveries": REQUEST_BATCH - 200, "more": True}
    settle_all(using, batch=300)
    assert counted(tracker, webhook) == {"pending": 2 * REQUEST_BATCH, "exhausted": 200, "delivered": 100}
    stored = Webhook.objects.using(using).get(pk=webhook["id"])
    assert (stored.recover_from, stored.recover_until) == (None, None)
    # Ordered anew, and failing all the while: each once.
    lost.filter(status="pending").update(status="exhausted")
    assert tracker.post("owner", recover, {"since": EARLIER}).json["more"]
    lost.filter(sequence=2 * REQUEST_BATCH + 300).update(last_attempt_at=Now())  # it was under way, and fails now
    receiver.behave = answer("500 No")
    tries = 0
    while True:
        lost.filter(status="pending").update(schedule_from=-9)
        made = dispatch()
        if not made and not reconcile(using, batch=300):
            break
        tries += made
    assert tries == 2 * REQUEST_BATCH - 1
    assert counted(tracker, webhook) == {"exhausted": 2 * REQUEST_BATCH + 200, "delivered": 100}


def test_the_consoles_figures_go_by_the_webhook(tracker: Tracker, receiver: Receiver, subscribe: Post) -> None:
    from platform_site.console.rollups import measure_region
    from platform_site.models import Sample

    using = tracker.project.cluster
    webhook = subscribe(events=["lists.insert"])
    pile_up(tracker, webhook, 3 * REQUEST_BATCH, "pending")

    def figures() -> tuple[int, int, bool]:
        measure_region(using)
        values = Sample.objects.get(name=using).values
        return values["due"], values["held"], values["due_age"] is not None

    assert figures() == (3 * REQUEST_BATCH, 0, True)
    patch(tracker, webhook, enabled=False)
    assert figures() == (0, 3 * REQUEST_BATCH, False)
    settle_all(using)
    assert figures() == (0, 3 * REQUEST_BATCH, False)
    patch(tracker, webhook, enabled=True)
    assert figures() == (REQUEST_BATCH, 2 * REQUEST_BATCH, True)


def test_event_relayed_during_a_switch_is_consistent_with_one_state(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    using = tracker.project.cluster
    webhook = subscribe(events=["lists.insert"])
    write_list(tracker, "before")
    relay_batch(using)
    patch(tracker, webhook, enabled=False)
    write_list(tracker, "while it is disabled")
    assert dispatch() == 0
    assert counted(tracker, webhook) == {"held": 2}
    patch(tracker, webhook, enabled=True)
    write_list(tracker, "after")
    assert dispatch() == 3
    assert counted(tracker, webhook) == {"delivered": 3}
