"""The forms of the schema: each changes the draft, which is planned and not applied, and shows the API's errors."""

import copy
import json
import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest

from tests.developer_console.conftest import DOCUMENT, Desk
from tests.rows.conftest import Tracker
from tests.support.html_forms import form_values
from tests.support.schema_forms import code, draft_of, save, submit, table_after, text_of

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

BOTH: dict[str, Any] = copy.deepcopy(DOCUMENT)
BOTH["tables"]["tasks"]["indexes"] = [["-title", "owner"]]
BOTH["tables"]["tasks"]["unique"] = [["title", "points"]]
BOTH["tables"]["tasks"]["checks"] = {"named": {"title": {"$ne": ""}}}


def test_a_column_is_added_changed_and_removed(tracker: Tracker, desk: Desk) -> None:
    added = save(desk, code("column", "tasks"), name="due", type="date", null="on", min="2026-01-01", max_length="5")
    assert table_after(added)["columns"]["due"] == {"type": "date", "min": "2026-01-01", "null": True}
    assert "add column tasks.due" in text_of(added)
    draft = draft_of(added)
    form = submit(desk, f"edit {code('column', 'tasks', 'points')}", draft)
    assert 'name="part_min" type="text" value=""' in text_of(form)
    changed = save(desk, code("column", "tasks", "points"), draft, name="points", type="integer", default="3", min="0")
    assert table_after(changed)["columns"]["points"] == {"type": "integer", "default": 3, "min": 0}
    removed = submit(desk, f"remove {code('column', 'tasks', 'done')}", draft)
    assert "done" not in table_after(removed)["columns"]
    assert "drop column tasks.done" in text_of(removed)
    assert "loses data" in text_of(removed)
    assert tracker.get("owner", "/schema").json["version"] == 1


def test_a_rename_keeps_the_data_and_is_made_everywhere(tracker: Tracker, desk: Desk) -> None:
    renamed = save(desk, code("column", "tasks", "title"), BOTH, name="subject", type="text")
    table = table_after(renamed)
    assert table["columns"]["subject"] == {"type": "text", "renamed_from": "title"}
    assert next(iter(table["columns"])) == "subject", "the order stays"
    assert (table["indexes"], table["unique"]) == ([["-subject", "owner"]], [["subject", "points"]])
    assert table["checks"] == {"named": {"subject": {"$ne": ""}}}
    again = save(desk, code("column", "tasks", "owner"), draft_of(renamed), name="author", type="user", null="on")
    read = table_after(again)["rules"]["user"]["read"]
    assert read == {"where": {"author_id": "$user.id"}, "columns": ["*", "-points"]}
    assert "loses data" not in text_of(again)
    back = save(desk, code("column", "tasks", "subject"), draft_of(again), name="title", type="text")
    assert "renamed_from" not in table_after(back)["columns"]["title"]


def test_a_renamed_table_keeps_its_references(tracker: Tracker, desk: Desk) -> None:
    related = save(desk, code("column", "tasks"), name="parent", type="reference", to="tasks", null="on")
    renamed = save(desk, code("table", "tasks"), draft_of(related), name="jobs", id_prefix="job_")
    table = table_after(renamed, "jobs")
    assert (table["renamed_from"], table["id_prefix"]) == ("tasks", "job_")
    assert table["columns"]["parent"]["to"] == "jobs"
    assert list(draft_of(submit(desk, f"remove {code('table', 'jobs')}", draft_of(renamed)))["tables"]) == []


def test_after_a_removal_the_buttons_are_those_of_the_shown_table(desk: Desk) -> None:
    with_notes = copy.deepcopy(DOCUMENT)
    with_notes["tables"]["notes"] = {"columns": {"body": {"type": "text"}}}
    page = submit(desk, f"remove {code('table', 'notes')}", with_notes).content.decode()
    [(part, name)] = re.findall(r'value="remove ([^"]+)"[^>]*aria-label="Remove table (\w+)"', page)
    assert (unescape(part), name) == (code("table", "tasks"), "tasks")


@pytest.mark.exhaustive
def test_the_other_parts_have_forms(tracker: Tracker, desk: Desk) -> None:
    made = save(desk, code("unique", "tasks"), columns="title, owner")
    made = save(desk, code("index", "tasks"), draft_of(made), columns="owner,-created_at")
    made = save(desk, code("check", "tasks"), draft_of(made), name="some", value='{"title": {"$ne": "x"}}')
    made = save(desk, code("condition", "tasks"), draft_of(made), name="mine", value='{"owner_id": "$user.id"}')
    made = save(
        desk, code("rule", "tasks"), draft_of(made), name="user", action="insert", set='{"owner_id": "$user.id"}'
    )
    made = save(desk, code("users"), draft_of(made), name="user", fields="id, name")
    table = table_after(made)
    assert (table["unique"], table["indexes"]) == ([["title", "owner"]], [["owner", "-created_at"]])
    assert table["checks"] == {"some": {"title": {"$ne": "x"}}}
    assert table["conditions"] == {"mine": {"owner_id": "$user.id"}}
    assert table["rules"]["user"]["insert"] == {"set": {"owner_id": "$user.id"}}
    assert draft_of(made)["users"] == {"user": ["id", "name"]}
    for part in (("unique", "tasks", "0"), ("check", "tasks", "some"), ("rule", "tasks", "user", "insert")):
        made = submit(desk, f"remove {code(*part)}", draft_of(made))
    assert not {"unique", "checks"} & table_after(made).keys()
    assert list(table_after(made)["rules"]["user"]) == ["read"]


def test_the_error_of_the_api_is_at_the_field(tracker: Tracker, desk: Desk) -> None:
    assert tracker.post("key", "/rows/tasks", {"title": "old"}).status == 201
    without_value = text_of(save(desk, code("column", "tasks"), name="due", type="date"))
    assert re.search(
        r'id="part-part_backfill-problem"[^>]*>\s*<p><bdi>Existing rows need a value: write', without_value
    )
    refused = save(desk, code("column", "tasks", "title"), name="title", type="text", max_length="many")
    assert refused.status_code == 422
    page = text_of(refused)
    assert re.search(r'id="part-part_max_length"[^>]*value="many"[^>]*aria-invalid="true"', page)
    assert 'id="part-part_max_length-problem"' in page
    assert draft_of(refused)["tables"]["tasks"]["columns"]["title"]["max_length"] == "many"
    assert re.findall(r"<(\w+)[^>]*data-focus", page) == ["fieldset"]
    wrong = save(desk, code("rule", "tasks", "user", "read"), name="user", action="read", where='{"ownr_id": 1}')
    assert wrong.status_code == 422
    assert 'id="part-part_where-problem"' in text_of(wrong)
    broken = save(desk, code("rule", "tasks", "user", "read"), name="user", action="read", where="{")
    assert "This is not JSON" in text_of(broken)
    assert draft_of(broken) == DOCUMENT


FULL: dict[str, Any] = copy.deepcopy(BOTH)
FULL["users"] = {"user": ["id", "name"]}
FULL["tables"]["tasks"]["conditions"] = {"mine": {"owner_id": "$user.id"}}
FULL["tables"]["tasks"]["columns"] |= {
    "price": {"type": "decimal", "precision": 6, "scale": 2, "min": "0.50", "null": True},
    "state": {"type": "enum", "values": ["open", "closed"], "default": "open"},
    "parent": {"type": "reference", "to": "tasks", "null": True},
    "data": {"type": "json", "default": {}},
}
FULL["tables"]["tasks"]["rules"]["editor"] = {
    "insert": {"set": {"owner_id": "$user.id"}, "check": {"title": {"$ne": ""}}},
    "update": {"where": {"$is": "mine"}, "columns": ["title"]},
    "read": [{"where": {"done": True}}, {"where": {"owner_id": "$user.id"}, "columns": ["title"]}],
}
PARTS = (
    ("table", "tasks"), ("column", "tasks"), ("column", "tasks", "", "relation"), ("unique", "tasks"),
    ("index", "tasks"), ("rule", "tasks"), ("condition", "tasks"), ("check", "tasks"), ("users",),
    *(("column", "tasks", name) for name in FULL["tables"]["tasks"]["columns"]), ("unique", "tasks", "0"),
    ("index", "tasks", "0"), ("condition", "tasks", "mine"), ("check", "tasks", "named"), ("users", "", "user"),
    ("rule", "tasks", "user", "read"), *(("rule", "tasks", "editor", name) for name in ("insert", "update", "read")),
)  # fmt: skip


def opened(desk: Desk, *part: str, document: Any = DOCUMENT) -> dict[str, str]:
    """What a browser sends of the page with the form of a part."""
    return form_values(submit(desk, f"edit {code(*part)}", document).content.decode(), "document")


@pytest.mark.exhaustive
def test_an_open_form_stays_and_changes_nothing_by_itself(tracker: Tracker, desk: Desk) -> None:
    for part in PARTS:
        planned = desk.post("schema", opened(desk, *part, document=FULL) | {"action": "plan"})
        assert planned.status_code == 200, part
        assert draft_of(planned) == FULL, part
        assert text_of(planned).count('class="part-form"') == 1, part
        assert "data-focus" not in text_of(planned), "the focus stays at the button"


def test_what_is_typed_into_an_open_form_is_planned_and_not_lost(tracker: Tracker, desk: Desk) -> None:
    typed = opened(desk, "column", "tasks") | {"part_name": "due", "part_type": "date", "part_null": "on"}
    due = {"type": "date", "null": True}
    for action in ("plan", "apply"):
        planned = desk.post("schema", typed | {"action": action})
        assert table_after(planned)["columns"]["due"] == due
        assert "add column tasks.due" in text_of(planned)
        assert ("The column due of tasks was not in the document." in text_of(planned)) == (action == "apply")
        assert 'class="part-form"' not in text_of(planned)
    assert tracker.get("owner", "/schema").json["version"] == 1
    other = desk.post("schema", typed | {"action": f"edit {code('column', 'tasks', 'title')}"})
    assert table_after(other)["columns"]["due"] == due
    assert "Column title of tasks" in text_of(other)
    removed = desk.post("schema", typed | {"action": f"remove {code('column', 'tasks', 'done')}"})
    assert table_after(removed)["columns"].keys() >= {"title", "due"}
    assert "done" not in table_after(removed)["columns"]
    added = desk.post("schema", typed | {"action": "add-table", "table": "lists", "columns": "name text"})
    assert table_after(added)["columns"]["due"] == due
    assert table_after(added, "lists")["columns"] == {"name": {"type": "text"}}
    closed = desk.post("schema", typed | {"action": "close"})
    assert draft_of(closed) == DOCUMENT


def test_a_refused_form_stays_open_whatever_button_is_pressed(tracker: Tracker, desk: Desk) -> None:
    typed = opened(desk, "column", "tasks", "title") | {"part_name": "", "part_max_length": "9"}
    for action in ("plan", "apply", f"edit {code('table', 'tasks')}", f"remove {code('column', 'tasks', 'done')}"):
        refused = desk.post("schema", typed | {"action": action})
        assert refused.status_code == 422, action
        assert draft_of(refused) == DOCUMENT
        assert re.search(r'name="part_max_length"[^>]*value="9"', text_of(refused))
        assert 'id="part-part_name-problem"' in text_of(refused)
    removed = desk.post("schema", typed | {"action": f"remove {code('column', 'tasks', 'title')}"})
    assert "title" not in draft_of(removed)["tables"]["tasks"]["columns"]
    wrong = desk.post("schema", typed | {"action": "plan", "part_name": "title", "part_max_length": "many"})
    assert wrong.status_code == 422
    assert 'id="part-part_max_length-problem"' in text_of(wrong)


def with_json(sent: dict[str, str], change: Callable[[dict[str, Any]], Any]) -> dict[str, str]:
    """What a browser sends after the table `tasks` was changed in the JSON beside the form."""
    draft = json.loads(sent["document"])
    change(draft["tables"]["tasks"])
    return sent | {"document": json.dumps(draft)}


def again(answer: Any, **typed: str) -> dict[str, str]:
    return form_values(answer.content.decode(), "document") | typed


@pytest.mark.parametrize("action", ["plan", "apply", "save", f"edit {code('column', 'tasks', 'points')}"])
def test_an_open_form_follows_the_json(tracker: Tracker, desk: Desk, action: str) -> None:
    sent = opened(desk, "column", "tasks", "title")
    longer = with_json(sent, lambda table: table["columns"]["title"].update(max_length=200))
    planned = desk.post("schema", longer | {"action": action})
    assert table_after(planned)["columns"]["title"] == {"type": "text", "max_length": 200}
    if action in ("plan", "apply"):
        assert again(planned)["part_max_length"] == "200"
    gone = with_json(opened(desk, "column", "tasks", "done"), lambda table: table["columns"].pop("done"))
    planned = desk.post("schema", gone | {"action": action})
    assert "done" not in table_after(planned)["columns"]
    wrong = with_json(sent, lambda table: table["columns"]["title"].update(max_length="many"))
    refused = desk.post("schema", wrong | {"action": "plan"})
    assert again(refused)["part_max_length"] == "many"
    assert 'id="part-part_max_length-problem"' in text_of(refused)


@pytest.mark.parametrize("action", ["plan", "apply", "save", f"remove {code('column', 'tasks', 'done')}"])
def test_what_changed_in_the_form_and_in_the_json_is_kept_in_both(tracker: Tracker, desk: Desk, action: str) -> None:
    sent = opened(desk, "column", "tasks", "title") | {"part_min_length": "2", "action": action}
    sent = with_json(sent, lambda table: table["columns"]["title"].update(max_length=200))
    refused = desk.post("schema", sent)
    assert refused.status_code == 412
    assert "This part was changed in the JSON and in the form." in text_of(refused)
    assert draft_of(refused) == json.loads(sent["document"])
    kept = again(refused)
    assert (kept["part_min_length"], kept["part_max_length"]) == ("2", "")
    used = desk.post("schema", kept | {"action": action})
    assert table_after(used)["columns"]["title"] == {"type": "text", "min_length": 2}
    closed = desk.post("schema", kept | {"action": "close"})
    assert draft_of(closed) == json.loads(sent["document"])


def test_the_form_of_a_part_that_is_gone_is_kept(tracker: Tracker, desk: Desk) -> None:
    sent = opened(desk, "column", "tasks", "title") | {"part_max_length": "9", "action": "plan"}
    refused = desk.post("schema", with_json(sent, lambda table: table["columns"].pop("title")))
    assert refused.status_code == 412
    assert "This part is gone from the JSON, but was changed in the form." in text_of(refused)
    assert "title" not in draft_of(refused)["tables"]["tasks"]["columns"]
    kept = again(refused)
    assert kept["part_max_length"] == "9"
    assert table_after(desk.post("schema", kept | {"action": "plan"}))["columns"]["title"]["max_length"] == 9
    without = {**sent, "document": '{"tables": {}}'}
    for _ in range(2):
        refused = desk.post("schema", without)
        assert refused.status_code in (412, 422)
        assert draft_of(refused) == {"tables": {}}
        without = again(refused, action="plan")
        assert without["part_max_length"] == "9"


def test_an_error_of_the_plan_is_corrected_in_the_json(tracker: Tracker, desk: Desk) -> None:
    sent = opened(desk, "rule", "tasks", "user", "read")
    sent |= {"part_rows": "json", "part_where": '{"ownr_id":1}', "action": "plan"}
    refused = desk.post("schema", sent)
    assert refused.status_code == 422
    kept = again(refused)
    assert kept["part_where"] == '{"ownr_id":1}'
    read = {"where": {"done": True}}
    planned = desk.post("schema", with_json(kept, lambda table: table["rules"]["user"].update(read=read)))
    assert table_after(planned)["rules"]["user"]["read"] == read


def test_the_form_of_a_table_changes_only_what_it_shows(tracker: Tracker, desk: Desk) -> None:
    typed = opened(desk, "table", "tasks") | {"part_id_prefix": "task_", "action": "plan"}
    planned = desk.post("schema", with_json(typed, lambda table: table["columns"].pop("done")))
    assert table_after(planned)["id_prefix"] == "task_"
    assert "done" not in table_after(planned)["columns"]


def test_a_button_follows_the_renamed_table(tracker: Tracker, desk: Desk) -> None:
    typed = opened(desk, "table", "tasks") | {"part_name": "jobs"}
    removed = desk.post("schema", typed | {"action": f"remove {code('column', 'tasks', 'done')}"})
    assert "done" not in table_after(removed, "jobs")["columns"]
    edited = desk.post("schema", typed | {"action": f"edit {code('column', 'tasks', 'done')}"})
    assert table_after(edited, "jobs")["renamed_from"] == "tasks"
    assert again(edited)["part"] == code("column", "jobs", "done")


def test_what_was_typed_is_kept_while_the_json_cannot_be_read(tracker: Tracker, desk: Desk) -> None:
    typed = opened(desk, "column", "tasks") | {"part_name": "due", "part_type": "date", "part_null": "on"}
    typed |= {"table": "lists", "columns": "name text\r\nsize integer", "action": "plan"}
    unreadable = desk.post("schema", typed | {"document": "{"})
    assert unreadable.status_code == 422
    assert "What was typed into the form is kept." in text_of(unreadable)
    planned = desk.post("schema", again(unreadable, document=typed["document"], action="plan"))
    assert table_after(planned)["columns"]["due"] == {"type": "date", "null": True}
    assert list(table_after(planned, "lists")["columns"]) == ["name", "size"]
    closed = desk.post("schema", typed | {"document": "{", "action": "close"})
    assert "part" not in again(closed)


def test_buttons_name_their_part(desk: Desk) -> None:
    page = text_of(submit(desk, f"edit {code('index', 'tasks', '0')}", FULL))
    for title in (
        "index -title, owner of tasks", "unique constraint title, points of tasks", "rule editor insert of tasks",
        "fields of users, role user", "column price of tasks", "check named of tasks",
    ):  # fmt: skip
        for verb in ("Edit", "Remove"):
            assert f'aria-label="{verb} {title}"' in page
    assert "<legend>Index -title, owner of tasks</legend>" in page


def test_a_link_opens_the_form_of_a_new_column(desk_of: Callable[[str], Desk]) -> None:
    owner, viewer = desk_of("owner"), desk_of("viewer")
    assert "?table=tasks&add=column" in text_of(owner.get("tables/tasks"))
    assert "<legend>New column of tasks</legend>" in text_of(owner.get("schema?table=tasks&add=column"))
    assert 'name="part"' not in text_of(owner.get("schema?table=none&add=column"))
    assert "add=column" not in text_of(viewer.get("tables/tasks"))
    assert "part-form" not in text_of(viewer.get("schema?table=tasks&add=column"))


@pytest.mark.parametrize(
    ("part", "values"),
    [
        (("column", "tasks"), {"name": "title", "type": "text"}),
        (("column", "tasks"), {"name": "", "type": "text"}),
        (("column", "nothing"), {"name": "x", "type": "text"}),
        (("rule", "tasks"), {"name": "user", "action": "read"}),
        (("table", "nothing"), {"name": "x"}),
        (("secret", "tasks"), {"name": "x"}),
    ],
)
def test_a_part_that_cannot_be_saved_changes_nothing(
    tracker: Tracker, desk: Desk, part: tuple[str, ...], values: dict[str, str]
) -> None:
    refused = save(desk, code(*part), **values)
    assert refused.status_code == 422
    assert 'role="alert"' in text_of(refused)
    assert draft_of(refused) == DOCUMENT
    assert tracker.get("owner", "/schema").json["version"] == 1


@pytest.mark.parametrize("action", ["save", "edit x", "remove []", 'edit ["column",1,2,3]', "open null", "save x"])
def test_a_made_up_button_is_refused(desk: Desk, action: str) -> None:
    assert submit(desk, action).status_code == 422


@pytest.mark.parametrize(
    "document", ["{", "[]", '{"tables": []}', '{"tables": {"tasks": {"columns": 1, "rules": [2]}}}']
)
def test_a_broken_draft_breaks_no_form(desk: Desk, document: str) -> None:
    for action in (
        f"edit {code('column', 'tasks')}",
        "save",
        f"remove {code('rule', 'tasks', 'user', 'read')}",
        "plan",
    ):
        values = {
            "action": action,
            "version": "1",
            "document": document,
            "part": code("unique", "tasks"),
            "part_name": "x",
        }
        answer = desk.post("schema", {**values, "part_columns": "title"})
        assert answer.status_code in (200, 400, 422), (action, document)


def test_names_of_a_draft_are_text(desk: Desk) -> None:
    evil = '"><script>alert(1)</script>\u202e'
    draft = {"tables": {evil: {"columns": {evil: {"type": evil}}, "checks": {evil: {evil: evil}}}}}
    page = submit(desk, f"edit {code('column', evil, evil)}", draft).content.decode()
    assert "<script>alert" not in page


def test_a_viewer_sees_the_parts_and_has_no_form(tracker: Tracker, desk_of: Callable[[str], Desk]) -> None:
    viewer = desk_of("viewer")
    page = text_of(viewer.get("schema", data={"table": "tasks"}))
    assert "user: read" in page
    assert "Add a column" not in page
    refused = save(viewer, code("column", "tasks"), name="due", type="date")
    assert refused.status_code == 403
    assert tracker.get("owner", "/schema").json["version"] == 1
