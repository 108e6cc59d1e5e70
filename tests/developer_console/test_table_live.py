"""What the scripts of the grid ask for: the stream of changes and the pickers, by the member's permissions alone."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from accounts import audit
from platform_site.developer_console.tables.live import MAX_RESULTS
from projects import services
from tests.developer_console.conftest import DOCUMENT, Desk, member, without_token
from tests.rows.conftest import Tracker

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

RELATED: dict[str, Any] = {
    "tables": {
        **DOCUMENT["tables"],
        "notes": {"columns": {"task": {"type": "reference", "to": "tasks"}, "at": {"type": "date", "null": True}}},
    }
}


def picked(desk: Desk, path: str, asked: str = "") -> list[dict[str, str]]:
    answer = desk.get(path, data={"q": asked})
    assert answer.status_code == 200
    found: list[dict[str, str]] = answer.json()["data"]
    return found


def relate(tracker: Tracker) -> dict[str, Any]:
    assert tracker.api.put(
        "/v1/schema", token=tracker.tokens["owner"], environment=tracker.environment_id, json={"document": RELATED}
    ).status == 200  # fmt: skip
    made = [tracker.post("owner", "/rows/tasks", {"title": title}).json for title in ("Bread", "Butter", "50%")]
    return {row["title"]: row["id"] for row in made}


def test_rows_are_found_by_text_and_id(tracker: Tracker, desk: Desk) -> None:
    ids = relate(tracker)
    path = "tables/notes/pick/task_id"
    assert {each["label"] for each in picked(desk, path)} == set(ids)
    assert picked(desk, path, "bRe") == [{"id": ids["Bread"], "label": "Bread"}]
    assert [each["label"] for each in picked(desk, path, "%")] == ["50%"]
    assert [each["label"] for each in picked(desk, path, ids["Butter"])] == ["Butter"]
    assert picked(desk, path, '"}]}') == []
    for wrong in ("tables/notes/pick/at", "tables/notes/pick/nothing", "tables/nothing/pick/task_id"):
        assert desk.get(wrong).status_code == 404


def test_what_is_the_same_as_the_text_comes_first(tracker: Tracker, desk: Desk) -> None:
    """A picker takes the first."""
    relate(tracker)
    for title in (*(f"Anna {number}" for number in range(MAX_RESULTS)), "Anna"):
        last = tracker.post("owner", "/rows/tasks", {"title": title}).json
    assert picked(desk, "tables/notes/pick/task_id", "Anna")[0] == {"id": last["id"], "label": "Anna"}


def test_users_are_found_by_email_and_not_by_viewers(
    tracker: Tracker, desk: Desk, desk_of: Callable[[str], Desk]
) -> None:
    path = "tables/tasks/pick/owner_id"
    assert picked(desk, path, "alice") == [{"id": tracker.users["alice"], "label": "alice@tracker.example"}]
    assert len(picked(desk, path)) == len(tracker.users)
    assert picked(desk_of("viewer"), path, "alice") == []


def test_a_stream_is_the_callers(tracker: Tracker, desk: Desk, desk_of: Callable[[str], Desk]) -> None:
    for each in (desk, desk_of("viewer")):
        stream = each.post("tables/tasks/live?where=" + json.dumps({"done": False}), {})
        assert (stream.status_code, stream["Content-Type"].split(";")[0]) == (200, "text/event-stream")
        stream.queue.close()
        stream.close()
    assert desk.post("tables/nothing/live", {}).status_code == 404
    assert desk.post("tables/tasks/live?where=x", {}).status_code == 422
    assert desk.post('tables/tasks/live?where={"nothing":1}', {}).status_code == 422
    assert desk.get("tables/tasks/live").status_code == 405


def test_no_stream_without_token_or_membership(tracker: Tracker, desk: Desk) -> None:
    assert without_token(desk).post("tables/tasks/live", {}).status_code == 403
    owner, viewer = member(tracker.project, "owner"), member(tracker.project, "viewer")
    services.change_member(tracker.project.pk, viewer.pk, role="owner", actor=audit.SYSTEM)
    services.remove_member(tracker.project.pk, owner.pk, actor=audit.SYSTEM)
    assert desk.post("tables/tasks/live", {}).status_code == 404
    assert desk.get("tables/tasks/pick/owner_id").status_code == 404
