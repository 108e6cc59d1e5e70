"""A limit that a page meets: a form stays as it is and says so, a page that was opened says so instead."""

import json
import re
from typing import Any

import pytest

from tests.developer_console.conftest import Desk
from tests.rows.conftest import Tracker

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")
HTMX = {"HX-Request": "true"}


def test_too_many_requests_leave_the_form_on_the_page(desk: Desk, settings: Any) -> None:
    assert desk.post("settings", {"action": "rename", "name": ""}, headers=HTMX).status_code == 422
    settings.RATE_LIMIT_FACTOR = 0.0001  # one request
    for _ in range(2):
        refused = desk.post("settings", {"action": "rename", "name": "Other"}, headers=HTMX)
    assert (refused.status_code, refused.content) == (429, b"")
    assert refused["HX-Reswap"] == "none"
    assert "Too many requests." in json.loads(refused["HX-Trigger"])["console:refused"]
    opened = desk.get("settings")
    assert opened.status_code == 429
    assert re.search(r"Too many requests.*Reload this page in \d+ s\.", opened.content.decode(), re.DOTALL)
    assert not opened.has_header("HX-Trigger")


def test_a_form_that_is_sent_after_the_session_leaves_the_page(desk: Desk) -> None:
    desk.browser.cookies.pop("console_session")
    sent = desk.post("settings", {"action": "rename", "name": "Other"}, headers=HTMX)
    assert (sent.status_code, sent.content, sent["HX-Reswap"]) == (401, b"", "none")
    assert json.loads(sent["HX-Trigger"])["console:ended"].startswith("/console/sign-in")
    assert desk.get("settings", headers=HTMX)["HX-Redirect"].startswith("/console/sign-in")


def test_what_is_not_found_keeps_the_menu_of_the_project(desk: Desk) -> None:
    for path in ("tables/nothing", "functions/nothing", "webhooks/wh_01m8naebk0fbt8gnh35x5ntwz9"):
        answer = desk.get(path)
        assert answer.status_code == 404, path
        shown = answer.content.decode()
        assert "<h1>Not found</h1>" in shown, path
        assert f'href="{desk.url("functions/")}"' in shown, path


@pytest.mark.parametrize(
    "path",
    [
        "auth/?find=a",
        "auth/invitations?",
        "functions/?",
        "functions/digest/versions?",
        "webhooks/{webhook}/deliveries?status=pending",
        "logs?status=4xx",
        "logs/audit?action=key.issued",
        "tables/tasks?order=title.asc",
    ],
)
def test_a_cursor_of_another_list_leads_back_to_the_first_page(tracker: Tracker, desk: Desk, path: str) -> None:
    webhook = tracker.post("owner", "/webhooks", {"url": "https://example.com/", "events": ["*"]}).json["id"]
    source = {"source": "export default () => {};"}
    assert tracker.call("owner", "PUT", "/functions/digest", json=source).status == 201
    path = path.format(webhook=webhook)
    answer = desk.get(f"{path}&cursor=stale")
    page = answer.content.decode()
    assert answer.status_code == 422
    assert 'id="sidebar"' in page
    query = path.partition("?")[2]
    assert f'<a href="?{query}">Start over</a>' in page.replace('href=""', 'href="?"')
    assert "Correct the filter" not in page
    assert desk.get(path).status_code == 200
