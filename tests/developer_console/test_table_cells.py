"""What cells of the grid show: the text of referenced rows, which the member may read; times."""

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.utils.html import escape

from platform_site.developer_console.api_calls import ApiClient
from tests.developer_console.conftest import Desk
from tests.rows.conftest import Tracker
from tests.support.statements import counted

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


def relate(tracker: Tracker, **rules: Any) -> None:
    """Notes that refer to tasks, of which members read what `rules` says."""
    columns = {"size": {"type": "integer", "null": True}, "title": {"type": "text"}, "about": {"type": "text"}}
    tasks = {"columns": columns, "rules": {"member": rules} if rules else {}}
    notes = {
        "columns": {"task": {"type": "reference", "to": "tasks", "null": True}, "at": {"type": "date", "null": True}}
    }
    tracker.apply({"tables": {"tasks": tasks, "notes": notes}})


def add_note(tracker: Tracker, title: str, about: str = "") -> str:
    """The id of the task that a new note refers to."""
    task = tracker.post("key", "/rows/tasks", {"title": title, "about": about})
    assert task.status == 201
    task_id = str(task.json["id"])
    assert tracker.post("key", "/rows/notes", {"task_id": task_id}).status == 201
    return task_id


def shown(desk: Desk, key: str = "task_id", **asked: str) -> dict[str, str]:
    """The texts of the cells of a column, by their values."""
    page = desk.get("tables/notes", data=asked).content.decode()
    cells = re.findall(rf'<td[^>]*data-key="{key}"[^>]*>.*?</td>', page)
    return {
        unescape(re.search('data-value="([^"]*)"', cell)[1]): re.search("<bdi>(.*?)</bdi>", cell)[1]  # type: ignore[index]
        for cell in cells
        if "<bdi>" in cell
    }


def test_a_reference_shows_the_first_text_of_its_row(
    tracker: Tracker, desk: Desk, desk_of: Callable[[str], Desk]
) -> None:
    relate(tracker)
    evil = '"><script>alert(1)</script>\u202e'
    bread, attack, empty = add_note(tracker, "Bread", "to bake"), add_note(tracker, evil), add_note(tracker, "")
    for each in (desk, desk_of("viewer")):
        assert shown(each) == {bread: "Bread", attack: escape(evil), empty: empty}
    page = desk.get("tables/notes").content.decode()
    assert f'title="{bread}"' in page
    assert 'aria-label="Row Bread"' in page


def test_a_row_that_the_member_may_not_read_stays_an_id(tracker: Tracker, desk: Desk) -> None:
    relate(tracker, read={"where": {"title": "Bread"}})
    bread, butter = add_note(tracker, "Bread"), add_note(tracker, "Butter")
    assert shown(desk) == {bread: "Bread", butter: butter}
    relate(tracker, read={"columns": ["about"]})
    cheese = add_note(tracker, "Cheese", "of goats")
    assert shown(desk)[cheese] == "of goats", "a hidden column gives no text"
    relate(tracker, insert={})
    assert shown(desk)[bread] == bread, "no rule to read"


def test_a_user_is_shown_by_email_or_name_to_members_who_may_read_users(
    tracker: Tracker, desk: Desk, desk_of: Callable[[str], Desk]
) -> None:
    tracker.apply({"tables": {"notes": {"columns": {"author": {"type": "user", "null": True}}}}})
    alice = tracker.users["alice"]
    for author in (alice, None):
        assert tracker.post("key", "/rows/notes", {"author_id": author}).status == 201
    assert shown(desk, "author_id") == {alice: "alice@tracker.example"}
    page = desk.get("tables/notes").content.decode()
    assert f'href="{desk.url(f"auth/users/{alice}")}" aria-label="User alice@tracker.example"' in page
    picked = desk.get("tables/notes/pick/author_id", data={"q": alice}).json()["data"]
    assert picked == [{"id": alice, "label": "alice@tracker.example"}]
    viewer = desk_of("viewer")
    assert shown(viewer, "author_id") == {alice: alice}, "viewers may not list users"
    assert "auth/users/" not in viewer.get("tables/notes").content.decode()


def test_a_hidden_column_costs_no_call_and_is_not_searched(
    tracker: Tracker, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    relate(tracker, read={"columns": ["about"]}, insert={})
    cheese = add_note(tracker, "Cheese", "of goats")
    asked: list[str] = []
    respond = ApiClient.respond

    def noted(client: ApiClient, method: str, path: str, body: bytes, **more: Any) -> Any:
        asked.append(path)
        return respond(client, method, path, body, **more)

    monkeypatch.setattr(ApiClient, "respond", noted)
    assert shown(desk)[cheese] == "of goats"
    assert asked.count("/v1/rows/tasks") == 1
    for text, expected in (("goats", [{"id": cheese, "label": "of goats"}]), ("Cheese", [])):
        assert desk.get("tables/notes/pick/task_id", data={"q": text}).json()["data"] == expected


@pytest.mark.exhaustive
def test_labels_cost_no_statement_for_each_row(tracker: Tracker, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    relate(tracker)
    add_note(tracker, "first")
    desk.get("tables/notes")  # fills caches
    with counted(monkeypatch) as few:
        desk.get("tables/notes")
    for number in range(20):
        add_note(tracker, f"{number}")
    desk.get("tables/notes")
    with counted(monkeypatch) as many:
        assert len(shown(desk)) == 21
    assert len(many) == len(few)


def test_times_are_shown_to_the_second_and_edited_whole(tracker: Tracker, desk: Desk) -> None:
    relate(tracker)
    add_note(tracker, "Bread")
    whole = tracker.get("owner", "/rows/notes").json["data"][0]["created_at"]
    assert shown(desk, "created_at") == {whole: f"{whole[:10]} {whole[11:19]}"}
    assert f'title="{whole}"' in desk.get("tables/notes").content.decode()
