"""Home: the charts of the last day, their text, and what needs attention."""

import re
from collections.abc import Callable, Iterator
from html import unescape
from typing import Any

import pytest

from platform_site.developer_console import activity
from platform_site.request_log import recording
from projects.directory.environments import environment_ref
from tests.developer_console.conftest import Desk, desk_at
from tests.rows.conftest import Tracker
from tests.support import history
from tests.support.request_log import Log
from webhooks.models import Webhook

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@pytest.fixture
def log() -> Iterator[Log]:
    yield Log()
    recording.queues.clear()


@pytest.fixture
def cluster(tracker: Tracker) -> str:
    index = environment_ref(tracker.environment_id)
    assert index is not None
    return index.cluster


def text_of(answer: Any) -> str:
    return " ".join(unescape(answer.content.decode()).split())


def with_function_and_webhook(tracker: Tracker) -> str:
    """The id of the webhook."""
    assert tracker.call("owner", "PUT", "/functions/sum", json={"source": "export default () => 1"}).status < 300
    body = {"url": "https://hooks.example/x", "events": ["tasks.*"]}
    return str(tracker.post("owner", "/webhooks", body).json["id"])


def test_an_unused_environment_says_what_to_do_next(desk: Desk) -> None:
    page = text_of(desk.get("activity"))
    assert "Nothing has happened yet." in page
    assert '<svg class="plot' not in page


def test_home_loads_the_charts_after_itself(desk: Desk) -> None:
    page = desk.get().content.decode()
    assert f'hx-get="{desk.url("activity")}" hx-trigger="load"' in page
    assert f'<a href="{desk.url("activity")}">' in page, "without scripts"
    assert "Nothing has happened yet." not in page
    assert "Sections" in desk.get("activity").content.decode(), "a page with the sidebar"
    part = desk.get("activity", headers={"HX-Request": "true"}).content.decode()
    assert '<section class="panel" id="activity"' in part
    assert "Sections" not in part


def test_charts_count_the_environments_own(tracker: Tracker, desk: Desk, log: Log, cluster: str) -> None:
    webhook_id = with_function_and_webhook(tracker)
    assert tracker.post("key", "/rows/tasks", {"title": "Bread"}).status == 201
    assert tracker.post("key", "/rows/tasks", {"title": 7}).status == 422
    log.written()
    history.add_runs(cluster, tracker.environment_id, "sum", 200, days=0.5)
    history.add_deliveries(cluster, webhook_id, 400, days=0.5)
    page = desk.get("activity").content.decode()
    for title, total in (("Runs", 200), ("Deliveries", 400)):
        assert f'aria-label="{title}: {total} in all' in page, title
    assert re.search(r'aria-label="Requests: (\d+) in all', page)
    assert "Latency: at most" in page
    assert re.findall(r'<th scope="col">([^<]+)</th>', page) == [
        "Hour", "Requests", "failed", "ms (p95)", "Runs", "failed", "Deliveries", "failed",
    ]  # fmt: skip
    rows = [re.findall(r"<td>([\d,:]+)</td>", row) for row in re.findall(r"<tr>(<td>\d\d:00</td>.*?)</tr>", page)]
    assert len(rows) == 24
    sums = [sum(int(row[index].replace(",", "")) for row in rows) for index in (2, 4, 5, 6, 7)]
    assert sums[0] >= 1
    assert sums[1:] == [200, 10, 400, 20]


def test_others_history_is_not_counted(tracker: Tracker, make_tracker: Callable[..., Tracker], cluster: str) -> None:
    from tests.developer_console.conftest import DOCUMENT

    with_function_and_webhook(tracker)
    history.add_runs(cluster, tracker.environment_id, "sum", 50, days=0.5)
    other = desk_at(make_tracker(DOCUMENT, "Other"))
    assert "Nothing has happened yet." in text_of(other.get("activity"))


def test_a_viewer_sees_no_requests(tracker: Tracker, desk_of: Callable[[str], Desk], cluster: str) -> None:
    with_function_and_webhook(tracker)
    history.add_runs(cluster, tracker.environment_id, "sum", 50, days=0.5)
    page = desk_of("viewer").get("activity").content.decode()
    assert 'aria-label="Runs: 50 in all' in page
    assert "Requests:" not in page


def test_a_bar_ends_where_counting_does(
    tracker: Tracker, desk: Desk, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity, "MAX_COUNTED", 10)
    with_function_and_webhook(tracker)
    assert tracker.call("owner", "PUT", "/functions/product", json={"source": "export default () => 1"}).status < 300
    for name in ("sum", "product"):
        history.add_runs(cluster, tracker.environment_id, name, 500, days=0.5)
    page = desk.get("activity").content.decode()
    assert "Bars are cut off at 10,000." in text_of(desk.get("activity"))
    rows = [re.findall(r"<td>([\d,:]+)</td>", row) for row in re.findall(r"<tr>(<td>\d\d:00</td>.*?)</tr>", page)]
    runs, failed = ([int(row[index]) for row in rows] for index in (4, 5))
    assert max(runs) == 10  # of both together
    assert all(wrong <= all_ for wrong, all_ in zip(failed, runs, strict=True))


def test_what_needs_attention_is_named_first(tracker: Tracker, desk: Desk, cluster: str) -> None:
    webhook_id = with_function_and_webhook(tracker)
    assert "Needs attention" not in text_of(desk.get())
    assert tracker.call("owner", "PATCH", f"/webhooks/{webhook_id}", json={"enabled": False}).status == 200
    Webhook.objects.using(cluster).filter(pk=webhook_id).update(disabled_reason="failing")
    page = text_of(desk.get())
    assert "The webhook https://hooks.example/x is disabled." in page
    assert f"/webhooks/{webhook_id}" in page
