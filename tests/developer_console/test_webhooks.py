"""Webhooks: created, edited, tested and resent, with the errors at their fields; and those who may only look."""

import re
from collections.abc import Callable, Iterator
from html import unescape
from typing import Any

import pytest
from django.test import override_settings

from tests.developer_console.conftest import DOCUMENT, Desk, desk_at, without_token
from tests.rows.conftest import Tracker
from tests.support.receiver import Receiver
from webhooks.delivery.dispatcher import Dispatcher
from webhooks.models import Webhook

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@pytest.fixture(autouse=True)
def _loopback_is_open() -> Iterator[None]:
    with override_settings(OUTBOUND_ALLOWED_NETWORKS=["127.0.0.0/8", "::1/128"]):
        yield


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


@pytest.fixture
def webhook(tracker: Tracker, receiver: Receiver) -> dict[str, Any]:
    answer = tracker.post("owner", "/webhooks", {"url": receiver.url(), "events": ["tasks.*"], "description": "CRM"})
    assert answer.status == 201, answer.json
    made: dict[str, Any] = answer.json
    return made


def text_of(answer: Any) -> str:
    return " ".join(unescape(answer.content.decode()).split())


def fingerprint(answer: Any) -> str:
    found = re.search(r'name="fingerprint" value="([^"]+)"', answer.content.decode())
    assert found
    return found[1]


def found_in(tracker: Tracker, webhook: dict[str, Any]) -> Any:
    return tracker.get("owner", f"/webhooks/{webhook['id']}").json


def test_the_first_webhook_shows_its_secret_once(tracker: Tracker, desk: Desk, receiver: Receiver) -> None:
    page = text_of(desk.get("webhooks/"))
    assert "No webhook yet." in page
    assert "tasks.*" in page, "an example of the first table"
    made = desk.post(
        "webhooks/",
        {"action": "new", "url": receiver.url(), "events": "tasks.insert\r\n\r\ntasks.delete", "description": ""},
    )
    secret = re.search(r'id="secret">(whsec_[^<]+)<', text_of(made))
    assert secret
    listed = tracker.get("owner", "/webhooks").json["data"]
    assert listed[0]["events"] == ["tasks.insert", "tasks.delete"]
    assert made["HX-Push-Url"] == desk.url(f"webhooks/{listed[0]['id']}")
    assert secret[1] not in text_of(desk.get(f"webhooks/{listed[0]['id']}"))
    page = text_of(desk.get("webhooks/"))
    assert receiver.url() in page
    assert "no delivery yet" in page
    assert "100 %" not in page


def test_a_webhook_of_an_unknown_table_says_so(tracker: Tracker, desk: Desk, receiver: Receiver) -> None:
    made = desk.post("webhooks/", {"action": "new", "url": receiver.url(), "events": "task.insert", "description": ""})
    warning = 'There is no table task; did you mean "tasks"?'
    assert warning in text_of(made)
    path = f"webhooks/{tracker.get('owner', '/webhooks').json['data'][0]['id']}"
    page = desk.get(path)
    assert warning in text_of(page)
    values = {
        "action": "edit", "name": "", "url": receiver.url(), "events": "tasks.insert", "description": "", "filter": "",
        "columns": "", "ordering": "none", "fingerprint": fingerprint(page),
    }  # fmt: skip
    saved = text_of(desk.post(path, values))
    assert "The webhook is saved." in saved
    assert "There is no table" not in saved


def test_a_name_is_the_host_and_no_secret_of_the_url(tracker: Tracker, desk: Desk) -> None:
    desk.post("webhooks/", {"action": "new", "url": "https://Example.com?key=c4n4ryc4n4ry", "events": "tasks.insert"})
    assert Webhook.objects.using(tracker.project.cluster).get().name == "example-com"
    refused = desk.post("webhooks/", {"action": "new", "url": "https://[x", "events": "tasks.insert"})
    assert refused.status_code == 422


@pytest.mark.exhaustive
def test_a_new_webhook_is_named_after_its_host(tracker: Tracker, desk: Desk) -> None:
    hooks = [("https://Hooks.example.com/a", ""), ("https://hooks.example.com:8443/b", ""), ("https://127.0.0.1/", "")]
    for url, name in [*hooks, ("https://hooks.example.com/c", ""), ("https://example.com/", "crm")]:
        made = desk.post("webhooks/", {"action": "new", "url": url, "events": "*", "name": name})
        assert made.status_code == 200, text_of(made)
    found = Webhook.objects.using(tracker.project.cluster).live(tracker.environment_id).order_by("created_at")
    names = ["hooks-example-com", "hooks-example-com-8443", "host-127-0-0-1", "hooks-example-com-2", "crm"]
    assert list(found.values_list("name", flat=True)) == names
    page = text_of(desk.get("webhooks/"))
    assert all(name in page for name in names)
    assert "crm: https://example.com/" in text_of(desk.get("search?q=crm"))


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"url": "nothing", "events": "*"}, "url"),
        ({"url": "", "events": "*"}, "url"),
        ({"url": "http://10.0.0.1/", "events": "*"}, "url"),
        ({"url": "https://example.com/", "events": ""}, "events"),
        ({"url": "https://example.com/", "events": "tasks"}, "events"),
    ],
)
def test_an_error_of_a_new_webhook_is_at_its_field(
    tracker: Tracker, desk: Desk, values: dict[str, str], field: str
) -> None:
    answer = desk.post("webhooks/", {"action": "new", **values})
    assert answer.status_code == 422
    assert f'id="new-{field}-problem"' in answer.content.decode()
    assert tracker.get("owner", "/webhooks").json["data"] == []


@pytest.mark.exhaustive
def test_a_webhook_is_edited_and_a_stale_form_is_not_saved(
    tracker: Tracker, desk: Desk, webhook: dict[str, Any]
) -> None:
    path = f"webhooks/{webhook['id']}"
    values = {
        "action": "edit", "name": "crm", "url": webhook["url"], "events": "tasks.update", "description": "<b>CRM</b>",
        "filter": '{"done": true}', "columns": '{"tasks": ["title"]}', "ordering": "row",
        "fingerprint": fingerprint(desk.get(path)),
    }  # fmt: skip
    saved = desk.post(path, values)
    assert "The webhook is saved." in text_of(saved)
    assert "<b>CRM</b>" not in saved.content.decode()
    now = found_in(tracker, webhook)
    assert (now["name"], now["filter"], now["columns"]) == ("crm", {"done": True}, {"tasks": ["title"]})
    stale = desk.post(path, values | {"description": "theirs"})
    assert stale.status_code == 412
    assert "Someone else changed this in the meantime." in text_of(stale)
    assert "theirs" in text_of(stale)
    assert found_in(tracker, webhook)["description"] == "<b>CRM</b>"
    again = desk.post(path, values | {"description": "theirs", "fingerprint": fingerprint(stale)})
    assert "The webhook is saved." in text_of(again)
    assert tracker.patch("owner", f"/webhooks/{webhook['id']}", {"enabled": False}).status == 200
    saved = desk.post(path, values | {"fingerprint": fingerprint(again)})
    assert "The webhook is saved." in text_of(saved), "nothing that the form shows has changed"
    fresh = values | {"fingerprint": fingerprint(saved)}
    for wrong, field in (
        ({"filter": "{"}, "filter"),
        ({"filter": '{"nothing": 1}'}, "filter"),
        ({"columns": '{"tasks": ["nothing"]}'}, "columns"),
        ({"name": "Not a slug"}, "name"),
        ({"ordering": "sometimes"}, "ordering"),
    ):
        refused = desk.post(path, fresh | wrong)
        assert refused.status_code == 422, wrong
        assert f'id="edit-{field}-problem"' in refused.content.decode(), wrong


def test_a_webhook_is_disabled_and_enabled(tracker: Tracker, desk: Desk, webhook: dict[str, Any]) -> None:
    path = f"webhooks/{webhook['id']}"
    assert "The webhook is disabled." in text_of(desk.post(path, {"action": "disable"}))
    assert not found_in(tracker, webhook)["enabled"]
    assert "are dropped." in text_of(desk.post(path, {"action": "enable", "held": "drop"}))
    assert found_in(tracker, webhook)["enabled"]


@pytest.mark.exhaustive
def test_a_test_event_arrives_and_is_sent_again(
    tracker: Tracker, desk: Desk, webhook: dict[str, Any], receiver: Receiver
) -> None:
    sent = desk.post(f"webhooks/{webhook['id']}", {"action": "test"})
    page = desk.browser.get(sent["Location"])
    assert "Test event sent. Status below." in text_of(page)
    assert 'hx-trigger="every 1s"' in page.content.decode()
    assert "no delivery yet" in text_of(desk.get(f"webhooks/{webhook['id']}"))
    Dispatcher(tracker.project.cluster).run(linger=0)
    assert "100 %" in text_of(desk.get(f"webhooks/{webhook['id']}"))
    page = desk.browser.get(sent["Location"])
    assert "webhook.test" in text_of(page)
    assert "delivered" in text_of(page)
    assert 'hx-trigger="every 1s"' not in page.content.decode()
    path = f"webhooks/{webhook['id']}/deliveries"
    delivery = tracker.get("owner", f"/{path}").json["data"][0]
    assert "Delivery queued for redelivery." in text_of(
        desk.post(path, {"action": "redeliver", "delivery": delivery["id"]})
    )
    Dispatcher(tracker.project.cluster).run(linger=0)
    assert "2 attempts" in text_of(desk.get(path))
    assert len(receiver.requests) == 2
    assert desk.post(path, {"action": "redeliver", "delivery": "dlv_none"}).status_code == 404
    assert "No delivery matches this filter." in text_of(desk.get(f"{path}?status=exhausted"))
    assert desk.get(f"{path}?status=odd").status_code == 422
    assert desk.get(f"{path}?cursor=odd").status_code == 422


def test_failed_deliveries_are_sent_again(desk: Desk, webhook: dict[str, Any]) -> None:
    path = f"webhooks/{webhook['id']}"
    assert "Queued for redelivery: 0." in text_of(desk.post(path, {"action": "recover", "since": "2026-11-26T10:00"}))
    wrong = desk.post(path, {"action": "recover", "since": "yesterday"})
    assert wrong.status_code == 422
    assert "since" in text_of(wrong)


def test_a_secret_is_rotated(desk: Desk, webhook: dict[str, Any]) -> None:
    rotated = desk.post(f"webhooks/{webhook['id']}", {"action": "rotate"})
    secret = re.search(r'id="secret">(whsec_[^<]+)<', text_of(rotated))
    assert secret
    assert secret[1] != webhook["secret"]
    assert webhook["secret"] not in text_of(rotated)


def test_a_webhook_is_deleted(tracker: Tracker, desk: Desk, webhook: dict[str, Any]) -> None:
    gone = desk.post(f"webhooks/{webhook['id']}", {"action": "delete"})
    assert gone["Location"] == desk.url("webhooks/")
    assert desk.get(f"webhooks/{webhook['id']}").status_code == 404
    assert desk.post(f"webhooks/{webhook['id']}", {"action": "test"}).status_code == 404


@pytest.mark.exhaustive
def test_a_viewer_reads_webhooks_and_changes_nothing(
    tracker: Tracker, webhook: dict[str, Any], desk_of: Callable[[str], Desk]
) -> None:
    viewer = desk_of("viewer")
    path = f"webhooks/{webhook['id']}"
    for each in ("webhooks/", path, f"{path}/deliveries"):
        page = viewer.get(each)
        assert page.status_code == 200
        assert "hx-post" not in page.content.decode()
    before = found_in(tracker, webhook)
    for each, values in (
        ("webhooks/", {"action": "new", "url": "https://example.com/", "events": "*"}),
        (path, {"action": "edit", "url": "https://evil.example/", "events": "*"}),
        (path, {"action": "disable"}),
        (path, {"action": "test"}),
        (path, {"action": "rotate"}),
        (path, {"action": "recover", "since": "2026-11-26T10:00"}),
        (path, {"action": "delete"}),
        (f"{path}/deliveries", {"action": "redeliver", "delivery": "dlv_none"}),
    ):
        answer = viewer.post(each, values)
        assert answer.status_code == 403, (each, values)
        assert "This needs the scope webhooks:write" in text_of(answer), (each, values)
    assert found_in(tracker, webhook) == before


@pytest.mark.exhaustive
def test_members_of_other_projects_find_no_webhook(
    tracker: Tracker, webhook: dict[str, Any], make_tracker: Callable[..., Tracker]
) -> None:
    stranger = desk_at(make_tracker(DOCUMENT, "Other"))
    theirs = Desk(stranger.browser, tracker.project.pk, tracker.environment_id)
    path = f"webhooks/{webhook['id']}"
    for desk, paths in ((theirs, ("webhooks/", path, f"{path}/deliveries")), (stranger, (path, f"{path}/deliveries"))):
        for each in paths:
            assert desk.get(each).status_code == 404
            values = {"action": "delete", "url": "https://example.com/", "events": "*", "delivery": "dlv_none"}
            assert desk.post(each, values).status_code == 404
    assert found_in(tracker, webhook)["enabled"]


def test_a_form_without_its_token_is_refused(tracker: Tracker, desk: Desk, webhook: dict[str, Any]) -> None:
    strict = without_token(desk)
    for path in ("webhooks/", f"webhooks/{webhook['id']}", f"webhooks/{webhook['id']}/deliveries"):
        assert strict.post(path, {"action": "delete"}).status_code == 403
    assert Webhook.objects.using(tracker.project.cluster).live(tracker.environment_id).count() == 1
