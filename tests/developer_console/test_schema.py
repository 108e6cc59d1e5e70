"""Schema: planned, applied, confirmed by name, reverted; its errors at their lines; and attacks on it."""

import copy
import json
import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest

from tests.developer_console.conftest import DOCUMENT, Desk
from tests.rows.conftest import Tracker

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

LARGER = copy.deepcopy(DOCUMENT)
LARGER["tables"]["tasks"]["columns"]["note"] = {"type": "text", "null": True}
SMALLER = copy.deepcopy(DOCUMENT)
del SMALLER["tables"]["tasks"]["columns"]["done"]


def text_of(answer: Any) -> str:
    return unescape(answer.content.decode())


def hidden(answer: Any, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]*)"', answer.content.decode())
    return found[1] if found else ""


def plan(desk: Desk, document: Any, **more: Any) -> Any:
    text = document if isinstance(document, str) else json.dumps(document, indent=2)
    version = hidden(desk.get("schema"), "version")
    return desk.post("schema", {"action": "plan", "document": text, "version": version, **more})


def apply(desk: Desk, document: Any, planned: Any, **more: Any) -> Any:
    text = json.dumps(document, indent=2)
    values = {"document": text, "version": hidden(planned, "version"), "planned": hidden(planned, "planned")}
    return desk.post("schema", {"action": "apply", **values, **more})


def version_of(tracker: Tracker) -> int:
    return int(tracker.get("owner", "/schema").json["version"])


def test_a_change_is_planned_and_then_applied(tracker: Tracker, desk: Desk) -> None:
    planned = plan(desk, LARGER)
    assert "add column tasks.note" in text_of(planned)
    assert version_of(tracker) == 1
    applied = apply(desk, LARGER, planned)
    assert "The schema is at version 2." in text_of(applied)
    assert re.search(r'<br><bdi title="usr_\w+">owner@\S+</bdi>', text_of(applied))
    assert version_of(tracker) == 2


def test_what_was_not_planned_is_not_applied(tracker: Tracker, desk: Desk) -> None:
    answer = apply(desk, SMALLER, plan(desk, LARGER))
    assert "This is the new plan." in text_of(answer)
    assert "drop column tasks.done" in text_of(answer)
    assert version_of(tracker) == 1


def test_losing_data_is_confirmed_by_name(tracker: Tracker, desk: Desk) -> None:
    planned = plan(desk, SMALLER)
    assert "loses data" in text_of(planned)
    refused = apply(desk, SMALLER, planned, confirm="drop everything")
    assert 'role="alert"' in text_of(refused)
    assert 'name="confirm" value="drop everything"' in text_of(refused)
    assert "type each as it is written below" in text_of(refused)
    assert "`" not in text_of(refused)
    assert version_of(tracker) == 1
    applied = apply(desk, SMALLER, refused, confirm="drop column tasks.done")
    assert "The schema is at version 2." in text_of(applied)


@pytest.mark.exhaustive
def test_of_two_tabs_the_second_plans_again(tracker: Tracker, desk: Desk) -> None:
    first, second = plan(desk, LARGER), plan(desk, SMALLER)
    apply(desk, LARGER, first)
    refused = apply(desk, SMALLER, second, confirm="drop column tasks.done")
    assert refused.status_code == 412
    assert "Version 2 was applied meanwhile. Plan again" in text_of(refused)
    assert "done" in tracker.get("owner", "/schema").json["document"]["tables"]["tasks"]["columns"]
    both = ["drop column tasks.done", "drop column tasks.note"]
    again = plan(desk, SMALLER, version=hidden(refused, "version"))
    assert sorted(re.findall(r"<code>(drop [^<]*)</code>", text_of(again))) == both
    assert "The schema is at version 3." in text_of(apply(desk, SMALLER, again, confirm=both))


@pytest.mark.exhaustive
def test_going_back_is_planned_too(tracker: Tracker, desk: Desk) -> None:
    apply(desk, LARGER, plan(desk, LARGER))
    planned = desk.post("schema", {"action": "plan", "revert": "1", "version": "2"})
    assert "drop column tasks.note" in text_of(planned)
    assert version_of(tracker) == 2
    values = {"action": "apply", "revert": "1", "version": "2", "planned": hidden(planned, "planned")}
    applied = desk.post("schema", {**values, "confirm": "drop column tasks.note"})
    assert "The schema is at version 3." in text_of(applied)
    assert "Back to version 1" in text_of(applied)
    for wrong in ("99", "x", "-1", "1" * 30):
        assert desk.post("schema", {"action": "plan", "revert": wrong, "version": "3"}).status_code in (404, 422)


def test_going_back_asks_for_the_values_of_existing_rows(tracker: Tracker, desk: Desk) -> None:
    priced = copy.deepcopy(DOCUMENT)
    priced["tables"]["tasks"]["columns"]["price"] = {"type": "integer"}
    apply(desk, priced, plan(desk, priced))
    apply(desk, DOCUMENT, plan(desk, DOCUMENT), confirm="drop column tasks.price")
    assert version_of(tracker) == 3
    assert tracker.post("key", "/rows/tasks", {"title": "Tea"}).status == 201
    refused = desk.post("schema", {"action": "plan", "revert": "2", "version": "3"})
    assert refused.status_code == 422
    assert 'name="backfill.tasks.price"' in text_of(refused)
    filled = {"revert": "2", "version": "3", "backfill.tasks.price": "<7>"}
    wrong = desk.post("schema", {"action": "plan", **filled})
    assert wrong.status_code == 422
    assert 'name="backfill.tasks.price" value="&lt;7&gt;"' in wrong.content.decode()
    filled["backfill.tasks.price"] = "7"
    planned = desk.post("schema", {"action": "plan", **filled})
    assert "add column tasks.price" in text_of(planned)
    mark = hidden(planned, "planned")
    other = desk.post("schema", {"action": "apply", **filled, "backfill.tasks.price": "8", "planned": mark})
    assert "The document has changed since its plan." in text_of(other)
    assert version_of(tracker) == 3
    applied = desk.post("schema", {"action": "apply", **filled, "planned": mark})
    assert "The schema is at version 4." in text_of(applied)
    assert 'name="backfill.' not in text_of(applied)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ('{"tables": {\n  "tasks"\n}}', "Line 3, column 1"),
        ('{"tables": {}}, "confirm": ["drop table tasks"]', "Line 1"),
        ('{"tables": {}, "tables": {}}', "Duplicate key"),
        ("", "Line 1"),
        ('{"tables": 0.1000000000000000055}', "The number 0.1000000000000000055 would be rounded"),
        ('{"tables": NaN}', "Line 1, column 12"),
        ("[]", "The document must be an object."),
        ("[" * 3000 + "]" * 3000, ""),
    ],
)
def test_a_document_that_cannot_be_read_changes_nothing(tracker: Tracker, desk: Desk, document: str, said: str) -> None:
    answer = plan(desk, document)
    assert answer.status_code in (400, 422)
    assert said in text_of(answer)
    assert document in text_of(answer), "what was written is kept"
    assert version_of(tracker) == 1


def test_an_error_names_its_line(desk: Desk) -> None:
    wrong = copy.deepcopy(DOCUMENT)
    wrong["tables"]["tasks"]["columns"]["points"]["type"] = "number"
    page = text_of(plan(desk, wrong))
    text = json.dumps(wrong, indent=2).splitlines()
    line = next(number for number, each in enumerate(text, 1) if '"points"' in each)
    assert re.search(rf'data-line="({line}|{line + 1})"', page)


def test_the_plan_counts_what_a_rule_shows_and_hides(tracker: Tracker, desk: Desk) -> None:
    document = copy.deepcopy(DOCUMENT)
    document["tables"]["tasks"]["rules"]["user"]["read"] = {"where": {"done": True}}
    page = " ".join(text_of(plan(desk, document)).split())
    assert "Impact of the rules" in page
    assert re.search(r"<code>tasks</code>, <bdi>alice@\S+ \(role user\)</bdi>: \d+ more rows?, \d+ fewer", page)
    assert "Impact of the rules" not in text_of(plan(desk, LARGER))


def test_a_table_is_added_by_form(desk: Desk) -> None:
    columns = (
        "title text\ndue date?\ntask reference tasks\nparent reference(notes)?\ntotal decimal(10, 2)?\n"
        "state enum (open, in progress)\n"
    )
    planned = plan(desk, DOCUMENT, action="add-table", table="notes", columns=columns)
    assert "create table notes" in text_of(planned)
    made = json.loads(re.search(r"<textarea id=\"document\"[^>]*>(.*?)</textarea>", text_of(planned), re.S)[1])  # type: ignore[index]
    assert made["tables"]["notes"]["columns"] == {
        "title": {"type": "text"},
        "due": {"type": "date", "null": True},
        "task": {"type": "reference", "to": "tasks"},
        "parent": {"type": "reference", "to": "notes", "null": True},
        "total": {"type": "decimal", "precision": 10, "scale": 2, "null": True},
        "state": {"type": "enum", "values": ["open", "in progress"]},
    }
    assert 'name="table" type="text" value=""' in text_of(planned)


@pytest.mark.parametrize("action", ["plan", "apply"])
def test_a_table_that_was_only_typed_is_planned(tracker: Tracker, desk: Desk, action: str) -> None:
    typed = {"action": action, "table": "notes", "columns": "title text"}
    planned = apply(desk, LARGER, plan(desk, LARGER), **typed)
    for operation in ("add column tasks.note", "create table notes"):
        assert operation in text_of(planned)
    assert ("The table notes was not in the document." in text_of(planned)) == (action == "apply")
    assert version_of(tracker) == 1


@pytest.mark.parametrize(
    ("table", "columns", "field", "said"),
    [
        ("tasks", "a text", "table", "There is a table tasks already."),
        ("", "a text", "table", "Write a name."),
        ("Not A Name", "a text", "table", "name"),
        ("notes", "only_a_name", "columns", "only_a_name: write a name and a type"),
        ("notes", "a text\na text", "columns", "a text: there is a column a already."),
        ("notes", "a text\ntotal decimal", "columns", "total.precision: "),
        ("notes", "a text\nstate enum", "columns", "state.values: "),
        ("notes", "a number", "columns", "a.type: "),
        ("notes", "a text(50)", "columns", "a text(50): write text alone; its Edit button sets more."),
        ("notes", "a decimal(10,2,5)", "columns", "a decimal(10,2,5): write decimal(10,2)."),
        ("notes", "a reference(tasks,notes)", "columns", "a reference(tasks,notes): write reference(table)."),
        ("notes", "a number(5)", "columns", "a.type: must be one of text, integer"),
    ],
)
def test_a_refused_table_keeps_its_form(
    tracker: Tracker, desk: Desk, table: str, columns: str, field: str, said: str
) -> None:
    refused = plan(desk, DOCUMENT, action="add-table", table=table, columns=columns)
    assert refused.status_code == 422
    page = text_of(refused)
    assert re.search(rf'id="new-table-{field}-problem"[^>]*>\s*<p><bdi>[^<]*{re.escape(said)}', page)
    assert f'name="table" type="text" value="{table}"' in page
    assert f">\n{columns}</textarea>" in page
    assert "data-line" not in page, "the document has no line of the table"
    assert version_of(tracker) == 1
    kept = plan(desk, DOCUMENT, table=table, columns=columns)
    assert f">\n{columns}</textarea>" in text_of(kept)


@pytest.mark.parametrize(("name", "said"), [("", "Write a name."), ("A-b", "must be 1-48"), ("tasks", "already")])
def test_all_errors_of_a_new_table_come_at_once(desk: Desk, name: str, said: str) -> None:
    columns = "a text(5)\nb strin\nlist reference(nothing)\nid text"
    page = text_of(plan(desk, DOCUMENT, action="add-table", table=name, columns=columns))
    assert re.search(rf'id="new-table-table-problem"[^>]*>\s*<p><bdi>[^<]*{said}', page)
    found = re.search(r'id="new-table-columns-problem"[^>]*>(.*?)</div>', page, re.DOTALL)
    assert found
    errors = re.findall("<bdi>([^:]+):", found[1])
    assert errors == ["a text(5)", "b.type", "id", "list.to"]
    assert "new_table_0" not in page


def test_a_viewer_reads_it_and_changes_nothing(tracker: Tracker, desk_of: Callable[[str], Desk]) -> None:
    viewer = desk_of("viewer")
    page = text_of(viewer.get("schema"))
    assert '"tasks"' in page
    assert "Apply" not in page
    assert plan(viewer, LARGER).status_code == 403
    assert viewer.post("schema", {"action": "plan", "revert": "0"}).status_code == 403
    assert version_of(tracker) == 1
