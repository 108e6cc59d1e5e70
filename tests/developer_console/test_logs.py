"""Logs: the requests with their filters and pages, the audit log for owners, and those who may read neither."""

import re
from collections.abc import Callable, Iterator
from html import unescape
from typing import Any

import pytest

from platform_site.request_log import recording
from tests.developer_console.conftest import DOCUMENT, Desk, desk_at
from tests.rows.conftest import Tracker
from tests.support.request_log import Log

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@pytest.fixture(autouse=True)
def log() -> Iterator[Log]:
    yield Log()
    recording.queues.clear()


def text_of(answer: Any) -> str:
    return " ".join(unescape(answer.content.decode()).split())


def rows_of(answer: Any) -> int:
    return answer.content.decode().count("Only status")


def requests(tracker: Tracker, log: Log) -> None:
    assert tracker.post("key", "/rows/tasks", {"title": "Bread"}).status == 201
    assert tracker.post("key", "/rows/tasks", {"title": 7}).status == 422
    assert tracker.get("reader", "/rows/tasks").status == 200
    log.written()


def test_requests_are_listed_and_filtered(tracker: Tracker, desk: Desk, log: Log) -> None:
    requests(tracker, log)
    page = desk.get("logs")
    assert "/v1/rows/{table}" in text_of(page)
    assert "validation_failed" in text_of(page)
    assert "Bread" not in text_of(page)
    failed = desk.get("logs?status=422")
    assert rows_of(failed) == 1
    request_id = re.search(r"<code>(req_\w+)</code>", failed.content.decode())
    assert request_id
    assert rows_of(desk.get("logs?status=4xx&table=tasks&method=POST")) == 1
    assert rows_of(desk.get(f"logs?request_id={request_id[1]}")) == 1
    assert rows_of(desk.get("logs", data={"route": "/v1/rows/{table}"})) == 3
    assert rows_of(desk.get("logs?since=2000-01-01T00:00&route=/v1/rows/%7Btable%7D")) == 3
    assert "No request matches this filter." in text_of(desk.get("logs?until=2000-01-01T00:00"))
    caller = re.search(r"\?caller=(key_\w+)", page.content.decode())
    assert caller
    assert 1 <= rows_of(desk.get(f"logs?caller={caller[1]}")) < rows_of(page)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("status=nine", "status"),
        ("since=yesterday", "since"),
        ("until=%22%3E%3Cb%3E", "until"),
        ("table=" + "x" * 99, "table"),
    ],
)
def test_an_error_of_a_filter_is_at_its_field(desk: Desk, query: str, field: str) -> None:
    answer = desk.get(f"logs?{query}")
    assert answer.status_code == 422
    assert f'id="logs-{field}-problem"' in answer.content.decode()
    assert "<b>" not in answer.content.decode()


def test_pages_follow_each_other_and_keep_the_filter(tracker: Tracker, desk: Desk, log: Log) -> None:
    for _ in range(51):
        assert tracker.post("key", "/rows/tasks", {}).status == 422
    log.written()
    first = desk.get("logs?method=POST&table=tasks")
    assert rows_of(first) == 50
    older = re.search(r'href="(\?[^"]*cursor=[^"]+)"', first.content.decode())
    assert older
    second = desk.get("logs" + unescape(older[1]))
    assert rows_of(second) == 1
    assert ">Newest</a>" in second.content.decode()
    assert desk.get("logs?cursor=wrong").status_code == 422


def test_owners_read_the_audit_log(tracker: Tracker, desk: Desk) -> None:
    tracker.call("owner", "PATCH", f"/projects/{tracker.project.pk}", json={"name": "<i>Renamed</i>"})
    page = desk.get("logs/audit")
    assert "project.changed" in text_of(page)
    assert "<i>" not in page.content.decode()
    assert "No entry matches this filter." in text_of(desk.get("logs/audit?action=function.*"))
    wrong = desk.get("logs/audit?action=everything")
    assert wrong.status_code == 422
    assert 'id="logs-action-problem"' in wrong.content.decode()


def test_a_viewer_reads_neither_log(desk_of: Callable[[str], Desk]) -> None:
    viewer = desk_of("viewer")
    for path in ("logs", "logs/audit"):
        answer = viewer.get(path)
        assert answer.status_code == 403
        assert "You don't have access" in text_of(answer)
        assert 'id="sidebar"' in answer.content.decode()


def test_members_of_other_projects_find_no_log(tracker: Tracker, make_tracker: Callable[..., Tracker]) -> None:
    stranger = desk_at(make_tracker(DOCUMENT, "Other"))
    theirs = Desk(stranger.browser, tracker.project.pk, tracker.environment_id)
    assert theirs.get("logs").status_code == 404
    assert theirs.get("logs/audit").status_code == 404
    other = stranger.get(f"logs/audit?environment={tracker.environment_id}")
    assert tracker.project.pk not in text_of(other)
    assert rows_of(stranger.get(f"logs?project={tracker.project.pk}&environment={tracker.environment_id}")) == 0
