"""What ends by itself: held events, deliveries and events past their time, webhooks that were deleted. And what
stays."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from platform_site.identity import ids
from projects.control_events import ControlEvent
from projects.models import Environment
from rows.outbox.models import OutboxEvent
from tests.rows.conftest import Tracker
from tests.support.deliveries import deliveries, write_list
from tests.support.receiver import Receiver
from tests.webhooks.conftest import Post
from webhooks.delivery import control_events
from webhooks.delivery import retention as delivery_retention
from webhooks.models import Attempt, Delivery, Webhook
from webhooks.tasks import purge_old_deliveries

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

Dispatch = Callable[[], int]
WEEK, MONTH = timedelta(days=7), timedelta(days=30)
MINUTE = timedelta(minutes=1)


def age(tracker: Tracker, by: timedelta, **which: Any) -> None:
    """As if these deliveries, and all that is noted of them, lay so far back."""
    for delivery in Delivery.objects.using(tracker.project.cluster).filter(**which):
        then = delivery.created_at - by
        changed = {"created_at": then}
        if delivery.next_attempt_at is not None:
            changed["next_attempt_at"] = delivery.next_attempt_at - by
        Delivery.objects.using(tracker.project.cluster).filter(pk=delivery.pk).update(**changed)


def fates(tracker: Tracker, webhook: dict[str, Any]) -> list[tuple[str, str | None]]:
    return sorted((each["status"], each["outcome"]) for each in deliveries(tracker, webhook))


def test_what_was_held_for_seven_days_is_dropped_and_says_so(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    using = tracker.project.cluster
    held, sent = subscribe(events=["lists.insert"], enabled=False), subscribe(events=["lists.insert"])
    write_list(tracker)
    assert dispatch() == 1
    age(tracker, WEEK - MINUTE)
    assert delivery_retention.expire_held(using, older_than=WEEK) == 0
    age(tracker, 2 * MINUTE)
    write_list(tracker)
    assert dispatch() == 1
    purge_old_deliveries(using)
    assert fates(tracker, held) == [("dropped", "held longer than 7 days"), ("held", "the webhook is disabled")]
    assert fates(tracker, sent) == [("delivered", "200")] * 2
    Webhook.objects.using(using).filter(pk=held["id"]).update(enabled=True)
    age(tracker, WEEK + MINUTE, status="held")
    assert delivery_retention.expire_held(using, older_than=WEEK) == 0, "it is about to be released"


def test_resent_old_event_is_held_for_seven_days(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    using = tracker.project.cluster
    webhook = subscribe(events=["lists.insert"])
    path = f"/webhooks/{webhook['id']}"
    write_list(tracker)
    assert dispatch() == 1
    Delivery.objects.using(using).update(status="exhausted", created_at=timezone.now() - timedelta(days=10))
    since = (timezone.now() - timedelta(days=20)).isoformat()
    assert tracker.post("owner", f"{path}/recover", {"since": since}).json == {"deliveries": 1, "more": False}
    assert tracker.patch("owner", path, {"enabled": False}).status == 200
    assert delivery_retention.expire_held(using, older_than=WEEK) == 0
    (delivery,) = deliveries(tracker, webhook)
    assert (delivery["status"], delivery["next_attempt_at"]) == ("held", None)
    age(tracker, WEEK)
    assert delivery_retention.expire_held(using, older_than=WEEK) == 1


def test_ended_deliveries_expire_with_their_attempts(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    using = tracker.project.cluster
    webhook = subscribe(events=["lists.insert"])
    for _ in range(4):
        write_list(tracker)
    assert dispatch() == 4
    ended, pending, held, young = Delivery.objects.using(using).order_by("sequence")
    bound = ids.earliest("dlv", datetime.now(UTC) - MONTH - MINUTE)  # the age is in the id
    for delivery, renamed in zip((ended, pending, held), (bound[:-1] + last for last in "123"), strict=True):
        with transaction.atomic(using=using):
            Delivery.objects.using(using).filter(pk=delivery.pk).update(id=renamed)
            Attempt.objects.using(using).filter(delivery_id=delivery.pk).update(delivery_id=renamed)
    kept = Delivery.objects.using(using).filter(pk__lt=young.pk).order_by("pk")
    first, second, third = kept
    kept.update(last_attempt_at=timezone.now() - MONTH - MINUTE, created_at=timezone.now() - MONTH - MINUTE)
    kept.filter(pk=second.pk).update(status="pending", next_attempt_at=timezone.now() + WEEK)
    kept.filter(pk=third.pk).update(status="held")
    assert Attempt.objects.using(using).count() == 4
    assert delivery_retention.purge(using, older_than=MONTH) == 1
    left = [second.pk, third.pk, young.pk]
    assert list(Delivery.objects.using(using).order_by("pk").values_list("pk", flat=True)) == left
    assert sorted(Attempt.objects.using(using).values_list("delivery_id", flat=True)) == left
    assert len(deliveries(tracker, webhook)) == 3


def test_a_clock_that_is_wrong_forgets_nothing_before_its_time(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    """Ids are made by the relay's clock; one that was never attempted has no other time but its making. And the one who
    purges may be ahead."""
    using = tracker.project.cluster
    subscribe(events=["lists.insert"], filter={"name": "never"})
    write_list(tracker)
    assert dispatch() == 0
    [filtered] = Delivery.objects.using(using)
    assert (filtered.status, filtered.last_attempt_at) == ("filtered", None)
    behind = ids.earliest("dlv", datetime.now(UTC) - MONTH - MINUTE)
    Delivery.objects.using(using).update(id=behind)
    assert delivery_retention.purge(using, older_than=MONTH) == 0
    Delivery.objects.using(using).update(created_at=timezone.now() - MONTH - MINUTE)
    assert delivery_retention.purge(using, older_than=MONTH) == 1


def test_events_relayed_long_ago_are_deleted(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    using = tracker.project.cluster
    subscribe(events=["lists.insert"])
    write_list(tracker)
    write_list(tracker)
    assert dispatch() == 2
    write_list(tracker)  # not relayed, however old
    OutboxEvent.objects.using(using).update(created_at=timezone.now() - 2 * MONTH)
    old, young, waiting = OutboxEvent.objects.using(using).order_by("sequence")
    for event, days in ((old, 30.1), (young, 29.9)):
        relayed_at = timezone.now() - timedelta(days=days)
        OutboxEvent.objects.using(using).filter(pk=event.pk).update(relayed_at=relayed_at)
    assert delivery_retention.purge(using, older_than=MONTH) == 1
    left = OutboxEvent.objects.using(using).order_by("sequence").values_list("pk", flat=True)
    assert list(left) == [young.pk, waiting.pk]


def test_deleted_webhook_is_removed_once_nothing_is_in_flight(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    using = tracker.project.cluster
    gone, stays = subscribe(events=["lists.insert"]), subscribe(events=["lists.insert"])
    write_list(tracker)
    assert dispatch() == 2
    assert tracker.delete("owner", f"/webhooks/{gone['id']}").status == 204
    assert delivery_retention.remove_deleted(using) == 0  # a relay may just be about to write for it
    Webhook.objects.using(using).filter(pk=gone["id"]).update(deleted_at=timezone.now() - 2 * MINUTE)
    of_it = Delivery.objects.using(using).filter(webhook_id=gone["id"])
    of_it.update(claimed_until=timezone.now() + MINUTE)
    assert delivery_retention.remove_deleted(using) == 0
    assert of_it.count() == 1
    of_it.update(claimed_until=timezone.now() - MINUTE)
    assert delivery_retention.remove_deleted(using) == 1
    assert list(Webhook.objects.using(using).values_list("pk", flat=True)) == [stays["id"]]
    assert Delivery.objects.using(using).count() == Attempt.objects.using(using).count() == 1


def test_control_events_are_deleted_only_after_they_are_transferred(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_events, "PURGE_BATCH", 2)  # so that it goes on behind its batch
    ControlEvent.objects.all().delete()
    old, young = timezone.now() - WEEK - MINUTE, timezone.now() - WEEK + MINUTE
    known, unknown = tracker.environment_id, "env_01k60000000000000000000000"
    made = [
        ControlEvent(
            event_id=ids.new("evt"),
            environment_id=environment_id,
            type="user.created",
            data="{}",
            relayed_at=relayed_at,
        )
        for environment_id in (known, unknown)
        for relayed_at in (None, old)
    ]
    ControlEvent.objects.bulk_create(made)
    ControlEvent.objects.update(created_at=young)
    assert control_events.purge_old() == 0
    ControlEvent.objects.update(created_at=old)
    assert control_events.purge_old() == 3
    assert ControlEvent.objects.get().environment_id == known
    assert ControlEvent.objects.get().relayed_at is None
    assert Environment.objects.filter(pk=known).exists()
