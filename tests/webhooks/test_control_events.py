"""Events of the control database: users and preview branches, told by the webhooks of a region."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.models.functions import Now

from accounts.models import User
from projects.control_events import ControlEvent
from rows.outbox.models import OutboxEvent
from tests.projects.conftest import make_project
from tests.rows.conftest import Tracker
from tests.support.deliveries import Dispatch
from tests.support.receiver import Receiver
from tests.support.row_statistics import count_touched_rows
from tests.webhooks.conftest import Post, bodies
from webhooks.delivery.control_events import move_to_region, purge_old

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

MANY = 20_000


def make_user(tracker: Tracker, name: str = "carol") -> str:
    body = {"email": f"{name}@tracker.example", "password": "a long enough one", "name": name}
    made = tracker.post("owner", "/users", body)
    assert made.status == 201, made.json
    return str(made.json["id"])


def change_schema(tracker: Tracker) -> None:
    document = tracker.get("owner", "/schema").json["document"]
    document["tables"]["more"] = {"columns": {"title": {"type": "text"}}}
    changed = tracker.call("owner", "PUT", "/schema", json={"document": document})
    assert changed.status == 200, changed.json


def carry_all(tracker: Tracker) -> int:
    return move_to_region(tracker.project.cluster)


def test_a_new_user_is_told_by_id_alone(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    carry_all(tracker)  # the cast's
    subscribe(events=["auth.user.created"])
    user_id = make_user(tracker)
    assert carry_all(tracker) == 1
    assert carry_all(tracker) == 0
    assert dispatch() == 1
    (body,) = bodies(receiver)
    assert (body["type"], body["environment_id"]) == ("auth.user.created", tracker.environment_id)
    assert body["data"] == {"user_id": user_id}, "a key that may not read users makes webhooks, too"
    assert body["id"] == ControlEvent.objects.order_by("-sequence")[0].event_id


def test_refused_user_creates_no_event(tracker: Tracker, subscribe: Post) -> None:
    subscribe(events=["auth.user.created"])
    make_user(tracker)
    before = ControlEvent.objects.count()
    again = {"email": "Carol@tracker.example", "password": "a long enough one", "name": "c"}
    assert tracker.post("owner", "/users", again).status == 422
    assert ControlEvent.objects.count() == before


def test_transfer_interrupted_between_databases_delivers_once(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    carry_all(tracker)
    subscribe(events=["*"])
    make_user(tracker)
    assert carry_all(tracker) == 1
    dispatch()
    last = ControlEvent.objects.order_by("-sequence")[:1].values("pk")
    ControlEvent.objects.filter(pk__in=last).update(relayed_at=None)  # as if the process had died before the mark
    assert carry_all(tracker) == 1
    dispatch()
    assert [body["type"] for body in bodies(receiver)].count("auth.user.created") == 1


def test_events_without_subscribers_stay_out_of_the_region(
    tracker: Tracker, subscribe: Post, make_tracker: Any
) -> None:
    from tests.support.tracker import DOCUMENT

    other = make_tracker(DOCUMENT, "Other")
    subscribe(events=["auth.user.created"])
    carry_all(tracker)
    OutboxEvent.objects.using(tracker.project.cluster).all().delete()
    make_user(other)
    assert carry_all(tracker) == 1
    assert not OutboxEvent.objects.using(tracker.project.cluster).exists()


@pytest.mark.parametrize("events", [["*.insert"], ["*.update", "*.delete"], ["*.*"], ["tasks.*"], ["tasks.insert"],
                                    ["environment.ready"]])  # fmt: skip
def test_patterns_of_rows_bring_no_system_event(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch, events: list[str]
) -> None:
    """Neither to the webhook nor into its region: neither of a user nor of a schema."""
    carry_all(tracker)
    subscribe(events=events)
    OutboxEvent.objects.using(tracker.project.cluster).all().delete()
    make_user(tracker)
    assert carry_all(tracker) == 1
    change_schema(tracker)
    assert not OutboxEvent.objects.using(tracker.project.cluster).exists()
    dispatch()
    assert bodies(receiver) == []


@pytest.mark.parametrize("events", [["*"], ["tasks.insert", "*"], ["auth.user.created", "schema.migrated"]])
def test_system_events_come_by_their_name_or_with_all(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch, events: list[str]
) -> None:
    carry_all(tracker)
    subscribe(events=events)
    make_user(tracker)
    change_schema(tracker)
    carry_all(tracker)
    dispatch()
    assert sorted(body["type"] for body in bodies(receiver)) == ["auth.user.created", "schema.migrated"]


def test_a_function_on_rows_hears_of_no_user_and_one_on_all_does(tracker: Tracker) -> None:
    carry_all(tracker)
    for name, on in (("rows", ["*.insert"]), ("all", ["*"])):
        outbox = OutboxEvent.objects.using(tracker.project.cluster)
        outbox.all().delete()
        body = {"source": "export default () => 1", "on": on}
        assert tracker.call("owner", "PUT", f"/functions/{name}", json=body).status == 201
        make_user(tracker, name)
        carry_all(tracker)
        assert [each.type for each in outbox.all()] == (["auth.user.created"] if on == ["*"] else [])


def test_a_branch_that_is_ready_is_told_where_it_came_from(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    subscribe(events=["environment.ready"])
    path = f"/projects/{tracker.project.pk}/environments"
    made = tracker.post("owner", path, {"name": "try-it", "from": "production"})
    assert made.status == 201, made.json
    carry_all(tracker)
    assert dispatch() == 1
    (body,) = bodies(receiver)
    assert (body["type"], body["environment_id"]) == ("environment.ready", tracker.environment_id)
    assert body["data"] == {"environment_id": made.json["id"], "name": "try-it", "project_id": tracker.project.pk}


def test_old_events_expire_unless_they_wait(tracker: Tracker) -> None:
    carry_all(tracker)
    make_user(tracker)
    ControlEvent.objects.create(
        event_id="evt_of_nobody", environment_id="env_gone", type="auth.user.created", data="{}"
    )
    ControlEvent.objects.update(created_at=Now() - timedelta(days=8))
    assert purge_old() > 0
    assert [event.environment_id for event in ControlEvent.objects.all()] == [tracker.environment_id]
    assert carry_all(tracker) == 1


_WAITING = """
INSERT INTO projects_controlevent (event_id, environment_id, type, data)
SELECT 'evt_' || n, %s, 'auth.user.created', '{}' FROM generate_series(1, %s) n
"""


@pytest.mark.parametrize("statistics", ["none", "all", "of another time"])
def test_a_turn_passes_nothing_that_waits_for_another_region(
    tracker: Tracker, subscribe: Post, statistics: str
) -> None:
    subscribe(events=["auth.user.created"])
    elsewhere = make_project(User.objects.get(memberships__project=tracker.project, memberships__role="owner"), "Far",
                             region="eu-west-1")  # fmt: skip
    environment = elsewhere.environments.get(name="production")
    assert elsewhere.cluster != tracker.project.cluster
    with connections[DEFAULT_DB_ALIAS].cursor() as cursor:
        if statistics == "of another time":
            make_user(tracker, "dave")
            ControlEvent.objects.update(relayed_at=None)
            cursor.execute("ANALYZE projects_controlevent")
        carry_all(tracker)
        cursor.execute(_WAITING, [environment.pk, MANY])
        if statistics == "all":
            cursor.execute("ANALYZE projects_controlevent")
    make_user(tracker)
    with count_touched_rows(DEFAULT_DB_ALIAS, "projects_controlevent") as cost:
        assert carry_all(tracker) == 1
        assert carry_all(tracker) == 0
    assert cost.read < 50
    assert cost.changed == 1
    waiting = ControlEvent.objects.filter(relayed_at=None)
    assert set(waiting.values_list("environment_id", flat=True)) == {environment.pk}
    assert waiting.count() >= MANY
    assert OutboxEvent.objects.using(tracker.project.cluster).latest("sequence").type == "auth.user.created"
    assert move_to_region(elsewhere.cluster) == 200
