"""`manage.py webhooks listen`: events on a developer's machine, for as long as the terminal lives."""

import json
import os
import signal
import subprocess
import sys
from datetime import timedelta

import httpx
import pytest
from django.core.management import CommandError, call_command
from django.db.models.functions import Now
from django.test import override_settings
from standardwebhooks import Webhook as Verifier

from accounts.models import AuditEntry
from rows.outbox.models import EventInterest
from rows.tasks import flush_audit_outbox
from tests.rows.conftest import Tracker
from tests.support.deliveries import Dispatch, deliveries, write_list
from tests.support.listener import listening
from tests.support.receiver import Receiver, answer, headers
from tests.support.service import ROOT, Up, wait_for
from tests.webhooks.conftest import Post
from webhooks.cli_listener import ListenerEnded, end_listeners
from webhooks.models import Webhook

in_process = pytest.mark.django_db(databases="__all__", transaction=True)


@pytest.mark.exhaustive
@in_process
def test_only_the_listener_makes_attempts_with_the_usual_signature(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    with Receiver() as other, listening(tracker, receiver) as listener:
        standing = subscribe(events=["lists.insert"], url=other.url())
        write_list(tracker)
        assert dispatch() == 1
        assert (len(other.requests), len(receiver.requests)) == (1, 0)
        with override_settings(OUTBOUND_ALLOWED_NETWORKS=[]):  # what the platform may call is not asked
            [(claimed, result)] = listener.deliver()
        assert (claimed.event_type, result.response_status) == ("lists.insert", 200)
        sent = receiver.requests[0]
        Verifier(listener.secret).verify(sent.partition(b"\r\n\r\n")[2], headers(sent))
        [delivery] = deliveries(tracker, {"id": listener.webhook_id})
        assert (delivery["status"], len(delivery["attempts"])) == ("delivered", 1)
        assert list(listener.deliver()) == []
    assert [webhook["id"] for webhook in tracker.get("owner", "/webhooks").json["data"]] == [standing["id"]]


@in_process
def test_a_terminal_that_was_killed_leaves_nothing_once_its_time_is_over(tracker: Tracker, receiver: Receiver) -> None:
    using = tracker.project.cluster
    with listening(tracker, receiver) as listener:
        assert end_listeners(using) == 0
        Webhook.objects.using(using).update(listens_until=Now() - timedelta(seconds=1))
        assert end_listeners(using) == 1
        assert tracker.get("owner", "/webhooks").json["data"] == []
        assert not EventInterest.objects.using(using).exists()
        assert end_listeners(using) == 0
        flush_audit_outbox(using)
        entry = AuditEntry.objects.get(action="webhook.deleted")
        assert (entry.target_id, entry.environment_id) == (listener.webhook_id, tracker.environment_id)
        assert (entry.actor_kind, entry.detail) == ("system", {"url": receiver.url("")})
        with pytest.raises(ListenerEnded):
            next(listener.deliver())


@in_process
def test_a_receiver_that_answers_gone_ends_it(tracker: Tracker, receiver: Receiver) -> None:
    receiver.behave = answer("410 Gone")
    with listening(tracker, receiver) as listener:
        write_list(tracker)
        assert [result.response_status for _, result in listener.deliver()] == [410]
        with pytest.raises(ListenerEnded):
            next(listener.deliver())
    assert tracker.get("owner", "/webhooks").json["data"] == []


@in_process
def test_members_cannot_make_it_call_another_host(tracker: Tracker, receiver: Receiver) -> None:
    """Its client may call every host that the operator's machine can reach."""
    with Receiver() as inner, listening(tracker, receiver) as listener:
        path = f"/webhooks/{listener.webhook_id}"
        # Resolved when it is stored, and to another IP when it is called.
        assert tracker.patch("owner", path, {"url": "https://rebinds.invalid/"}).status == 200
        Webhook.objects.using(tracker.project.cluster).filter(pk=listener.webhook_id).update(url=inner.url())
        write_list(tracker)
        assert [result.response_status for _, result in listener.deliver()] == [200]
        assert (len(receiver.requests), len(inner.requests)) == (1, 0)


@in_process
@pytest.mark.parametrize(
    "wrong",
    [
        ["--forward", "ftp://127.0.0.1/"],
        ["--forward", "127.0.0.1:3000"],
        ["--forward", "http://user:secret@127.0.0.1/"],
        ["--forward", "http://127.0.0.1:3000/", "--events", "tasks"],
        [],
    ],
)
def test_what_cannot_be_listened_to_is_a_sentence_and_leaves_nothing(tracker: Tracker, wrong: list[str]) -> None:
    with pytest.raises(CommandError):
        call_command("webhooks", "listen", tracker.environment_id, *wrong)
    assert tracker.get("owner", "/webhooks").json["data"] == []


@pytest.mark.served
def test_ctrl_c_ends_it_and_its_subscription(served: Up) -> None:
    environment = served.facts["environments"]["production"]
    with Receiver() as receiver, httpx.Client(
        base_url=f"{served.base_url}/v1", headers={"Authorization": f"Bearer {served.facts['server_key']}"}, timeout=30
    ) as client:  # fmt: skip
        before = client.get("/webhooks").json()["data"]
        command = [sys.executable, str(ROOT / "manage.py"), "webhooks", "listen", environment, "--body"]
        process = subprocess.Popen(
            [*command, "--forward", receiver.url(), "--events", "comments.insert, lists.insert"],
            env={**os.environ, "DATA_DIR": str(served.data_dir), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            assert "Forwarding comments.insert, lists.insert" in process.stdout.readline()
            secret = process.stdout.readline().removeprefix("Signing secret: ").strip()
            row = {"name": "Heard in a terminal", "owner_id": served.facts["app_users"][0]["id"]}
            made = client.post("/rows/lists", json=row).json()
            wait_for("it arrives", lambda: receiver.requests, 30)
            told, body = process.stdout.readline(), json.loads(process.stdout.readline())
            assert " lists.insert  evt_" in told
            assert " 200 after " in told
            assert body["data"]["id"] == made["id"]
            sent = receiver.requests[0]
            Verifier(secret).verify(sent.partition(b"\r\n\r\n")[2], headers(sent))
            assert len(client.get("/webhooks").json()["data"]) == len(before) + 1
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
            assert "the subscription is gone" in process.stdout.read()
            left = [webhook["id"] for webhook in client.get("/webhooks").json()["data"]]
            assert left == [webhook["id"] for webhook in before]
            client.delete(f"/rows/lists/{made['id']}")
        finally:
            process.kill()
