"""What happens to events and deliveries while their project is suspended: nothing, and then all of it, once."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.db.models import F
from django.db.models.functions import Now

from accounts import audit
from projects import services as projects
from projects.models import Project
from projects.provisioning import suspension
from rows.outbox.models import OutboxEvent
from tests.rows.conftest import Tracker
from tests.support.deliveries import deliveries, write_list
from tests.support.receiver import Receiver, answer
from tests.webhooks.conftest import Post, bodies
from webhooks.delivery import retention as delivery_retention
from webhooks.delivery.queue import longest_wait
from webhooks.models import Attempt, Delivery
from webhooks.subscriptions import service as webhook_service

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(databases="__all__", transaction=True)]

Dispatch = Callable[[], int]
WEEK = timedelta(days=7)


def suspend(tracker: Tracker) -> None:
    projects.suspend_project(tracker.project.pk, reason="abuse", actor=audit.SYSTEM)


def resume(tracker: Tracker) -> None:
    projects.resume_project(tracker.project.pk, actor=audit.SYSTEM)


def test_what_was_written_before_waits_and_arrives_once_in_its_order(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    webhook = subscribe(events=["lists.*"], ordering="row")
    using = tracker.project.cluster
    row = write_list(tracker)
    assert tracker.patch("key", f"/rows/lists/{row}", {"name": "Changed"}).status == 200
    suspend(tracker)
    assert dispatch() == 0
    assert longest_wait(using) is None, "no worker is woken for it, for months"
    assert receiver.requests == []
    waiting = Delivery.objects.using(using)
    assert list(waiting.values_list("status", "attempts", "claimed_until")) == [("pending", 0, None)] * 2
    # It takes a year, and retention goes on meanwhile.
    waiting.update(next_attempt_at=Now() - timedelta(days=365))
    delivery_retention.expire_held(using, older_than=timedelta(0))
    delivery_retention.purge(using, older_than=timedelta(0))
    resume(tracker)
    assert longest_wait(using) is not None
    assert dispatch() == 2
    assert [body["type"] for body in bodies(receiver)] == ["lists.insert", "lists.update"]
    assert {each["status"] for each in deliveries(tracker, webhook)} == {"delivered"}
    assert dispatch() == 0


def test_events_that_no_relay_had_met_wait_as_well(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    subscribe(events=["lists.insert"])
    write_list(tracker)
    suspend(tracker)
    assert dispatch() == 0
    resume(tracker)
    assert dispatch() == 1
    assert len(receiver.requests) == 1


def test_retries_pause_during_suspension(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    using = tracker.project.cluster
    receiver.behave = answer("500 No")
    webhook = subscribe(events=["lists.insert"])
    write_list(tracker)
    assert dispatch() == 1
    suspend(tracker)
    for _ in range(3):
        Delivery.objects.using(using).update(next_attempt_at=Now() - timedelta(days=1))
        assert dispatch() == 0
    assert Attempt.objects.using(using).count() == 1
    resume(tracker)
    receiver.behave = answer()
    assert dispatch() == 1
    (done,) = deliveries(tracker, webhook)
    assert (done["status"], len(done["attempts"])) == ("delivered", 2)


def test_neighbours_are_delivered_as_always(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    subscribe(events=["lists.insert"])
    write_list(tracker)
    other = Project.objects.create(name="Other", region="us-east-1", cluster="us-east-1")
    projects.suspend_project(other.pk, reason="abuse", actor=audit.SYSTEM)
    assert dispatch() == 1


def test_an_outcome_of_an_attempt_in_flight_is_recorded(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    webhook = subscribe(events=["lists.insert"])
    taken = answer()

    def suspend_and_answer(connection: Any) -> Any:
        try:
            suspend(tracker)
        finally:
            connections.close_all()
        return taken(connection)

    receiver.behave = suspend_and_answer
    write_list(tracker)
    assert dispatch() == 1
    resume(tracker)
    assert [each["status"] for each in deliveries(tracker, webhook)] == ["delivered"]
    assert dispatch() == 0, "nothing arrives twice"


def test_deliveries_of_a_disabled_webhook_do_not_expire(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    using = tracker.project.cluster
    webhook = subscribe(events=["lists.insert"])
    assert tracker.patch("owner", f"/webhooks/{webhook['id']}", {"enabled": False}).status == 200
    write_list(tracker)
    dispatch()
    Delivery.objects.using(using).update(created_at=Now() - timedelta(days=8), next_attempt_at=None)
    suspend(tracker)
    assert delivery_retention.expire_held(using, older_than=WEEK) == 0, "its owner cannot enable it now"
    resume(tracker)
    assert delivery_retention.expire_held(using, older_than=WEEK) == 0, "and has the same week again"
    assert tracker.patch("owner", f"/webhooks/{webhook['id']}", {"enabled": True}).status == 200
    assert dispatch() == 1
    assert tracker.patch("owner", f"/webhooks/{webhook['id']}", {"enabled": False}).status == 200
    write_list(tracker)
    dispatch()
    Delivery.objects.using(using).filter(status="held").update(
        created_at=Now() - timedelta(days=8), next_attempt_at=None
    )
    Project.objects.update(resumed_at=F("resumed_at") - WEEK)
    assert delivery_retention.expire_held(using, older_than=WEEK) == 1, "and no longer"


def test_the_record_of_what_was_sent_late_is_kept_from_then_on(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    using = tracker.project.cluster
    webhook = subscribe(events=["lists.insert"])
    write_list(tracker)
    suspend(tracker)
    dispatch()
    month = timedelta(days=30)
    old = "dlv_00000000000000000000000000"
    with connections[using].cursor() as cursor:  # ids begin with their time: this one is of 1970
        cursor.execute("UPDATE platform.webhooks_delivery SET id = %s, created_at = now() - interval '60 days'", [old])
    resume(tracker)
    assert dispatch() == 1
    delivery_retention.purge(using, older_than=month)
    assert [each["id"] for each in deliveries(tracker, webhook)] == [old]
    Delivery.objects.using(using).update(last_attempt_at=Now() - timedelta(days=31))
    delivery_retention.purge(using, older_than=month)
    assert deliveries(tracker, webhook) == []


def test_staff_may_prepare_what_goes_out_once_it_is_lifted(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    from projects.directory.environments import environment_ref

    webhook = subscribe(events=["lists.insert"])
    suspend(tracker)
    environment = environment_ref(tracker.environment_id)
    assert environment is not None
    webhook_service.send_test(environment, webhook["id"], actor=audit.SYSTEM)
    assert dispatch() == 0
    assert OutboxEvent.objects.using(environment.cluster).count() == 1
    resume(tracker)
    assert dispatch() == 1


def test_a_suspension_by_another_process_is_known_within_the_bound(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the other process is the table's UPDATE: nobody tells this one."""
    subscribe(events=["lists.insert"])
    assert dispatch() == 0  # and has asked
    Project.objects.update(suspended_at=Now(), suspension_reason="abuse")
    monkeypatch.setattr(suspension, "FRESH_SECONDS", 0.0)
    assert suspension.suspended_in(tracker.project.cluster) != []
