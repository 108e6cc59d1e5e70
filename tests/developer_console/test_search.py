"""Search finds names and ids of the environment, and nothing that the member may not read."""

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest

from functions.models import Run
from tests.developer_console.conftest import DOCUMENT, Desk, desk_at
from tests.rows.conftest import Tracker
from webhooks.delivery.relay import relay_batch
from webhooks.models import Delivery

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


def found(desk: Desk, asked: str) -> list[tuple[str, str]]:
    """Kind and URL of each result."""
    answer = desk.get("search", data={"q": asked})
    assert answer.status_code == 200
    results = re.search(r'<ul class="results">(.*?)</ul>', answer.content.decode(), re.S)
    pattern = r'<a href="([^"]+)">.*?<span class="soft">(\w+)</span>'
    return [(kind, unescape(url)) for url, kind in re.findall(pattern, results[1] if results else "", re.S)]


@pytest.fixture
def filled(tracker: Tracker) -> dict[str, Any]:
    """Ids of one of each."""
    assert tracker.call("owner", "PUT", "/functions/digest", json={"source": "export default () => 1"}).status == 201
    run = tracker.post("owner", "/functions/digest/invoke", {}).json["run_id"]
    webhook = tracker.post("owner", "/webhooks", {"url": "https://example.com/crm", "events": ["*"]}).json["id"]
    tracker.post("owner", f"/webhooks/{webhook}/test", None)
    relay_batch(tracker.project.cluster)
    delivery, event = Delivery.objects.using(tracker.project.cluster).values_list("pk", "event_id").get()
    return {"run": run, "webhook": webhook, "delivery": delivery, "event": event}


@pytest.mark.exhaustive
def test_names_and_ids_are_found(tracker: Tracker, desk: Desk, filled: dict[str, Any]) -> None:
    assert ("Table", desk.url("tables/tasks")) in found(desk, "TASK")
    assert ("Function", desk.url("functions/digest")) in found(desk, "dig")
    assert ("Webhook", desk.url(f"webhooks/{filled['webhook']}")) in found(desk, "crm")
    assert ("Environment", desk.url()) in found(desk, "production")
    assert ("Project", f"/console/{tracker.project.pk}") in found(desk, "Tracker")
    assert ("Page", desk.url("logs/audit")) in found(desk, "audit")
    alice = tracker.users["alice"]
    assert (
        found(desk, "alice@tr") == found(desk, "alice@tracker.example") == [("User", desk.url(f"auth/users/{alice}"))]
    )
    for asked, path in (
        (alice, f"auth/users/{alice}"),
        (filled["webhook"], f"webhooks/{filled['webhook']}"),
        (filled["run"], f"functions/digest/runs/{filled['run']}"),
        (filled["delivery"], f"webhooks/{filled['webhook']}/deliveries?event_id={filled['event']}"),
        (filled["event"], f"webhooks/{filled['webhook']}/deliveries?event_id={filled['event']}"),
        (tracker.environment_id, ""),
        ("req_01m8ca38x9ehg94x53ta4s31gr", "logs?request_id=req_01m8ca38x9ehg94x53ta4s31gr"),
    ):
        assert found(desk, asked) == [("Id", desk.url(path))]


def test_an_empty_result_says_so(desk: Desk) -> None:
    answer = desk.get("search", data={"q": '"><script>nothing'})
    assert "has this name or id" in answer.content.decode()
    assert "<script>nothing" not in answer.content.decode()
    assert found(desk, "") == []
    for odd in ("usr_../../keys", "wh_", "run_" + "z" * 26, "x" * 5000, "\x00", "%", "_"):
        assert [kind for kind, _ in found(desk, odd) if kind == "Id"] == []


@pytest.mark.exhaustive
def test_a_viewer_finds_no_user_and_no_request(
    tracker: Tracker, filled: dict[str, Any], desk_of: Callable[[str], Desk]
) -> None:
    viewer = desk_of("viewer")
    assert found(viewer, "alice@tracker.example") == []
    assert found(viewer, tracker.users["alice"]) == []
    assert found(viewer, "req_01m8ca38x9ehg94x53ta4s31gr") == []
    assert found(viewer, filled["run"]) == [("Id", viewer.url(f"functions/digest/runs/{filled['run']}"))]


@pytest.mark.exhaustive
def test_members_of_other_projects_find_nothing(
    tracker: Tracker, filled: dict[str, Any], make_tracker: Callable[..., Tracker]
) -> None:
    stranger = desk_at(make_tracker(DOCUMENT, "Other"))
    assert Desk(stranger.browser, tracker.project.pk, tracker.environment_id).get("search?q=a").status_code == 404
    their = [tracker.project.pk, tracker.environment_id, tracker.users["alice"], *filled.values()]
    for asked in (*their, "alice@tracker.example", "digest", "crm"):
        assert found(stranger, asked) == [], asked
    assert Run.objects.using(tracker.project.cluster).count() == 1
