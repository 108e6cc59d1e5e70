"""From a row write to its receiver and back into the history, over the API, with a real receiver."""

import contextlib
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connections, transaction
from django.test import override_settings
from django.utils import timezone
from standardwebhooks import Webhook as Verifier
from standardwebhooks import WebhookVerificationError
from svix.webhooks import Webhook as SvixVerifier

from accounts.audit import SYSTEM
from accounts.models import AuditEntry
from platform_site.embedded import postgres as embedded_postgres
from platform_site.embedded.data_dir import Layout
from platform_site.identity import call_depth
from projects.directory.environments import environment_ref
from rows import tasks as rows_tasks
from rows.events import payloads
from rows.models import AuditOutboxEntry
from rows.outbox.models import OutboxEvent
from tests.rows.conftest import Tracker
from tests.support.client import Answer
from tests.support.deliveries import Dispatch, deliveries, write_list
from tests.support.receiver import Receiver, answer, headers
from tests.support.tracker import DOCUMENT
from tests.support.unavailable import database_unavailable, terminate_connection
from tests.webhooks.conftest import Post, bodies
from webhooks.delivery.dispatcher import Dispatcher
from webhooks.delivery.reconciler import reconcile
from webhooks.models import Attempt, Delivery, Webhook
from webhooks.subscriptions import service as webhook_service

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)


def test_a_write_arrives_signed_and_is_in_the_history(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    webhook = subscribe(events=["lists.insert"])
    row = write_list(tracker)
    assert dispatch() == 1
    (body,) = bodies(receiver)
    sent = headers(receiver.requests[0])
    Verifier(webhook["secret"]).verify(receiver.requests[0].partition(b"\r\n\r\n")[2], sent)
    SvixVerifier(webhook["secret"]).verify(receiver.requests[0].partition(b"\r\n\r\n")[2], sent)
    assert sent["webhook-id"] == body["id"]
    assert call_depth.depth_of({call_depth.META: sent["x-platform-depth"]}, tracker.environment_id) == 1
    assert (body["type"], body["environment_id"]) == ("lists.insert", tracker.environment_id)
    assert (body["data"]["table"], body["data"]["id"], body["data"]["old_record"]) == ("lists", row, None)
    assert body["data"]["record"]["name"] == "Home"
    (delivery,) = deliveries(tracker, webhook, f"?event_id={body['id']}")
    assert (delivery["status"], delivery["outcome"]) == ("delivered", "200")
    assert [(a["response_status"], a["error"]) for a in delivery["attempts"]] == [(200, None)]


def test_only_what_was_subscribed_makes_an_event(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    write_list(tracker, "before")
    assert not OutboxEvent.objects.using(tracker.project.cluster).exists()
    subscribe(events=["lists.update", "lists.delete"])
    row = write_list(tracker, "after")
    assert not OutboxEvent.objects.using(tracker.project.cluster).exists()
    assert tracker.patch("key", f"/rows/lists/{row}", {"name": "renamed"}).status == 200
    assert tracker.patch("key", f"/rows/lists/{row}", {}).status == 200
    assert tracker.delete("key", f"/rows/lists/{row}").status == 204
    dispatch()
    first, second = sorted(bodies(receiver), key=lambda body: body["type"], reverse=True)
    assert (first["type"], first["data"]["changed"]) == ("lists.update", ["name"])
    assert (first["data"]["old_record"]["name"], first["data"]["record"]["name"]) == ("after", "renamed")
    assert (second["type"], second["data"]["record"]) == ("lists.delete", None)
    assert second["data"]["old_record"]["name"] == "renamed"


def test_a_refused_write_leaves_no_event(tracker: Tracker, subscribe: Post) -> None:
    subscribe()
    assert tracker.post("key", "/rows/lists", {"name": None}).status == 422
    assert not OutboxEvent.objects.using(tracker.project.cluster).exists()


@pytest.mark.exhaustive
def test_columns_and_filter_decide_what_is_told(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    webhook = subscribe(events=["lists.*"], columns={"lists": ["name"]}, filter={"name": {"$startsWith": "A"}})
    write_list(tracker, "Alpha")
    write_list(tracker, "Beta")
    dispatch()
    (body,) = bodies(receiver)
    assert body["data"]["record"] == {"id": body["data"]["id"], "name": "Alpha"}
    fates = {each["status"]: each for each in deliveries(tracker, webhook)}
    assert fates.keys() == {"delivered", "filtered"}
    assert fates["filtered"]["attempts"] == []
    changes = {"name": "Again", "owner_id": tracker.users["bob"]}
    assert tracker.patch("key", f"/rows/lists/{body['data']['id']}", changes).status == 200
    dispatch()
    assert bodies(receiver)[-1]["data"]["changed"] == ["name"]


def test_numbers_of_any_size_arrive_with_all_their_digits(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    subscribe(events=["tasks.insert"])
    meta = {"beyond": 2**64, "below": -(2**63) - 1, "far": 10**300, "share": 0.1, "text": "é\u2028"}
    task = {"title": "t", "list_id": write_list(tracker), "owner_id": tracker.users["alice"], "meta": meta}
    assert tracker.call("key", "POST", "/rows/tasks", body=json.dumps(task).encode()).status == 201
    assert dispatch() == 1
    (body,) = bodies(receiver)
    assert body["data"]["record"]["meta"] == meta


@pytest.mark.parametrize("rule", ["$none", "$every"])
def test_a_rule_that_asks_about_more_rows_than_are_looked_at_shows_nothing(
    make_tracker: Any, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    """Which of the far rows are looked at is chance: a rule that wants none of a kind must not pass by that."""
    monkeypatch.setattr(payloads, "RELATED_ROWS", 3)
    hides = {"$none": {"closed": True}, "$every": {"closed": False}}
    note = {"type": "reference", "to": "notes", "on_delete": "cascade", "related_name": "locks"}
    tracker: Tracker = make_tracker(
        {
            "tables": {
                "notes": {
                    "columns": {"body": {"type": "text"}},
                    "rules": {
                        "server": {"read": {"where": {"locks": {rule: hides[rule]}}}, "update": {}, "insert": {}}
                    },
                },
                "locks": {"columns": {"closed": {"type": "boolean"}, "note": note}},
            }
        }
    )
    webhook = tracker.post("owner", "/webhooks", {"url": receiver.url(), "events": ["notes.update"]}).json
    for name, locks in (("open", 3), ("locked", 8)):  # of the eight, the one that matters comes last
        assert tracker.post("key", "/rows/notes", {"id": name, "body": "secret"}).status == 201
        rows = [{"closed": False, "note_id": name}] * (locks - 1) + [{"closed": name == "locked", "note_id": name}]
        assert tracker.post("key", "/rows/locks", rows).status == 201
        assert tracker.patch("operator", f"/rows/notes/{name}", {"body": "s3cret"}).status == 200
    assert tracker.get("key", "/rows/notes/locked").status == 404
    assert Dispatcher(tracker.project.cluster).run(linger=0) == 1
    assert [body["data"]["id"] for body in bodies(receiver)] == ["open"]
    assert {each["status"] for each in deliveries(tracker, webhook)} == {"delivered"}


def test_what_role_server_may_not_read_leaves_no_trace_in_the_history(make_tracker: Any, receiver: Receiver) -> None:
    """Else a key learns of rows that it cannot see: that they are, when they change, and how a hidden table is
    called."""
    body = {"body": {"type": "text"}, "shared": {"type": "boolean", "default": False}}
    shared = {"read": {"where": {"shared": True}}, "insert": {}, "update": {}}
    tracker: Tracker = make_tracker(
        {
            "tables": {
                "notes": {"columns": body, "rules": {"server": shared}},
                "secrets": {"columns": body, "rules": {"server": {"insert": {}}}},
            }
        }
    )
    webhook = tracker.post("owner", "/webhooks", {"url": receiver.url(), "events": ["*"], "filter": {"body": "x"}}).json
    for table in ("notes", "secrets"):
        assert tracker.post("operator", f"/rows/{table}", {"id": "hidden", "body": "x"}).status == 201
        assert tracker.patch("operator", f"/rows/{table}/hidden", {"body": "y"}).status == 200
        assert tracker.delete("operator", f"/rows/{table}/hidden").status == 204
    for name, text in (("wanted", "x"), ("other", "y")):
        assert tracker.post("key", "/rows/notes", {"id": name, "body": text, "shared": True}).status == 201
    assert tracker.patch("operator", "/rows/notes/wanted", {"shared": False}).status == 200
    Dispatcher(tracker.project.cluster).run(linger=0)
    told = [(each["event_type"], each["status"]) for each in deliveries(tracker, webhook)]
    assert sorted(told) == [
        ("notes.insert", "delivered"), ("notes.insert", "filtered"), ("notes.update", "delivered"),
    ]  # fmt: skip


def test_no_hidden_cell_of_the_row_before_is_told_or_filtered_by(make_tracker: Any, receiver: Receiver) -> None:
    columns = {"body": {"type": "text"}, "label": {"type": "text"}, "shared": {"type": "boolean"}}
    read = [{"columns": ["*", "-body"]}, {"where": {"shared": True}}]
    tracker: Tracker = make_tracker({"tables": {"notes": {"columns": columns, "rules": {"server": {"read": read}}}}})
    hook = {"url": receiver.url(), "events": ["notes.update"], "filter": {"label": "$old.body"}}
    webhook = tracker.post("owner", "/webhooks", hook).json
    assert tracker.post("owner", "/webhooks", {"url": receiver.url(), "events": ["notes.update"]}).status == 201
    for row_id, shared in (("hidden", False), ("shown", True)):
        row = {"id": row_id, "body": "x", "label": "y", "shared": shared}
        assert tracker.post("operator", "/rows/notes", row).status == 201
        assert tracker.patch("operator", f"/rows/notes/{row_id}", {"label": "x"}).status == 200
    Dispatcher(tracker.project.cluster).run(linger=0)
    assert sorted(each["status"] for each in deliveries(tracker, webhook)) == ["delivered", "filtered"]
    told = {each["data"]["id"]: each["data"]["old_record"] for each in bodies(receiver)}
    assert ("body" in told["hidden"], told["shown"]["body"]) == (False, "x")


def test_attempts_wait_for_the_threads_that_could_be_started(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = threading.Thread.start, list[threading.Thread]()

    def start_one_sender(thread: threading.Thread) -> None:
        if thread.name == "webhook-sender":
            if started:
                raise RuntimeError("can't start new thread")
            started.append(thread)
        start(thread)

    for _ in range(2):
        subscribe(events=["lists.insert"])
    write_list(tracker)
    monkeypatch.setattr(threading.Thread, "start", start_one_sender)
    assert dispatch() == 2
    assert len(bodies(receiver)) == 2


def test_server_rule_may_use_now_but_no_caller_variables(make_tracker: Any, receiver: Receiver) -> None:
    columns = {"due": {"type": "timestamp"}, "day": {"type": "date"}, "by": {"type": "text"}}
    is_due = {"where": {"due": {"$lte": "$now"}, "day": {"$lte": "$now"}}}
    of_a_key = [{"where": {"by": "$key.id"}}, {"where": {"by": {"$ne": "$key.id"}}}, {"where": {"by": "$user.email"}}]
    rules = {"server": {"read": [is_due, *of_a_key], "insert": {}}}
    tracker: Tracker = make_tracker({"tables": {"notes": {"columns": columns, "rules": rules}}})
    webhook = tracker.post("owner", "/webhooks", {"url": receiver.url(), "events": ["notes.insert"]}).json
    for name, year in (("past", 2020), ("future", 2120)):
        note = {"id": name, "due": f"{year}-01-01T00:00:00Z", "day": f"{year}-01-01", "by": "key_somebodys"}
        assert tracker.post("operator", "/rows/notes", note).status == 201
    assert Dispatcher(tracker.project.cluster).run(linger=0) == 1
    assert [body["data"]["id"] for body in bodies(receiver)] == ["past"]
    assert [each["status"] for each in deliveries(tracker, webhook)] == ["delivered"]


def test_a_filter_that_cannot_be_decided_fails_its_own_webhook_alone(
    make_tracker: Any, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """An event tells of the row as it was written; a filter speaks of columns as they are."""
    document: dict[str, Any] = {"tables": {"days": {"columns": {"day": {"type": "date"}}}}}
    tracker: Tracker = make_tracker(document)
    hooks = [tracker.post("owner", "/webhooks", {"url": receiver.url(), "events": ["*.insert"]}).json for _ in range(3)]
    assert tracker.post("key", "/rows/days", {"id": "d1", "day": "2026-01-31"}).status == 201
    document["tables"]["days"]["columns"]["day"] = {"type": "timestamp"}
    tracker.apply(document)
    later = {"filter": {"day": {"$gt": "2026-01-01T00:00:00Z"}}}
    assert tracker.patch("owner", f"/webhooks/{hooks[1]['id']}", later).status == 200
    assert Dispatcher(tracker.project.cluster).run(linger=0) == 2
    told = [deliveries(tracker, hook) for hook in hooks]
    assert [[each["status"] for each in found] for found in told] == [["delivered"], ["exhausted"], ["delivered"]]
    assert told[1][0]["outcome"] == "no payload: InvalidValue"
    assert "no payload could be made for an event" in caplog.text


def test_a_failing_receiver_is_tried_again_with_the_same_id_and_body(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    with override_settings(WEBHOOK_RETRY_SCHEDULE=(timedelta(0), timedelta(0), timedelta(0))):
        webhook = subscribe(events=["lists.insert"])
        receiver.behave = answer("500 Broken", b"oops")
        write_list(tracker)
        assert dispatch() == 3
    assert len(set(receiver.requests[0].partition(b"\r\n\r\n")[2] for _ in receiver.requests)) == 1
    assert len({headers(request)["webhook-id"] for request in receiver.requests}) == 1
    (delivery,) = deliveries(tracker, webhook)
    assert (delivery["status"], delivery["outcome"], len(delivery["attempts"])) == ("exhausted", "500", 3)
    assert tracker.get("owner", f"/webhooks/{webhook['id']}").json["success_rate"] == 0.0
    receiver.behave = answer()
    resent = tracker.post("owner", f"/webhooks/{webhook['id']}/deliveries/{delivery['id']}/redeliver", {})
    assert resent.status == 202, resent.json
    assert dispatch() == 1
    assert tracker.get("owner", f"/webhooks/{webhook['id']}").json["success_rate"] == 1.0
    assert headers(receiver.requests[-1])["webhook-id"] == delivery["event_id"]


def test_a_delivery_shows_its_last_attempts_the_latest_last(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    webhook = subscribe(events=["lists.insert"])
    path = f"/webhooks/{webhook['id']}/deliveries"
    write_list(tracker)
    assert dispatch() == 1
    (delivery,) = deliveries(tracker, webhook)
    assert len(delivery["attempts"]) == 1
    Attempt.objects.using(tracker.project.cluster).bulk_create(
        Attempt(delivery_id=delivery["id"], number=number, at=datetime.now(UTC), duration_ms=number)
        for number in range(2, 101)
    )
    (listed,) = deliveries(tracker, webhook)
    assert [each["duration_ms"] for each in listed["attempts"]] == [*range(81, 101)]
    again = tracker.post("owner", f"{path}/{delivery['id']}/redeliver", {}).json
    assert again["attempts"] == listed["attempts"]


def test_the_next_attempt_waits_for_its_time(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    webhook = subscribe(events=["lists.insert"])
    receiver.behave = answer("503 Busy", Retry_After="7")
    write_list(tracker)
    assert dispatch() == 1
    assert dispatch() == 0
    (delivery,) = deliveries(tracker, webhook)
    assert delivery["status"] == "pending"
    due = datetime.fromisoformat(delivery["next_attempt_at"]) - datetime.now(UTC)
    assert timedelta(seconds=4) < due <= timedelta(seconds=7.1)


def test_gone_disables_holds_and_tells(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    webhook = subscribe(events=["lists.insert"])
    with Receiver() as watcher:
        subscribe(url=watcher.url(), events=["webhook.disabled"])
        receiver.behave = answer("410 Gone")
        write_list(tracker)
        dispatch()
        dispatch()
        (told,) = bodies(watcher)
    assert told["data"] == {"webhook_id": webhook["id"], "url": webhook["url"], "reason": "gone"}
    now = tracker.get("owner", f"/webhooks/{webhook['id']}").json
    assert (now["enabled"], now["disabled_reason"]) == (False, "gone")
    assert [each["status"] for each in deliveries(tracker, webhook)] == ["held"]


def chained(tracker: Tracker, depth: int) -> dict[str, str]:
    """The call-depth header of a request caused by so many webhooks and functions in a row."""
    return {call_depth.HEADER: call_depth.sign(depth, tracker.environment_id)}


def test_a_receiver_that_asks_for_a_test_is_the_next_link_of_its_chain(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    webhook = subscribe(events=["lists.insert"])
    path = f"/webhooks/{webhook['id']}/test"
    for depth in (0, 3, call_depth.MAX_DEPTH):
        assert tracker.post("owner", path, {}, headers=chained(tracker, depth)).status == 202
    assert dispatch() == 2
    sent = {headers(request)["x-platform-depth"] for request in receiver.requests}
    assert {call_depth.depth_of({call_depth.META: each}, tracker.environment_id) for each in sent} == {1, 4}
    assert sorted(each["status"] for each in deliveries(tracker, webhook)) == ["delivered", "delivered", "dropped"]


@pytest.mark.exhaustive
def test_redelivery_requested_by_a_receiver_extends_the_chain(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    webhook = subscribe(events=["lists.insert"])
    write_list(tracker)
    assert dispatch() == 1
    (delivery,) = deliveries(tracker, webhook)
    path = f"/webhooks/{webhook['id']}/deliveries/{delivery['id']}/redeliver"
    for depth in (3, 1):
        assert tracker.post("owner", path, {}, headers=chained(tracker, depth)).status == 202
        assert dispatch() == 1
        last = headers(receiver.requests[-1])["x-platform-depth"]
        assert call_depth.depth_of({call_depth.META: last}, tracker.environment_id) == 4, "a chain grows no shorter"
    refused = tracker.post("owner", path, {}, headers=chained(tracker, call_depth.MAX_DEPTH))
    assert (refused.status, refused.error) == (409, "conflict")
    assert dispatch() == 0
    assert [each["status"] for each in deliveries(tracker, webhook)] == ["delivered"]


def test_disabling_caused_by_a_receiver_that_is_gone_extends_the_chain(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    """A function on `webhook.disabled` that makes another webhook and asks for a test of it, whose receiver is an
    inbound endpoint that answers 410."""
    with Receiver() as watcher:
        subscribe(url=watcher.url(), events=["webhook.disabled"])
        receiver.behave = answer("410 Gone")
        for depth in (3, call_depth.MAX_DEPTH - 1):
            path = f"/webhooks/{subscribe(events=['lists.insert'])['id']}/test"
            assert tracker.post("owner", path, {}, headers=chained(tracker, depth)).status == 202
            dispatch()
            dispatch()
        (told,) = watcher.requests
    assert call_depth.depth_of({call_depth.META: headers(told)["x-platform-depth"]}, tracker.environment_id) == 5
    disabled = OutboxEvent.objects.using(tracker.project.cluster).filter(type="webhook.disabled").order_by("sequence")
    assert [event.depth for event in disabled] == [4, call_depth.MAX_DEPTH]


def test_receiver_failing_for_days_is_disabled_unless_it_succeeds_once(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    webhook = subscribe(events=["lists.insert"])
    stored = Webhook.objects.using(tracker.project.cluster).filter(pk=webhook["id"])

    def write_and_look(answered: str, failing_for: timedelta | None = None) -> tuple[bool, str | None, bool]:
        if failing_for is not None:
            stored.update(failing_since=timezone.now() - failing_for)
        receiver.behave = answer(answered)
        write_list(tracker)
        dispatch()
        now = tracker.get("owner", f"/webhooks/{webhook['id']}").json
        return now["enabled"], now["disabled_reason"], now["failing_since"] is not None

    assert write_and_look("200 OK") == (True, None, False)
    assert write_and_look("503 Busy") == (True, None, True)
    began = stored.get().failing_since
    assert write_and_look("503 Busy") == (True, None, True)
    assert stored.get().failing_since == began
    assert write_and_look("200 OK", timedelta(days=6)) == (True, None, False)
    assert write_and_look("503 Busy", timedelta(days=5) - timedelta(minutes=1)) == (True, None, True)
    with Receiver() as watcher:
        subscribe(url=watcher.url(), events=["webhook.disabled"])
        assert write_and_look("503 Busy", timedelta(days=5) + timedelta(minutes=1)) == (False, "failing", True)
        dispatch()
        (told,) = bodies(watcher)
    assert told["data"] == {"webhook_id": webhook["id"], "url": webhook["url"], "reason": "failing"}
    assert reconcile(tracker.project.cluster) == 4
    # What is not over is held, and enabling the webhook makes it due.
    assert {each["status"] for each in deliveries(tracker, webhook)} == {"delivered", "held"}
    assert tracker.patch("owner", f"/webhooks/{webhook['id']}", {"enabled": True}).json["failing_since"] is None


def test_outcomes_are_saved_without_control_database_and_audited_later(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    webhook = subscribe(events=["lists.insert"])
    receiver.behave = answer("410 Gone")
    write_list(tracker)
    control = connections["default"].settings_dict["NAME"]
    entries = AuditEntry.objects.filter(action="webhook.disabled", target_id=webhook["id"])
    waiting = AuditOutboxEntry.objects.using(tracker.project.cluster)
    with (
        embedded_postgres.connect(Layout(Path(os.environ["DATA_DIR"]))) as superuser,
        database_unavailable(superuser, control),
    ):
        assert dispatch() == 1
        rows_tasks.flush_remaining_audit_outbox()
        noted = waiting.get()
    connections["default"].close()
    (delivery,) = deliveries(tracker, webhook)
    assert [each["response_status"] for each in delivery["attempts"]] == [410]
    assert tracker.get("owner", f"/webhooks/{webhook['id']}").json["disabled_reason"] == "gone"
    assert not entries.exists()
    rows_tasks.flush_remaining_audit_outbox()
    assert not waiting.exists()
    waiting.bulk_create([noted])  # as if the process had died before it deleted it
    rows_tasks.flush_audit_outbox(tracker.project.cluster)
    assert not waiting.exists()
    entry = entries.get()
    assert (entry.pk, entry.at, entry.actor_kind, entry.actor_id) == (noted.pk, noted.at, "system", None)
    assert (entry.environment_id, entry.detail) == (tracker.environment_id, {"reason": "gone"})


def test_who_empties_the_queue_does_not_wait_for_the_trail(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    webhook = subscribe(events=["lists.insert"])
    receiver.behave = answer("410 Gone")
    write_list(tracker)
    control = connections["default"].settings_dict["NAME"]
    with embedded_postgres.connect(Layout(Path(os.environ["DATA_DIR"])), control) as busy, busy.transaction():
        busy.execute("LOCK TABLE accounts_auditentry")
        assert dispatch() == 1
        stored = Webhook.objects.using(tracker.project.cluster).get(pk=webhook["id"])
        assert (stored.enabled, stored.disabled_reason) == (False, "gone")


@pytest.mark.parametrize(("held", "fate"), [("release", "delivered"), ("drop", "dropped")])
def test_held_events_are_released_or_dropped_never_silently(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch, held: str, fate: str
) -> None:
    webhook = subscribe(events=["lists.insert"], enabled=False)
    write_list(tracker)
    assert dispatch() == 0
    assert [each["status"] for each in deliveries(tracker, webhook)] == ["held"]
    changed = tracker.patch("owner", f"/webhooks/{webhook['id']}", {"enabled": True, "held": held})
    assert changed.status == 200, changed.json
    dispatch()
    assert [each["status"] for each in deliveries(tracker, webhook)] == [fate]
    assert len(receiver.requests) == (1 if held == "release" else 0)


def test_after_its_deletion_no_attempt_starts(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    webhook = subscribe(events=["lists.insert"])
    write_list(tracker)
    assert tracker.delete("owner", f"/webhooks/{webhook['id']}").status == 204
    assert tracker.delete("owner", f"/webhooks/{webhook['id']}").status == 404
    assert tracker.get("owner", "/webhooks").json == {"data": []}
    assert dispatch() == 0
    assert receiver.requests == []


def test_deletion_survives_region_loss_and_waits_for_claimed_deliveries(tracker: Tracker, subscribe: Post) -> None:
    webhook = subscribe(events=["lists.insert"])
    environment, region = environment_ref(tracker.environment_id), connections[tracker.project.cluster]
    started = time.monotonic()
    with transaction.atomic(using=region.alias):
        transaction.on_commit(
            lambda: terminate_connection(region), using=region.alias
        )  # before what else follows the commit
        webhook_service.delete_webhook(environment, webhook["id"], actor=SYSTEM)
    assert time.monotonic() - started >= 1, "there is no sign that nothing is in progress"
    assert tracker.get("owner", "/webhooks").json == {"data": []}


def test_each_rotated_secret_signs_until_its_own_overlap_ends(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second rotation keeps the secret that receivers still use."""
    webhook = subscribe(events=["lists.insert"])
    path = f"/webhooks/{webhook['id']}/rotate-secret"
    secrets = [webhook["secret"]]
    monkeypatch.setattr(webhook_service, "SECRET_OVERLAP", timedelta(seconds=1.5))
    secrets.append(tracker.post("owner", path, {}).json["secret"])
    first_ends = time.monotonic() + 1.5
    monkeypatch.setattr(webhook_service, "SECRET_OVERLAP", timedelta(hours=24))
    secrets += [tracker.post("owner", path, {}).json["secret"] for _ in range(2)]

    def signers() -> list[int]:
        write_list(tracker)
        dispatch()
        body, sent = receiver.requests[-1].partition(b"\r\n\r\n")[2], headers(receiver.requests[-1])
        found = []
        for number, secret in enumerate(secrets):
            with contextlib.suppress(WebhookVerificationError):
                Verifier(secret).verify(body, sent)
                found.append(number)
        return found

    if time.monotonic() < first_ends - 0.5:
        assert signers() == [0, 1, 2, 3]
    time.sleep(max(0.0, first_ends - time.monotonic()) + 0.1)
    assert signers() == [1, 2, 3]
    secrets += [tracker.post("owner", path, {}).json["secret"] for _ in range(2)]
    assert signers() == [1, 2, 3, 4, 5]
    refused = tracker.post("owner", path, {})
    assert (refused.status, refused.error) == (409, "conflict")
    assert (
        "4 previous secrets of this webhook are still valid. Rotate it again after " in refused.json["error"]["message"]
    )
    assert signers() == [1, 2, 3, 4, 5], "nothing changed"


def test_three_redeliveries_at_once_arrive_once_for_each_2xx(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    webhook = subscribe(events=["lists.insert"])
    write_list(tracker)
    assert dispatch() == 1
    (delivery,) = deliveries(tracker, webhook)
    path = f"/webhooks/{webhook['id']}/deliveries/{delivery['id']}/redeliver"

    other = subscribe(events=["lists.update"])
    assert tracker.post("owner", path.replace(webhook["id"], other["id"]), {}).status == 404

    def redeliver(_: int) -> Answer:
        try:
            return tracker.post("owner", path, {})
        finally:
            connections.close_all()

    with ThreadPoolExecutor(3) as threads:
        answers = list(threads.map(redeliver, range(3)))
    assert sorted(each.status for each in answers) == [202, 409, 409]
    refused = next(each for each in answers if each.status == 409)
    assert refused.error == "conflict"
    assert "already in progress" in refused.json["error"]["message"]
    assert dispatch() == 1
    assert len(receiver.requests) == 2
    assert tracker.post("owner", path, {}).status == 202, "one after another, each arrives"
    assert dispatch() == 1
    assert len(receiver.requests) == 3


def test_while_a_secret_rotates_old_and_new_verify(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    webhook = subscribe(events=["lists.insert"])
    rotated = tracker.post("owner", f"/webhooks/{webhook['id']}/rotate-secret", {})
    assert rotated.status == 200, rotated.json
    write_list(tracker)
    dispatch()
    body, sent = receiver.requests[0].partition(b"\r\n\r\n")[2], headers(receiver.requests[0])
    for secret in (webhook["secret"], rotated.json["secret"]):
        Verifier(secret).verify(body, sent)
    # The old secret cannot sign anything after the overlap.
    Webhook.objects.using(tracker.project.cluster).update(previous_secret_until=timezone.now())
    write_list(tracker)
    dispatch()
    body, sent = receiver.requests[1].partition(b"\r\n\r\n")[2], headers(receiver.requests[1])
    Verifier(rotated.json["secret"]).verify(body, sent)
    with pytest.raises(WebhookVerificationError):
        Verifier(webhook["secret"]).verify(body, sent)


def test_a_test_event_goes_to_its_webhook_alone(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    webhook = subscribe(events=["lists.insert"])
    with Receiver() as other:
        subscribe(url=other.url(), events=["*", "webhook.test"])
        sent = tracker.post("owner", f"/webhooks/{webhook['id']}/test", {})
        assert sent.status == 202
        dispatch()
        assert other.requests == []
    (body,) = bodies(receiver)
    assert (body["type"], body["id"]) == ("webhook.test", sent.json["event_id"])


def test_what_did_not_arrive_is_recovered(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    with override_settings(WEBHOOK_RETRY_SCHEDULE=(timedelta(0),)):
        webhook = subscribe(events=["lists.insert"])
        receiver.behave = answer("500 Broken")
        for number in range(3):
            write_list(tracker, f"list {number}")
        dispatch()
        receiver.behave = answer()
        since = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
        got = tracker.post("owner", f"/webhooks/{webhook['id']}/recover", {"since": since})
        assert (got.status, got.json) == (202, {"deliveries": 3, "more": False})
        dispatch()
    assert {each["status"] for each in deliveries(tracker, webhook)} == {"delivered"}


def test_what_is_sent_again_has_all_its_attempts_anew(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    receiver.behave = answer("500 Broken")
    with override_settings(WEBHOOK_RETRY_SCHEDULE=(timedelta(0), timedelta(0))):
        webhook = subscribe(events=["lists.insert"])
        write_list(tracker)
        dispatch()
        assert len(receiver.requests) == 2
        (delivery,) = deliveries(tracker, webhook)
        again = tracker.post("owner", f"/webhooks/{webhook['id']}/deliveries/{delivery['id']}/redeliver", {})
        assert again.status == 202, again.json
        dispatch()
    assert len(receiver.requests) == 4
    (delivery,) = deliveries(tracker, webhook)
    assert delivery["status"] == "exhausted"


def test_the_events_of_one_row_arrive_in_order_if_asked(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    subscribe(events=["lists.*"], ordering="row")
    rows = [write_list(tracker, f"list {number}") for number in range(3)]
    for change in range(5):
        for row in rows:
            assert tracker.patch("key", f"/rows/lists/{row}", {"name": f"{row} {change}"}).status == 200
    dispatch()
    assert len(receiver.requests) == 18
    for row in rows:
        names = [body["data"]["record"]["name"] for body in bodies(receiver) if body["data"]["id"] == row]
        assert names[1:] == [f"{row} {change}" for change in range(5)]


def test_a_schema_change_is_told_to_those_who_want_it(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    tracker.apply({"tables": {**DOCUMENT["tables"], "notes": {"columns": {"text": {"type": "text"}}}}})
    assert not OutboxEvent.objects.using(tracker.project.cluster).exists()
    subscribe(events=["schema.migrated"])
    version = tracker.apply(DOCUMENT).json["version"]
    assert dispatch() == 1
    (body,) = bodies(receiver)
    assert (body["type"], body["schema_version"]) == ("schema.migrated", version)
    assert body["data"] == {"version": version}, "names of tables and columns are for callers that may read the schema"
    changed = tracker.get("owner", f"/schema/versions/{version}").json
    assert changed["operations"] == ["drop table notes"]


def test_two_webhooks_each_get_the_event_once(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    first, second = subscribe(), subscribe()
    write_list(tracker)
    dispatch()
    ids = {headers(request)["webhook-id"] for request in receiver.requests}
    assert (len(receiver.requests), len(ids)) == (2, 1)
    assert {d.webhook_id for d in Delivery.objects.using(tracker.project.cluster).all()} == {first["id"], second["id"]}
