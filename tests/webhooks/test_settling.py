"""Deliveries that a race with switching their webhook left behind, and events that no payload can be made of."""

from collections.abc import Callable

import pytest

from rows.outbox import OutboxEvent
from tests.api.receiver import Receiver
from tests.rows.conftest import Tracker
from tests.webhooks.conftest import Post
from tests.webhooks.test_deliveries import deliveries, write_list
from webhooks.models import Delivery, Webhook
from webhooks.queue import longest_wait, settle
from webhooks.relay import relay_batch

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

Dispatch = Callable[[], int]


def test_what_contradicts_its_webhook_is_mended(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    using = tracker.project.cluster
    webhook = subscribe(events=["lists.insert"])
    webhooks = Webhook.objects.using(using).filter(pk=webhook["id"])
    write_list(tracker)
    relay_batch(using)
    webhooks.update(enabled=False)  # as if the relay had read the webhook a moment before it was disabled
    assert dispatch() == 0
    assert longest_wait(using) is None  # the sweep does not wake workers for it for ever
    assert settle(using) == 1
    assert [each["status"] for each in deliveries(tracker, webhook)] == ["held"]
    webhooks.update(enabled=True)  # as if the relay had read it a moment before it was enabled
    assert dispatch() == 0
    assert settle(using) == 1
    assert settle(using) == 0
    assert dispatch() == 1
    assert [each["status"] for each in deliveries(tracker, webhook)] == ["delivered"]


def test_an_event_without_a_payload_has_a_fate_and_holds_up_nobody(
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
