"""The console's pages of webhooks and deliveries, through Django's own test client, with real deliveries."""

import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections
from django.test import Client
from django.test.utils import CaptureQueriesContext

from accounts.models import AuditEntry
from tests.projects.conftest import make_project
from tests.rows.conftest import Tracker
from tests.support.console import (
    DELIVERIES,
    WEBHOOKS,
    of,
    page,
)
from tests.support.console import console as console
from tests.support.receiver import Receiver, answer
from tests.webhooks.conftest import Post
from webhooks.models import Delivery, Webhook
from webhooks.subscriptions import health

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)


def press(console: Client, path: str, verb: str, **more: str) -> str:
    return html.unescape(console.post(path, {"verb": verb, **more}, follow=True).content.decode())


def write(tracker: Tracker, name: str = "Home") -> None:
    made = tracker.post("key", "/rows/lists", {"name": name, "owner_id": tracker.users["alice"]})
    assert made.status == 201, made.json


def test_only_staff_see_these_pages(tracker: Tracker, subscribe: Post) -> None:
    webhook = subscribe()
    outsider = Client()
    owner = Client()
    owner.force_login(tracker.project.memberships.get(role="owner").user)
    for client in (outsider, owner):
        for path in (f"{WEBHOOKS}?environment={tracker.environment_id}", of(webhook["id"]), DELIVERIES):
            assert client.get(path).status_code == 302
            assert client.post(path, {"verb": "disable", "confirmed": "1"}).status_code == 302
    assert Webhook.objects.using(tracker.project.cluster).get().enabled


def test_a_list_begins_with_the_choice_of_an_environment(console: Client, tracker: Tracker, subscribe: Post) -> None:
    webhook = subscribe()
    choice = page(console, WEBHOOKS)
    assert "Choose an environment" in choice
    assert f"?environment={tracker.environment_id}" in choice
    assert f"?environment={tracker.environment_id}" in page(console, f"{WEBHOOKS}?q={tracker.project.pk}")
    assert "None found" in page(console, f"{WEBHOOKS}?q=nowhere")
    assert webhook["url"] in page(console, f"{WEBHOOKS}?environment={tracker.environment_id}")
    assert "Opened lately" in page(console, WEBHOOKS)
    page(console, f"{WEBHOOKS}?environment=env_x", 404)
    found = console.get(f"{WEBHOOKS}?q={webhook['id']}")
    assert found.headers["Location"] == of(webhook["id"])
    page(console, of("wh_01h455vb4pex5vsknk084sn02q"), 404)
    page(console, of("wh_'; DROP TABLE x"), 404)


def test_a_webhooks_page_shows_its_health_and_never_its_secret(
    console: Client, tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Callable[[], int]
) -> None:
    webhook = subscribe(events=["lists.insert"], description="<script>alert(1)</script>")
    receiver.behave = answer("500 Internal Server Error", b"<b>broken</b>")
    write(tracker)
    dispatch()
    raw = console.get(of(webhook["id"])).content.decode()
    assert "<script>alert(1)" not in raw
    assert webhook["secret"] not in raw
    assert webhook["secret"].removeprefix("whsec_") not in raw
    assert raw.count("<rect") == 1
    assert 'class="bad"' in raw
    shown = page(console, of(webhook["id"]))
    assert "0 %" in shown
    assert '<span class="rate bad"><b>0 %</b> failing</span>' in shown
    assert "1</b> pending" in shown
    # Every number leads to the list behind it.
    listed = page(console, f"{DELIVERIES}?environment={tracker.environment_id}&webhook={webhook['id']}&status=pending")
    delivery = Delivery.objects.using(tracker.project.cluster).get()
    assert of(delivery.pk, DELIVERIES) in listed
    nothing = page(console, f"{DELIVERIES}?environment={tracker.environment_id}&status=exhausted")
    assert of(delivery.pk, DELIVERIES) not in nothing


def test_a_webhook_that_nothing_was_sent_to_does_not_look_healthy(
    console: Client, tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Callable[[], int]
) -> None:
    unmatched = subscribe(events=["tasks.delete"])
    refusing = subscribe(events=["lists.insert"], filter={"name": "Never"})
    for webhook in (unmatched, refusing):
        shown = page(console, of(webhook["id"]))
        assert "none</b> tried" in shown
        assert "100 %" not in shown
        assert "no event was one of" in shown
    write(tracker)
    dispatch()
    shown = page(console, of(refusing["id"]))
    assert "1</b> filtered" in shown
    filtered = Delivery.objects.using(tracker.project.cluster).get(status="filtered")
    of_delivery = page(console, of(filtered.pk, DELIVERIES))
    assert "filter excluded this event" in of_delivery
    assert "Never" in of_delivery.partition("Filter of the webhook now")[2]
    assert "<h2>Request</h2>" not in of_delivery
    assert "no event was one of" not in shown
    listed = page(console, f"{WEBHOOKS}?environment={tracker.environment_id}")
    assert (listed.count("none tried"), listed.count("100 %")) == (2, 0)
    arriving = subscribe(events=["lists.insert"])
    write(tracker)
    dispatch()
    assert '<span class="rate good"><b>100 %</b></span> of the last 1 delivered' in page(console, of(arriving["id"]))
    listed = page(console, f"{WEBHOOKS}?environment={tracker.environment_id}")
    assert (listed.count("none tried"), listed.count("100 %")) == (2, 1)


def test_a_delivery_shows_payload_and_answer_and_is_sent_again(
    console: Client, tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Callable[[], int]
) -> None:
    subscribe(events=["lists.insert"])
    receiver.behave = answer("503 Service Unavailable", b"<script>come back later</script>")
    write(tracker, "Groceries")
    dispatch()
    delivery = Delivery.objects.using(tracker.project.cluster).get()
    path = of(delivery.pk, DELIVERIES)
    raw = console.get(path).content.decode()
    assert "<script>come" not in raw
    shown = html.unescape(raw)
    assert '"name": "Groceries"' in shown
    assert "<script>come back later</script>" in shown
    assert "answered 503" in shown
    assert delivery.event_id in shown
    assert "Nothing but failures at this webhook since" in shown
    viewed = AuditEntry.objects.filter(action="delivery.viewed", target_id=delivery.pk)
    assert viewed.count() == 1
    assert (viewed[0].actor_kind, viewed[0].environment_id) == ("staff", tracker.environment_id)
    assert "Groceries" not in str(viewed[0].detail)

    receiver.behave = answer()
    assert "sent again" in press(console, path, "redeliver")
    dispatch()
    assert len(receiver.requests) == 2
    assert AuditEntry.objects.get(action="delivery.resent").actor_kind == "staff"
    shown = page(console, path)
    assert "answered 200" in shown
    assert "No. 2" in shown
    assert "Nothing but failures" not in shown
    # What it was all about is found by the event alone.
    found = console.get(f"{DELIVERIES}?q={delivery.event_id}")
    fate = page(console, found.headers["Location"])
    assert "What became of an event" in fate
    assert path in fate
    assert console.get(f"{DELIVERIES}?q=evt_01h455vb4pex5vsknk084sn02q").status_code == 302


def test_disabling_asks_first_then_holds_and_enabling_sends_or_drops(
    console: Client, tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Callable[[], int]
) -> None:
    webhook = subscribe(events=["lists.insert"])
    path = of(webhook["id"])
    stored = Webhook.objects.using(tracker.project.cluster)
    assert "Events are held" in press(console, path, "disable")
    assert stored.get().enabled  # asked, not done
    assert "is disabled" in press(console, path, "disable", confirmed="1")
    assert (stored.get().enabled, stored.get().disabled_reason) == (False, "by_request")
    write(tracker)
    dispatch()
    assert receiver.requests == []
    assert "1</b> held" in page(console, path)
    held = Delivery.objects.using(tracker.project.cluster).get()
    assert "redeliver" not in page(console, of(held.pk, DELIVERIES))
    assert "no longer possible" in press(console, of(held.pk, DELIVERIES), "redeliver")
    press(console, path, "enable_dropping", confirmed="1")
    held.refresh_from_db()
    assert (stored.get().enabled, held.status) == (True, "dropped")
    assert "1 deliveries" in press(console, path, "recover", since="2020-01-01T00:00", confirmed="1")
    assert "Say since when" in press(console, path, "recover", since="soon", confirmed="1")
    dispatch()
    assert len(receiver.requests) == 1
    trail = AuditEntry.objects.filter(target_id=webhook["id"], actor_kind="staff").values_list("action", flat=True)
    assert set(trail) == {"webhook.changed", "webhook.recovered"}


def test_a_rotated_secret_is_shown_once_and_never_stored_by_the_browser(
    console: Client, tracker: Tracker, subscribe: Post
) -> None:
    webhook = subscribe()
    path = of(webhook["id"])
    assert "whsec_" not in press(console, path, "rotate")
    answered = console.post(path, {"verb": "rotate", "confirmed": "1"})
    assert "no-store" in answered.headers["Cache-Control"]
    [secret] = set(re.findall(r"whsec_[A-Za-z0-9+/=]{20,}", answered.content.decode()))
    assert secret != webhook["secret"]
    assert "whsec_" not in page(console, path)
    entry = AuditEntry.objects.get(action="webhook.secret_rotated")
    assert secret not in str(entry.detail)


def test_deleting_wants_the_id_typed(console: Client, tracker: Tracker, subscribe: Post) -> None:
    webhook = subscribe()
    path = of(webhook["id"])
    live = Webhook.objects.using(tracker.project.cluster).live(tracker.environment_id)
    assert f"Type {webhook['id']}" in re.sub(r"<[^>]+>", "", press(console, path, "delete"))
    assert "Nothing was changed" in press(console, path, "delete", confirmed="1", typed="wh_other")
    assert live.exists()
    assert "is deleted" in press(console, path, "delete", confirmed="1", typed=webhook["id"])
    assert not live.exists()
    page(console, path, 404)


def test_a_test_event_is_sent_and_followed(
    console: Client, tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Callable[[], int]
) -> None:
    webhook = subscribe(events=["lists.insert"])
    assert "waits in the outbox" in press(console, of(webhook["id"]), "test")
    dispatch()
    assert len(receiver.requests) == 1
    assert AuditEntry.objects.filter(action="webhook.tested", actor_kind="staff").count() == 1


def test_pages_cost_the_same_however_much_there_is(
    console: Client, tracker: Tracker, subscribe: Post, dispatch: Callable[[], int]
) -> None:
    webhook = subscribe(events=["lists.insert"])
    for number in range(3):
        write(tracker, f"list {number}")
    dispatch()

    def queries(path: str) -> int:
        page(console, path)  # what is remembered of the environment and the session is, by now
        with CaptureQueriesContext(connections[tracker.project.cluster]) as captured:
            page(console, path)
        return len(captured)

    paths = (f"{DELIVERIES}?environment={tracker.environment_id}", of(webhook["id"]))
    before = [queries(path) for path in paths]
    delivered = Delivery.objects.using(tracker.project.cluster).first()
    assert delivered is not None
    copies: list[Any] = []
    for number in range(120):
        copies.append(
            Delivery(
                environment_id=tracker.environment_id, webhook_id=webhook["id"], event_id=f"evt_{number:026}",
                event_type="lists.insert", sequence=number, body="{}", status="delivered", outcome="200",
            )
        )  # fmt: skip
    Delivery.objects.using(tracker.project.cluster).bulk_create(copies)
    assert [queries(path) for path in paths] == before
    assert before[0] <= 4
    first = console.get(paths[0]).content.decode()
    assert first.count("<tr>") == 51
    following = re.search(r'rel="next" href="\?([^"]+)"', first)
    assert following is not None
    second = page(console, f"{DELIVERIES}?{html.unescape(following[1])}")
    assert second.count("<tr>") == 51
    # The cursor of one list opens no other.
    assert "belongs to another list" in page(
        console, f"{DELIVERIES}?{html.unescape(following[1])}&webhook={webhook['id']}"
    )


def test_another_environments_webhooks_stay_out_of_the_list(console: Client, tracker: Tracker, subscribe: Post) -> None:
    webhook = subscribe()
    other = make_project(tracker.project.memberships.get(role="owner").user, "Other")
    assert webhook["id"] not in page(console, f"{WEBHOOKS}?environment={other.environments.first().pk}")


def test_a_bar_is_higher_the_longer_it_took_and_fits_the_picture() -> None:
    heights = [health.height_of(ms) for ms in (0, 1, 10, 100, 1_000, 15_000, 10**9, -5)]
    assert heights[:6] == sorted(heights[:6])
    assert heights[5] == heights[6] == health.HEIGHT
    assert heights[0] == heights[7] > 0
