"""Logs: the requests with their filters and pages, the audit log for owners, and those who may read neither."""

import re
from collections.abc import Callable, Iterator
from html import unescape
from typing import Any

import pytest
from django.db import OperationalError

from accounts import audit
from functions.models import Run
from platform_site.identity import ids
from platform_site.request_log import recording
from projects.directory.environments import environment_ref
from tests.developer_console.conftest import DOCUMENT, Desk, desk_at
from tests.rows.conftest import Tracker
from tests.support import history
from tests.support.request_log import Log
from webhooks.delivery.relay import relay_batch
from webhooks.models import Delivery

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
    narrowed = text_of(desk.get("logs?table=tasks&status=4xx"))
    for link in ("status=422", "status=4xx&route=/v1/rows/%7Btable%7D", "status=4xx&caller=key_"):
        assert f'href="?table=tasks&{link}' in narrowed.replace("%2F", "/"), "the filter is kept"
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


def relay(tracker: Tracker) -> str:
    """Events become deliveries. The region."""
    environment = environment_ref(tracker.environment_id)
    assert environment is not None
    while relay_batch(environment.cluster):
        pass
    return environment.cluster


def kinds_of(answer: Any) -> list[str]:
    """Of the entries of a timeline, from the top."""
    assert answer.status_code == 200
    return re.findall(r"</time>\s+(\w+) <strong>", answer.content.decode())


@pytest.mark.exhaustive
def test_the_timeline_shows_what_belongs_together(
    tracker: Tracker, desk: Desk, log: Log, desk_of: Callable[[str], Desk]
) -> None:
    assert "Nothing has happened yet." not in text_of(desk.get("logs/timeline")), "the schema was applied"
    webhook = {"url": "https://hooks.example/x", "events": ["tasks.*"]}
    assert tracker.post("owner", "/webhooks", webhook).status == 201
    answer = tracker.post("key", "/rows/tasks", {"title": "Bread"})
    log.written()
    relay(tracker)
    request_id, row_id = answer.headers["X-Request-Id"], answer.json["id"]
    page = desk.get("logs/timeline", data={"id": request_id})
    assert kinds_of(page) == ["request", "event", "delivery"]
    assert f'href="?id={request_id}"' in page.content.decode()
    assert "Bread" not in text_of(page)
    for text in (row_id, f"tasks/{row_id}"):
        assert kinds_of(desk.get("logs/timeline", data={"id": text})) == ["request", "event", "delivery"], text
    page = desk.get("logs/timeline")
    assert re.search(r'by <bdi>account <a href="\?id=usr_\w+">', page.content.decode())
    newest = kinds_of(page)
    assert set(newest) == {"audit", "request", "event", "delivery"}
    assert newest[0] == "delivery"
    viewer = desk_of("viewer")
    assert set(kinds_of(viewer.get("logs/timeline"))) == {"event", "delivery"}, "no requests, no audit log"
    evil = desk.get("logs/timeline", data={"id": "<b>\0" + "x" * 200})
    assert "Nothing is recorded for this id here." in text_of(evil)
    assert "<b>" not in evil.content.decode()


def test_the_timeline_says_that_a_region_is_unavailable(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OperationalError

    monkeypatch.setattr("platform_site.request_log.reader.of_requests", fail)
    page = desk.get("logs/timeline", data={"id": ids.new("req")})
    assert "The region is unavailable." in text_of(page)


@pytest.mark.exhaustive
def test_the_timeline_knows_nothing_of_other_environments(
    tracker: Tracker, make_tracker: Callable[..., Tracker], log: Log
) -> None:
    other = make_tracker(DOCUMENT, "Other")
    assert tracker.post("owner", "/webhooks", {"url": "https://hooks.example/x", "events": ["tasks.*"]}).status == 201
    source = {"source": "export default () => 1"}
    assert tracker.call("owner", "PUT", "/functions/sum", json=source).status < 300
    answer = tracker.post("key", "/rows/tasks", {"title": "Bread"})
    log.written()
    cluster = relay(tracker)
    history.add_runs(cluster, tracker.environment_id, "sum", 60, days=0.1)
    delivery = Delivery.objects.using(cluster).get(environment_id=tracker.environment_id)
    runs, run_id = Run.objects.using(cluster).filter(environment_id=tracker.environment_id), ids.new("run")
    assert runs.filter(pk=runs[0].pk).update(id=run_id) == 1
    run = runs.get(pk=run_id)
    mine, theirs = desk_at(tracker), desk_at(other)
    known = [
        answer.headers["X-Request-Id"], delivery.pk, delivery.event_id, delivery.webhook_id, run.pk, run.function_id,
        tracker.environment_id, answer.json["id"],
    ]  # fmt: skip
    for each in known:
        assert kinds_of(mine.get("logs/timeline", data={"id": each})), each
    for each in [*known, tracker.project.pk, tracker.users["alice"]]:
        page = theirs.get("logs/timeline", data={"id": each})
        assert "Nothing is recorded for this id here." in text_of(page), each
        assert "only the newest are shown" not in text_of(page), each


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
    assert re.search(r'<bdi title="usr_\w+">owner@\S+</bdi>', page.content.decode())
    assert "<i>" not in page.content.decode()
    assert "No entry matches this filter." in text_of(desk.get("logs/audit?action=function.*"))
    wrong = desk.get("logs/audit?action=everything")
    assert wrong.status_code == 422
    assert 'id="logs-action-problem"' in wrong.content.decode()


def test_the_timeline_names_no_staff_and_no_secret_of_a_url(tracker: Tracker, desk: Desk) -> None:
    staff_id, webhook_id = ids.new("usr"), ids.new("wh")
    audit.record(
        "webhook.changed",
        webhook_id,
        actor=audit.Actor("staff", staff_id),
        project_id=tracker.project.pk,
        environment_id=tracker.environment_id,
        url="https://hooks.example/s3cret?token=s3cret",
    )
    page = desk.get("logs/timeline", data={"id": webhook_id}).content.decode()
    assert "webhook.changed" in page
    assert "https://hooks.example" in page
    assert staff_id not in page
    assert "s3cret" not in page


def test_a_viewer_reads_neither_log(desk_of: Callable[[str], Desk]) -> None:
    viewer = desk_of("viewer")
    for path, roles in (("logs", "developers and owners"), ("logs/audit", "owners")):
        answer = viewer.get(path)
        assert answer.status_code == 403
        assert "You don't have access" in text_of(answer)
        assert f"Your role in this project is viewer. This page is for {roles}: an owner" in text_of(answer)
        assert f'<a href="{viewer.url("logs/timeline")}">timeline</a>' in text_of(answer)
        assert 'id="sidebar"' in answer.content.decode()


def test_members_of_other_projects_find_no_log(tracker: Tracker, make_tracker: Callable[..., Tracker]) -> None:
    stranger = desk_at(make_tracker(DOCUMENT, "Other"))
    theirs = Desk(stranger.browser, tracker.project.pk, tracker.environment_id)
    assert theirs.get("logs").status_code == 404
    assert theirs.get("logs/audit").status_code == 404
    other = stranger.get(f"logs/audit?environment={tracker.environment_id}")
    assert tracker.project.pk not in text_of(other)
    assert rows_of(stranger.get(f"logs?project={tracker.project.pk}&environment={tracker.environment_id}")) == 0
