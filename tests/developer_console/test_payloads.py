"""The payload of a delivery: all of it for those who may read the rows, and no cell that a member's role may not."""

import json
import re
from collections.abc import Callable
from copy import deepcopy
from html import unescape
from typing import Any

import pytest

from platform_site.developer_console.frame import Console
from tests.developer_console.conftest import DOCUMENT, Desk, desk_at
from tests.rows.conftest import Tracker
from tests.support.function_events import relay
from webhooks.models import Delivery

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(transaction=True, databases="__all__")]

BIG = 9_223_372_036_854_775_807
PARTLY = "Columns that are gone or that your role cannot read are left out."
NOTHING = "Your role cannot read every row of this table, or could not when the event was recorded."


def with_member_rule(read: dict[str, Any]) -> dict[str, Any]:
    document = deepcopy(DOCUMENT)
    document["tables"]["tasks"]["rules"]["member"] = {"read": read}
    return document


def hooked(tracker: Tracker) -> str:
    """The path of the deliveries of a webhook of all events."""
    made = tracker.post("owner", "/webhooks", {"url": "https://hooks.example/x", "events": ["*"]})
    return f"webhooks/{made.json['id']}/deliveries"


def change(tracker: Tracker) -> None:
    """The change of a row, by a caller that no rule binds."""
    row = tracker.post("key", "/rows/tasks", {"title": "</code>\u202e", "points": 7}).json
    assert tracker.patch("key", f"/rows/tasks/{row['id']}", {"points": BIG}).status == 200


def pages(tracker: Tracker, desk: Desk, path: str) -> dict[str, str]:
    """Of each delivery, by the event's type."""
    relay(tracker.project.cluster)
    listed = desk.get(path).content.decode()
    found = {}
    for each in tracker.get("owner", f"/{path}").json["data"]:
        assert f'href="{desk.url(path)}/{each["id"]}"' in listed
        page = desk.get(f"{path}/{each['id']}")
        assert page.status_code == 200
        found[each["event_type"]] = page.content.decode()
    return found


def delivered(tracker: Tracker, desk: Desk) -> tuple[str, Delivery]:
    """The path of a webhook's deliveries, and one of them."""
    path = hooked(tracker)
    change(tracker)
    assert pages(tracker, desk, path)
    delivery = Delivery.objects.using(tracker.project.cluster).filter(environment_id=tracker.environment_id).first()
    assert delivery is not None
    return path, delivery


def payload(page: str) -> Any:
    found = re.search(r'id="payload"><bdi>(.*?)</bdi></code>', page, re.DOTALL)
    return json.loads(unescape(found[1])) if found else None


def test_owners_and_viewers_see_what_was_sent(tracker: Tracker, desk_of: Callable[[str], Desk]) -> None:
    path = hooked(tracker)
    change(tracker)
    for role in ("owner", "viewer"):
        found = pages(tracker, desk_of(role), path)
        for kind in ("tasks.insert", "tasks.update"):
            sent = Delivery.objects.using(tracker.project.cluster).get(event_type=kind)
            assert payload(found[kind]) == json.loads(sent.body)
            assert PARTLY not in found[kind]
        assert payload(found["tasks.update"])["data"]["record"]["points"] == BIG


def test_columns_that_members_may_not_read_are_left_out(make_tracker: Callable[..., Tracker]) -> None:
    tracker = make_tracker(with_member_rule({"columns": ["*", "-points"]}))
    path = hooked(tracker)
    change(tracker)
    for role in ("owner", "viewer"):
        page = pages(tracker, desk_at(tracker, role), path)["tasks.update"]
        data = payload(page)["data"]
        assert data["record"]["title"] == data["old_record"]["title"] == "</code>\u202e"
        assert "points" not in page
        assert str(BIG) not in page
        assert PARTLY in page


@pytest.mark.parametrize("read", [{"where": {"done": True}}, {"where": {"owner_id": "$user.id"}, "columns": ["title"]}])
def test_rows_that_members_may_read_only_sometimes_are_not_shown(
    make_tracker: Callable[..., Tracker], read: dict[str, Any]
) -> None:
    tracker = make_tracker(with_member_rule(read))
    path = hooked(tracker)
    change(tracker)
    page = pages(tracker, desk_at(tracker), path)["tasks.update"]
    assert payload(page) is None
    assert NOTHING in page
    assert str(BIG) not in page


def test_a_member_needs_the_rules_of_then_and_of_now(tracker: Tracker, desk: Desk) -> None:
    hidden = with_member_rule({"columns": ["*", "-points"]})
    path = hooked(tracker)
    change(tracker)
    tracker.apply(hidden)  # tightened since
    page = pages(tracker, desk, path)["tasks.update"]
    assert str(BIG) not in page
    assert "title" in payload(page)["data"]["record"]
    Delivery.objects.using(tracker.project.cluster).all().delete()
    change(tracker)
    tracker.apply(DOCUMENT)  # opened since
    page = pages(tracker, desk, path)["tasks.update"]
    assert str(BIG) not in page
    assert PARTLY in page


def test_a_table_that_took_the_name_of_another_opens_nothing(make_tracker: Callable[..., Tracker]) -> None:
    hidden = with_member_rule({"where": {"done": True}})
    tracker = make_tracker(hidden)
    path = hooked(tracker)
    change(tracker)
    tasks = hidden["tables"]["tasks"]
    tracker.apply({"tables": {"old": {**tasks, "renamed_from": "tasks"}, "tasks": DOCUMENT["tables"]["tasks"]}})
    assert payload(pages(tracker, desk_at(tracker), path)["tasks.update"]) is None
    tracker.apply({"tables": {"old": tasks}})
    page = pages(tracker, desk_at(tracker), path)["tasks.update"]
    assert payload(page) is None
    assert "The table has been renamed or deleted since." in page
    assert NOTHING not in page


def test_columns_that_are_gone_are_left_out(tracker: Tracker, desk: Desk) -> None:
    path = hooked(tracker)
    change(tracker)
    assert "done" in payload(pages(tracker, desk, path)["tasks.update"])["data"]["record"]
    without = deepcopy(DOCUMENT)
    without["tables"]["tasks"]["columns"]["ready"] = without["tables"]["tasks"]["columns"].pop("done") | {
        "renamed_from": "done"
    }
    tracker.apply(without)
    page = pages(tracker, desk, path)["tasks.update"]
    assert "title" in payload(page)["data"]["record"]
    assert "done" not in payload(page)["data"]["record"]
    assert PARTLY in page


def test_a_large_payload_is_not_shown(tracker: Tracker, desk: Desk) -> None:
    path = hooked(tracker)
    assert tracker.post("key", "/rows/tasks", {"title": "é" * 131_000}).status == 201
    page = pages(tracker, desk, path)["tasks.insert"]
    assert "Payloads above 256 KB are not shown." in page
    assert payload(page) is None


def test_a_delivery_that_is_deleted_meanwhile_is_not_found(
    tracker: Tracker, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, delivery = delivered(tracker, desk)
    monkeypatch.setattr(Console, "listed", lambda *_: [])
    assert desk.get(f"{path}/{delivery.pk}").status_code == 404


def test_a_filtered_event_has_no_payload_and_a_system_event_all(tracker: Tracker, desk: Desk) -> None:
    path = hooked(tracker)
    hook = tracker.api.patch(
        f"/v1/{path.removesuffix('/deliveries')}", json={"filter": {"done": True}}, token=tracker.tokens["owner"],
        environment=tracker.environment_id,
    )  # fmt: skip
    assert hook.status == 200
    change(tracker)
    sent = desk.post(path.removesuffix("/deliveries"), {"action": "test"})
    assert sent.status_code == 302
    found = pages(tracker, desk, path)
    assert "No payload was made for this delivery." in found["tasks.update"]
    assert payload(found["webhook.test"])["data"]["webhook_id"] in path


def test_a_delivery_of_another_webhook_is_not_found(
    tracker: Tracker, desk: Desk, make_tracker: Callable[..., Tracker]
) -> None:
    path, delivery = delivered(tracker, desk)
    assert desk.get(f"{hooked(tracker)}/{delivery.pk}").status_code == 404
    assert desk.get(f"{path}/dlv_none").status_code == 404
    other = make_tracker(DOCUMENT, "Other")
    stranger = desk_at(other)
    assert stranger.get(f"{hooked(other)}/{delivery.pk}").status_code == 404
    assert Desk(stranger.browser, desk.project_id, desk.environment_id).get(f"{path}/{delivery.pk}").status_code == 404
