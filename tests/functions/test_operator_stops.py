"""Operators stop a function's schedule and events, and activate a version, without becoming its run-as identity."""

from typing import Any

import pytest
from django.test import Client

from accounts import audit
from accounts.models import AuditEntry
from functions.deploy import service as deploy_service
from functions.models import Function, Run
from functions.triggers import event_subscriptions, schedules
from functions.triggers import events as event_triggers
from projects.directory.environments import environment_ref
from rows.models import EventInterest, OutboxEvent
from tests.rows.conftest import Tracker
from tests.support.console import console as console
from tests.support.functions import SUM, deploy
from webhooks.delivery.relay import relay_batch

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

STAFF = audit.Actor("staff", "usr_01h455vb4pex5vsknk084sn02q")


@pytest.fixture
def environment(tracker: Tracker) -> Any:
    return environment_ref(tracker.environment_id)


def the_function(tracker: Tracker) -> Function:
    return Function.objects.using(tracker.project.cluster).get()


def test_a_stopped_schedule_is_recorded_once(tracker: Tracker, environment: Any) -> None:
    owner = tracker.project.memberships.get(role="owner").user_id
    deploy(tracker, "sum", SUM, schedule="30 4 * * *")
    deploy(tracker, "sum", SUM + "\n")
    deploy_service.activate(environment, "sum", 1, actor=STAFF)
    function = the_function(tracker)
    assert (function.active_version, function.scheduled_id, function.schedule_stopped) == (1, owner, None)
    for _ in range(2):
        deploy_service.stop_trigger(environment, "sum", schedules.stop, actor=STAFF)
    function = the_function(tracker)
    assert (function.next_run_at, function.schedule_stopped) == (None, "operator")
    entry = AuditEntry.objects.get(action="function.schedule_stopped")
    assert (entry.actor_kind, entry.detail["reason"]) == ("staff", "operator")


@pytest.mark.exhaustive
def test_stopped_events_run_nothing(tracker: Tracker, environment: Any, console: Client) -> None:
    using = tracker.project.cluster
    owner = tracker.project.memberships.get(role="owner").user_id
    deploy(tracker, "sum", SUM, on=["lists.insert"])
    row = {"name": "x", "owner_id": tracker.users["alice"]}
    assert tracker.post("key", "/rows/lists", row).status == 201
    relay_batch(using)
    waits = console.get(f"/admin/waiting/{using}/").content.decode()
    assert OutboxEvent.objects.using(using).get(type="lists.insert").event_id in waits
    assert "all runs are queued" not in waits
    assert event_triggers.queue(using) == 1
    assert "all runs are queued" in console.get(f"/admin/waiting/{using}/").content.decode()
    deploy(tracker, "sum", SUM + "\n")
    deploy_service.activate(environment, "sum", 1, actor=STAFF)
    assert (the_function(tracker).events_id, the_function(tracker).events_stopped) == (owner, None)
    assert tracker.post("key", "/rows/lists", row).status == 201
    relay_batch(using)  # what waits does not run, either
    for _ in range(2):
        deploy_service.stop_trigger(environment, "sum", event_subscriptions.stop, actor=STAFF)
    assert not EventInterest.objects.using(using).exists()
    entry = AuditEntry.objects.get(action="function.events_stopped")
    assert (entry.actor_kind, entry.detail["reason"]) == ("staff", "operator")
    assert tracker.post("key", "/rows/lists", row).status == 201
    relay_batch(using)
    assert event_triggers.queue(using) == 0
    assert Run.objects.using(using).filter(trigger="event").count() == 1
