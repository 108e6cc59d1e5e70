"""Pages of deliveries that a tenant made large, and what the console says while a region does not answer."""

from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client

from rows.outbox.models import OutboxEvent
from tests.rows.conftest import Tracker
from tests.support.console import DELIVERIES, of, page
from tests.support.console import console as console
from tests.webhooks.conftest import Post
from webhooks.models import Delivery

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

EVENT = "evt_01h455vb4pex5vsknk084sn02q"


def test_event_lookup_while_its_region_is_unavailable(
    console: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def away(*_: Any) -> Any:
        raise OperationalError("the server closed the connection")

    monkeypatch.setattr(type(OutboxEvent._default_manager), "using", away)
    assert "Not found in the available regions; unavailable: us-east-1" in page(console, f"{DELIVERIES}?q={EVENT}", 503)


def test_a_payload_is_shown_as_far_as_there_is_room(
    console: Client,
    tracker: Tracker,
    subscribe: Post,
) -> None:
    delivery = Delivery.objects.using(tracker.project.cluster).create(
        environment_id=tracker.environment_id,
        webhook_id=subscribe(events=["lists.insert"])["id"],
        event_id=EVENT,
        event_type="lists.insert",
        sequence=1,
        body="[" * 60 + ",".join(["1"] * 100_000) + "]" * 60,
    )
    shown = page(console, of(delivery.pk, DELIVERIES))
    assert "Cut here; what is sent is longer" in shown
    assert len(shown) < 150_000


def test_nul_is_not_an_unavailable_region(console: Client, tracker: Tracker) -> None:
    where = f"environment={tracker.environment_id}"
    for path in (
        "/admin/webhooks/webhook/?q=%00",
        f"/admin/webhooks/delivery/?{where}&webhook=%00",
        f"/admin/functions/run/?{where}&function=a%00",
    ):
        page(console, path, 400)
