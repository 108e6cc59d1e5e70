"""Names of webhooks: unique among the live ones of an environment, and what configurations call them."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections

from tests.rows.conftest import Tracker
from webhooks.models import Webhook

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


def test_a_name_is_shown_changed_and_removed(tracker: Tracker, subscribe: Any) -> None:
    made = subscribe(name="crm")
    assert made["name"] == "crm"
    path = f"/webhooks/{made['id']}"
    assert tracker.patch("owner", path, {"description": "Ours"}).json["name"] == "crm"
    assert tracker.patch("owner", path, {"name": "crm"}).status == 200
    assert tracker.patch("owner", path, {"name": None}).json["name"] is None
    assert tracker.get("owner", path).json["name"] is None
    assert subscribe()["name"] is None


def test_two_webhooks_have_no_name_in_common(tracker: Tracker, subscribe: Any) -> None:
    first, other = subscribe(name="crm"), subscribe(name="mail")
    body = {"url": first["url"], "events": ["*"], "name": "crm"}
    taken = tracker.post("owner", "/webhooks", body)
    assert (taken.status, taken.fields) == (422, {"name": "taken"})
    assert tracker.patch("owner", f"/webhooks/{other['id']}", {"name": "crm"}).fields == {"name": "taken"}
    assert tracker.delete("owner", f"/webhooks/{first['id']}").status == 204
    assert tracker.post("owner", "/webhooks", body).status == 201


def test_of_two_at_once_one_gets_the_name(tracker: Tracker, receiver: Any) -> None:
    def make(_: int) -> int:
        try:
            body = {"url": receiver.url(), "events": ["*"], "name": "crm"}
            return int(tracker.post("owner", "/webhooks", body).status)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(make, range(4))) == [201, 422, 422, 422]
    assert Webhook.objects.using(tracker.project.cluster).filter(name="crm").count() == 1


@pytest.mark.parametrize("name", ["", "CRM", "-a", "a.b", "a" * 49, "wh_01k2m4c8e0f1a9b7r5t3v6w8x2", 5])
def test_what_is_no_name(tracker: Tracker, receiver: Any, name: Any) -> None:
    answer = tracker.post("owner", "/webhooks", {"url": receiver.url(), "events": ["*"], "name": name})
    assert answer.status == 422
    assert list(answer.fields) == ["name"]
