"""Each kind of change: the catalog it leaves is a fresh one's, rows stay, and what does not fit is refused whole."""

import json
import random
from typing import Any

import pytest
from django.db import DatabaseError, connections, transaction
from django.db.migrations.operations import RemoveField
from django.db.migrations.state import ModelState

from rows.migrate import apply
from rows.migrate.planning import planner
from rows.schema import values
from rows.schema.identifiers import SYSTEM_COLUMNS
from rows.schema.model import EMPTY, InvalidDocument, Schema
from rows.schema.parser import parse
from tests.support import catalog
from tests.support.catalog import change, make, run, schema

pytestmark = pytest.mark.django_db(databases="__all__")

TEXT = {"type": "text"}
LISTS = {"name": {"type": "text", "max_length": 100}}
TO_LISTS = {"type": "reference", "to": "lists", "on_delete": "cascade"}


def tracker(**tasks: Any) -> Schema:
    """Lists, and tasks with these columns besides `title` and `list`, or with a whole table's settings."""
    table = tasks if "columns" in tasks else {"columns": tasks}
    columns = {"title": {"type": "text", "max_length": 200}, "list": TO_LISTS, **table["columns"]}
    return schema(lists=LISTS, tasks={**table, "columns": columns})


def with_rows(name: str, first: Schema) -> None:
    make(name, first)
    run(name, "INSERT INTO lists (id, name) VALUES ('l1', 'Home'), ('l2', 'Work')")
    run(name, "INSERT INTO tasks (id, title, list_id) SELECT 't' || n, 'Task ' || n, 'l1' FROM generate_series(1, 3) n")


CHANGES: dict[str, tuple[Schema, Schema]] = {
    "create a table": (schema(lists=LISTS), tracker()),
    "drop a table": (tracker(), schema(lists=LISTS)),
    "drop the table pointed to": (tracker(), schema(tasks={"title": {"type": "text", "max_length": 200}})),
    "add a column": (tracker(), tracker(done={"type": "boolean", "default": False})),
    "add a column that may be null": (tracker(), tracker(due_on={"type": "date", "null": True})),
    "drop a column": (tracker(note={"type": "json", "default": []}), tracker()),
    "lengthen a text": (tracker(note={"type": "text", "max_length": 5, "default": ""}), tracker(note={**TEXT, "default": ""})),
    "change a default": (tracker(n={"type": "integer", "default": 1}), tracker(n={"type": "integer", "default": 2})),
    "drop a default": (tracker(n={"type": "integer", "default": 1}), tracker(n={"type": "integer"})),
    "add values to an enum": (
        tracker(s={"type": "enum", "values": ["a"], "default": "a"}),
        tracker(s={"type": "enum", "values": ["a", "b"], "default": "b"}),
    ),
    "turn an enum into text": (tracker(s={"type": "enum", "values": ["a"], "default": "a"}), tracker(s={**TEXT, "default": "x"})),
    "widen a decimal": (
        tracker(p={"type": "decimal", "precision": 4, "scale": 1, "default": "1.5"}),
        tracker(p={"type": "decimal", "precision": 9, "scale": 3, "default": "1.5"}),
    ),
    "turn a number into text": (tracker(n={"type": "integer", "default": 7}), tracker(n={**TEXT, "default": "7"})),
    "allow null": (tracker(n={"type": "integer", "default": 7}), tracker(n={"type": "integer", "null": True})),
    "forbid null": (tracker(n={"type": "integer", "null": True}), tracker(n={"type": "integer", "default": 7})),
    "rename a table": (tracker(), parse({"tables": {"lists": {"columns": {**LISTS}}, "jobs": {
        "renamed_from": "tasks", "columns": {"title": {"type": "text", "max_length": 200}, "list": TO_LISTS}}}})),
    "rename a column and change it": (
        tracker(note={"type": "text", "default": "x"}),
        tracker(remark={"type": "text", "max_length": 9, "null": True, "renamed_from": "note"}),
    ),
    "rename a reference": (
        tracker(),
        schema(lists=LISTS, tasks={"title": {"type": "text", "max_length": 200}, "project": {**TO_LISTS, "renamed_from": "list"}}),
    ),
    "rename the table pointed to": (
        tracker(),
        schema(projects={"renamed_from": "lists", "columns": LISTS},
               tasks={"title": {"type": "text", "max_length": 200}, "list": {**TO_LISTS, "to": "projects"}}),
    ),
    "change what deleting does": (
        tracker(),
        schema(lists=LISTS, tasks={"title": {"type": "text", "max_length": 200}, "list": {**TO_LISTS, "on_delete": "restrict"}}),
    ),
    "turn a reference into text": (
        tracker(),
        schema(lists=LISTS, tasks={"title": {"type": "text", "max_length": 200}, "list_id": TEXT}),
    ),
    "turn a user into text": (tracker(owner={"type": "user", "null": True}), tracker(owner_id={**TEXT, "null": True})),
    "add a unique": (tracker(), tracker(columns={}, unique=[["list", "title"]])),
    "drop a unique": (tracker(columns={}, unique=[["list", "title"]]), tracker()),
    "add an index": (tracker(), tracker(columns={}, indexes=[["list", "-created_at"]])),
    "change where nulls go": (
        tracker(columns={"n": {"type": "integer", "null": True}}, indexes=[["-n"]]),
        tracker(columns={"n": {"type": "integer", "null": True}}, indexes=[["-n.nullslast"]]),
    ),
    "drop an index": (tracker(columns={}, indexes=[["list", "-created_at"]]), tracker()),
    "add bounds": (tracker(n={"type": "integer", "default": 7}), tracker(n={"type": "integer", "min": 7, "max": 7, "default": 7})),
    "drop bounds": (tracker(n={"type": "float", "min": 0.5, "default": 7}), tracker(n={"type": "float", "default": 7})),
    "move a bound": (
        tracker(d={"type": "date", "min": "2026-01-01", "default": "2026-02-01"}),
        tracker(d={"type": "date", "min": "2026-02-01", "default": "2026-02-01"}),
    ),
    "change a type under a bound": (
        tracker(n={"type": "integer", "min": 0, "default": 7}),
        tracker(n={"type": "decimal", "precision": 9, "scale": 2, "min": 0, "default": 7}),
    ),
    "change a type under a bound that becomes a time": (
        tracker(d={"type": "date", "min": "2026-01-01", "default": "2026-02-01"}),
        tracker(d={"type": "timestamp", "min": "2026-01-01T00:00:00Z", "default": "2026-02-01T00:00:00Z"}),
    ),
    "add a shortest length": (tracker(s={**TEXT, "default": "äö😀"}), tracker(s={**TEXT, "min_length": 3, "default": "äö😀"})),
    "rename what has bounds": (
        tracker(n={"type": "integer", "min": 0, "default": 7}),
        tracker(m={"type": "integer", "min": 0, "default": 7, "renamed_from": "n"}),
    ),
    "add a column with bounds": (tracker(), tracker(n={"type": "integer", "min": 1, "backfill": 1})),
    "turn a text with a shortest length into a reference": (
        tracker(parent_id={**TEXT, "min_length": 2, "default": "l1"}),
        tracker(parent={**TO_LISTS, "related_name": "children"}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_over_rows_leaves_the_catalog_of_a_fresh_schema(what: str) -> None:
    first, second = CHANGES[what]
    make("t_changed", first)
    if "tasks" in first.tables:
        run("t_changed", "INSERT INTO lists (id, name) VALUES ('l1', 'Home')")
        run("t_changed", "INSERT INTO tasks (id, title, list_id) VALUES ('t1', 'Milk', 'l1')")
    make("t_fresh", parse(second.document))
    change("t_changed", first, second)
    assert catalog.catalog("t_changed") == catalog.catalog("t_fresh")
    back = planner.plan(second, parse(first.document))
    if not back.gaps and what != "rename the table pointed to":  # whose rows a plain way back would leave behind
        with transaction.atomic(using=catalog.REGION):
            apply.apply(catalog.REGION, "t_changed", back)
        make("t_before", first)
        assert catalog.catalog("t_changed") == catalog.catalog("t_before")


def test_a_renamed_table_and_its_renamed_columns_keep_their_rows() -> None:
    with_rows("t_env", tracker(columns={}, unique=[["list", "title"]]))
    renamed = schema(
        projects={"renamed_from": "lists", "columns": {"label": {**LISTS["name"], "renamed_from": "name"}}},
        jobs={
            "renamed_from": "tasks",
            "columns": {
                "title": {"type": "text", "max_length": 300},
                "project": {**TO_LISTS, "to": "projects", "renamed_from": "list"},
            },
            "unique": [["project", "title"]],
        },
    )
    applied = change("t_env", tracker(columns={}, unique=[["list", "title"]]), renamed)
    assert run("t_env", "SELECT id, title, project_id FROM jobs ORDER BY id") == [
        ("t1", "Task 1", "l1"), ("t2", "Task 2", "l1"), ("t3", "Task 3", "l1")
    ]  # fmt: skip
    assert run("t_env", "SELECT id, label FROM projects ORDER BY id") == [("l1", "Home"), ("l2", "Work")]
    assert [operation.name for operation in applied.operations] == [
        "rename table lists to projects",
        "rename table tasks to jobs",
        "rename column projects.name to label",
        "rename column jobs.list to project",
        "alter column jobs.title",
    ]
    assert not any(operation.destructive for operation in applied.operations)


def test_two_columns_and_two_tables_swap_their_names_with_their_rows() -> None:
    first = schema(
        a={"columns": {"x": TEXT, "y": TEXT, "z": {"type": "integer"}}, "unique": [["x"]], "indexes": [["-y"]]},
        b={"q": TEXT},
    )
    make("t_env", first)
    run("t_env", "INSERT INTO a (id, x, y, z) VALUES ('1', 'was x', 'was y', 1)")
    run("t_env", "INSERT INTO b (id, q) VALUES ('1', 'was b')")
    second = schema(
        b={
            "renamed_from": "a",
            "columns": {
                "y": {**TEXT, "renamed_from": "x"},
                "x": {**TEXT, "renamed_from": "y"},
                "z": {"type": "integer"},
            },
            "unique": [["y"]],
            "indexes": [["-x"]],
        },
        a={"renamed_from": "b", "columns": {"q": TEXT}},
    )
    change("t_env", first, second)
    assert run("t_env", "SELECT x, y, z FROM b") == [("was y", "was x", 1)]
    assert run("t_env", "SELECT q FROM a") == [("was b",)]
    make("t_fresh", parse(second.document))
    assert catalog.catalog("t_env") == catalog.catalog("t_fresh")


def test_a_new_column_may_take_the_name_of_a_renamed_and_of_a_dropped_one() -> None:
    first = schema(a={"columns": {"x": TEXT, "gone": TEXT}, "unique": [["gone"]], "indexes": [["x"]]})
    make("t_env", first)
    run("t_env", "INSERT INTO a (id, x, gone) VALUES ('1', 'kept', 'lost')")
    second = schema(a={"columns": {"gone": {**TEXT, "renamed_from": "x"}}})
    applied = change("t_env", first, second)
    assert run("t_env", "SELECT gone FROM a") == [("kept",)]
    assert {o.name for o in applied.operations if o.destructive} == {"drop column a.gone"}
    third = schema(a={"columns": {"y": {**TEXT, "renamed_from": "gone"}, "gone": {"type": "integer", "default": 5}}})
    change("t_env", parse(second.document), third)
    assert run("t_env", "SELECT y, gone FROM a") == [("kept", 5)]
    make("t_fresh", parse(third.document))
    assert catalog.catalog("t_env") == catalog.catalog("t_fresh")


def test_a_rename_that_may_have_been_done_before_is_asked_about() -> None:
    first = schema(a={"x": TEXT, "y": TEXT})
    with pytest.raises(InvalidDocument) as caught:
        planner.plan(first, schema(a={"x": TEXT, "y": {**TEXT, "renamed_from": "x"}}))
    assert [e.field for e in caught.value.errors] == ["tables.a.columns.y.renamed_from"]
    done_before = schema(a={"x": TEXT, "y": {**TEXT, "renamed_from": "gone_long_ago"}})
    assert planner.plan(first, done_before).is_empty


def test_the_order_of_a_plan_does_not_depend_on_the_process() -> None:
    def references(to: str) -> dict[str, Any]:
        return {
            key: {"type": "reference", "to": to, "on_delete": "restrict", "related_name": f"by_{key}"} for key in keys
        }

    keys = [f"r{number}" for number in range(8)]
    added = planner.plan(EMPTY, schema(a=references("b"), b={"a": {**TO_LISTS, "to": "a"}})).steps
    assert [step.name for step in added if step.column] == [f"add column a.{key}" for key in keys]
    dropped = planner.plan(schema(a={"x": TEXT}, z=references("a")), EMPTY).steps
    assert [step.django.name for step in dropped if isinstance(step.django, RemoveField)] == keys


def test_two_columns_cannot_be_renamed_from_the_two_names_of_a_reference() -> None:
    first = schema(lists=LISTS, a={"list": TO_LISTS})
    second = schema(lists=LISTS, a={"x": {**TEXT, "renamed_from": "list"}, "y": {**TEXT, "renamed_from": "list_id"}})
    with pytest.raises(InvalidDocument) as caught:
        planner.plan(first, second)
    assert [(e.field, e.code) for e in caught.value.errors] == [("tables.a.columns.y.renamed_from", "taken")]


def test_column_made_not_null_is_backfilled_and_has_no_default() -> None:
    with_rows("t_env", tracker(note={"type": "text", "null": True}))
    run("t_env", "UPDATE tasks SET note = 'there' WHERE id = 't1'")
    first = tracker(note={"type": "text", "null": True})
    second = tracker(
        note={"type": "text", "backfill": "100% 'none'"},
        on={"type": "date", "backfill": "2026-01-31"},
        tags={"type": "text[]", "backfill": ["a,b"]},
        parent={**TO_LISTS, "backfill": "l2", "related_name": "children"},
    )
    change("t_env", first, second)
    rows = run("t_env", 'SELECT note, "on"::text, tags, parent_id FROM tasks ORDER BY id')
    assert rows == [
        ("there", "2026-01-31", ["a,b"], "l2"), *[("100% 'none'", "2026-01-31", ["a,b"], "l2")] * 2
    ]  # fmt: skip
    make("t_fresh", parse(second.document))
    assert catalog.catalog("t_env") == catalog.catalog("t_fresh")


def test_enum_values_in_another_order_need_no_operation() -> None:
    first = tracker(kind={"type": "enum", "values": ["a", "c", "b"], "default": "b"})
    second = tracker(kind={"type": "enum", "values": ["b", "a", "c"], "default": "b"})
    assert planner.plan(first, second).steps == ()


def test_existing_rows_get_the_backfill_and_later_rows_the_default() -> None:
    first = tracker(note={"type": "text", "null": True})
    with_rows("t_env", first)
    run("t_env", "UPDATE tasks SET note = 'there' WHERE id = 't1'")
    second = tracker(
        note={"type": "text", "backfill": "old", "default": "new"},
        kind={"type": "enum", "values": ["a", "b"], "backfill": "a", "default": "b"},
        at={"type": "timestamp", "backfill": "2026-01-31T00:00:00Z", "default": "$now"},
    )
    change("t_env", first, second)
    before = run("t_env", "SELECT note, kind, at < '2026-02-01' FROM tasks ORDER BY id")
    assert before == [("there", "a", True), *[("old", "a", True)] * 2]
    run("t_env", "INSERT INTO tasks (id, title, list_id) VALUES ('t9', 'x', 'l1')")
    assert run("t_env", "SELECT note, kind, at > '2026-02-01' FROM tasks WHERE id = 't9'") == [("new", "b", True)]
    make("t_fresh", parse(second.document))
    assert catalog.catalog("t_env") == catalog.catalog("t_fresh")


def chain(length: int) -> Schema:
    """So many tables, each of which refers to the one before."""
    return schema(
        **{
            f"t{n}": {
                "x": TEXT,
                **({"up": {"type": "reference", "to": f"t{n - 1}", "related_name": f"d{n}"}} if n else {}),
            }
            for n in range(length)
        }
    )


def test_what_new_tables_cost_grows_as_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Django makes the models of tables that hang together anew for each table that is added to them."""
    made: list[str] = []
    render = ModelState.render

    def count(self: ModelState, apps: Any) -> Any:
        made.append(self.name)
        return render(self, apps)

    monkeypatch.setattr(ModelState, "render", count)
    counts = {}
    for length in (10, 20):
        make(f"t_chain{length}", chain(1))
        made.clear()
        change(f"t_chain{length}", chain(1), chain(length))
        counts[length] = len(made)
    assert counts[20] <= 2 * counts[10] + 20, counts
    make("t_fresh", chain(20))
    assert catalog.catalog("t_chain20") == catalog.catalog("t_fresh")


MISFITS: dict[str, tuple[Schema, Schema, str]] = {
    "a new column that rows have no value for": (tracker(), tracker(n={"type": "integer"}), "tables.tasks.columns.n"),
    "nulls in what must not be null": (
        tracker(n={"type": "integer", "null": True}), tracker(n={"type": "integer"}), "tables.tasks.columns.n",
    ),
    "doubles in a new unique": (tracker(), tracker(columns={}, unique=[["list"]]), "tables.tasks.unique"),
    "a text too long": (
        tracker(n={**TEXT, "default": "abcdef"}), tracker(n={"type": "text", "max_length": 3}), "tables.tasks.columns.n",
    ),
    "a text that is no number": (
        tracker(n={**TEXT, "default": "abc"}), tracker(n={"type": "integer"}), "tables.tasks.columns.n",
    ),
    "a text that is infinite": (
        tracker(n={**TEXT, "default": "infinity"}), tracker(n={"type": "timestamp"}), "tables.tasks.columns.n",
    ),
    **{
        f"a text that is {text} and becomes a {kind}": (
            tracker(n={**TEXT, "default": text}), tracker(n={"type": kind}), "tables.tasks.columns.n",
        )
        for kind in ("date", "timestamp")
        for text in ("today", "now", "epoch", "03/04/2026", "2026-03-01 allballs")
    },
    "a text that is not a number": (
        tracker(n={**TEXT, "default": "NaN"}), tracker(n={"type": "float"}), "tables.tasks.columns.n",
    ),
    "a text that is JSON's null, of which no filter would know that it is shown as null": (
        tracker(n={**TEXT, "default": "null"}), tracker(n={"type": "json"}), "tables.tasks.columns.n",
    ),
    "a text whose JSON holds a number that no client reads": (
        tracker(n={**TEXT, "default": '{"a": [-1e309]}'}), tracker(n={"type": "json"}), "tables.tasks.columns.n",
    ),
    "a text whose JSON holds a number that is nothing to a client, and thousands of digits to PostgreSQL": (
        tracker(n={**TEXT, "default": '{"a": [1e-16383]}'}), tracker(n={"type": "json"}), "tables.tasks.columns.n",
    ),
    "a text whose JSON is nested too deep": (
        tracker(n={**TEXT, "default": "[" * 65 + "]" * 65}), tracker(n={"type": "json"}), "tables.tasks.columns.n",
    ),
    "a number cut to length": (
        tracker(n={"type": "integer", "default": 12345}), tracker(n={"type": "text", "max_length": 3}),
        "tables.tasks.columns.n",
    ),
    "a value that the enum loses": (
        tracker(n={"type": "enum", "values": ["a", "b"], "default": "b"}),
        tracker(n={"type": "enum", "values": ["a"]}), "tables.tasks.columns.n",
    ),
    "a decimal with too many places": (
        tracker(n={"type": "decimal", "precision": 6, "scale": 3, "default": "1.125"}),
        tracker(n={"type": "decimal", "precision": 6, "scale": 2}), "tables.tasks.columns.n",
    ),
    "a number below its bound": (
        tracker(n={"type": "integer", "default": 5}), tracker(n={"type": "integer", "min": 6}), "tables.tasks.columns.n",
    ),
    "a number that is converted and then below its bound": (
        tracker(n={**TEXT, "default": "5"}), tracker(n={"type": "integer", "min": 6}), "tables.tasks.columns.n",
    ),
    "a text that is too short": (
        tracker(n={**TEXT, "default": "äö"}), tracker(m={**TEXT, "min_length": 3, "renamed_from": "n"}),
        "tables.tasks.columns.m",
    ),
    "a reference to nothing": (
        tracker(parent_id={**TEXT, "default": "nobody"}),
        tracker(parent={**TO_LISTS, "related_name": "children"}), "tables.tasks.columns.parent",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", MISFITS)
def test_what_rows_do_not_fit_is_refused_by_its_path_and_changes_nothing(what: str) -> None:
    first, second, path = MISFITS[what]
    with_rows("t_env", first)
    before = catalog.catalog("t_env")
    rows = run("t_env", "SELECT * FROM tasks ORDER BY id")
    with pytest.raises(InvalidDocument) as caught:
        change("t_env", first, second)
    assert [error.field for error in caught.value.errors] == [path]
    assert "Task" not in str(caught.value)
    assert catalog.catalog("t_env") == before
    assert run("t_env", "SELECT * FROM tasks ORDER BY id") == rows


@pytest.mark.parametrize("declared", ["unique", "indexes"])
def test_values_too_long_for_a_new_index_are_refused_with_its_columns(declared: str) -> None:
    texts = {"n": {**TEXT, "null": True}, "m": {**TEXT, "null": True}}
    first, second = tracker(**texts), tracker(columns=texts, **{declared: [["m", "n"]]})
    with_rows("t_env", first)
    chance = random.Random(5)
    n, m = ("".join(chance.choices("0123456789abcdef", k=2000)) for _ in range(2))
    run("t_env", f"UPDATE tasks SET n = '{n}', m = '{m}' WHERE id = 't1'")
    with pytest.raises(InvalidDocument) as caught:
        change("t_env", first, second)
    [error] = caught.value.errors
    assert (error.field, error.code) == (f"tables.tasks.{declared}", "conflict")
    assert "too long" in error.message
    assert "m, n" in error.message


def test_iso_8601_becomes_a_date_or_a_time() -> None:
    first = tracker(d={**TEXT, "null": True}, t={**TEXT, "null": True})
    with_rows("t_env", first)
    run("t_env", "UPDATE tasks SET d = '2026-03-01', t = '2026-03-01T12:00:00.500000000+02:00' WHERE id = 't1'")
    run("t_env", "UPDATE tasks SET t = TIMESTAMPTZ '2026-03-01 12:00:00Z' WHERE id = 't2'")
    run("t_env", "UPDATE tasks SET t = '2026-03-01 12:00:00 UTC' WHERE id = 't3'")
    change("t_env", first, tracker(d={"type": "date", "null": True}, t={"type": "timestamp", "null": True}))
    assert run("t_env", "SELECT d::text, t::text FROM tasks ORDER BY id") == [
        ("2026-03-01", "2026-03-01 10:00:00.5+00"), *[(None, "2026-03-01 12:00:00+00")] * 2
    ]  # fmt: skip


def test_too_deeply_nested_json_is_reported_as_a_misfit() -> None:
    first = tracker(n={**TEXT, "null": True})
    with_rows("t_env", first)
    run("t_env", "UPDATE tasks SET n = repeat('[', 300000) || repeat(']', 300000) WHERE id = 't1'")
    with pytest.raises(InvalidDocument, match="nested too deep"):
        change("t_env", first, tracker(n={"type": "json", "null": True}))


def test_a_text_that_would_unfold_into_a_row_of_any_size_stays_text() -> None:
    first = tracker(n={**TEXT, "null": True}, m={**TEXT, "null": True})
    with_rows("t_env", first)
    run("t_env", "UPDATE tasks SET n = '[' || repeat('1e308,', 14000) || '0]' WHERE id = 't1'")
    run("t_env", "UPDATE tasks SET m = n")
    both = tracker(n={"type": "json", "null": True}, m={"type": "json", "null": True})
    with pytest.raises(InvalidDocument, match="more than 8 MB as json"):
        change("t_env", first, both)
    run("t_env", "UPDATE tasks SET m = '0'")
    change("t_env", first, both)


def test_a_table_that_has_had_its_columns_says_so() -> None:
    first = schema(things={"x": TEXT})
    make("t_env", first)
    for _ in range(8):
        added = ", ".join(f"ADD COLUMN c{number} int" for number in range(199))
        run("t_env", f"ALTER TABLE things {added}")
        run("t_env", "ALTER TABLE things " + added.replace("ADD", "DROP").replace(" int", ""))
    with pytest.raises(InvalidDocument, match="counts dropped columns") as caught:
        change("t_env", first, schema(things={f"x{n}": {**TEXT, "null": True} for n in range(10)} | {"x": TEXT}))
    assert caught.value.errors[0].field.startswith("tables.things.columns.x")
    change("t_env", first, schema(others={"x": TEXT}))


@pytest.mark.parametrize(
    "text",
    ['{"a": null}', '[1.5, -1e308, 5e-324, "null"]', "[" * 64 + "1" + "]" * 64, '"null"', "0"],
    ids=["a null inside", "numbers", "64 levels", "a text", "a number"],
)
def test_a_text_becomes_json_that_a_body_could_have_brought(text: str) -> None:
    first = tracker(n={**TEXT, "default": text})
    with_rows("t_env", first)
    change("t_env", first, tracker(n={"type": "json"}))
    values.read("jsonb", json.loads(run("t_env", "SELECT n::text FROM tasks LIMIT 1")[0][0]))


@pytest.mark.parametrize("type_", ["json", "text[]", "boolean", "uuid"])
def test_a_type_that_cannot_become_another_is_refused_before_any_sql(type_: str) -> None:
    with pytest.raises(InvalidDocument) as caught:
        planner.plan(schema(a={"x": type_}), schema(a={"x": "integer"}))
    assert [(e.field, e.code) for e in caught.value.errors] == [("tables.a.columns.x.type", "invalid")]


def test_a_rename_of_nothing_is_refused_with_the_name_that_was_meant() -> None:
    with pytest.raises(InvalidDocument) as caught:
        planner.plan(
            schema(tasks={"title": "text"}),
            schema(jobs={"renamed_from": "taks", "columns": {}}, tasks={"name": {**TEXT, "renamed_from": "titel"}}),
        )
    assert [(e.field, e.message) for e in caught.value.errors] == [
        ("tables.jobs.renamed_from", 'there is no table "taks"; did you mean "tasks"?'),
        ("tables.tasks.columns.name.renamed_from", '"tasks" has no column "titel"; did you mean "title"?'),
    ]


def test_what_would_lose_data_is_called_destructive() -> None:
    first = schema(
        a={"x": "decimal", "y": "text"} | {"x": {"type": "decimal", "precision": 5, "scale": 2}}, b={"z": TEXT}
    )
    second = schema(a={"x": "float"})
    assert planner.plan(first, second).destructive == {"drop table b", "drop column a.y", "alter column a.x"}


BOUNDED = {"type": "integer", "min": 1, "backfill": 3}
SMALL, LARGE = schema(a={"x": "text"}), schema(a={"x": "text", "n": BOUNDED})


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        (SMALL, LARGE, ["add column a.n"]),
        (LARGE, SMALL, ["drop column a.n"]),
        (LARGE, schema(b={"renamed_from": "a", "columns": {"x": TEXT}}), ["rename table a to b", "drop column b.n"]),
        (
            LARGE,
            schema(a={"x": "text", "m": {**BOUNDED, "renamed_from": "n"}, "n": BOUNDED}),
            ["rename column a.n to m", "add column a.n"],
        ),
        (LARGE, schema(a={"x": "text", "n": "integer"}), ["alter column a.n"]),
    ],
)
def test_a_column_is_added_or_dropped_by_one_operation(first: Schema, second: Schema, names: list[str]) -> None:
    make("t_env", first)
    assert [operation.name for operation in change("t_env", first, second).operations] == names


def test_a_rehearsal_lists_the_very_statements_and_leaves_no_trace() -> None:
    first, second = CHANGES["rename a column and change it"]
    with_rows("t_env", first)
    plan = planner.plan(first, second)
    before = catalog.catalog("t_env")
    rehearsed = apply.rehearse(catalog.REGION, "t_env", plan)
    assert catalog.catalog("t_env") == before
    with connections[catalog.REGION].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'twin%'")
        assert cursor.fetchone() == (0,)
    assert change("t_env", first, second).operations == rehearsed
    assert [operation.name for operation in rehearsed] == [
        "rename column tasks.note to remark",
        "alter column tasks.remark",
    ]


@pytest.mark.parametrize("what", CHANGES)
def test_every_rehearsal_says_what_the_change_then_does(what: str) -> None:
    first, second = CHANGES[what]
    make("t_env", first)
    plan = planner.plan(first, second)
    assert apply.rehearse(catalog.REGION, "t_env", plan) == change("t_env", first, second).operations


def test_names_that_sql_python_and_django_use_are_only_names() -> None:
    words = ["user", "order", "select", "table", "group", "class", "def", "save", "delete", "clean", "meta", "objects1",
             "pk1", "from", "where", "a" * 48]  # fmt: skip
    hostile = schema(**{word: {w: {**TEXT, "default": "%s %% ' \" ; --"} for w in words} for word in words[:6]})
    make("t_env", hostile)
    other = schema(**{word: {w: {**TEXT, "null": True} for w in words} for word in words[:6]})
    change("t_env", hostile, other)
    make("t_fresh", other)
    assert catalog.catalog("t_env") == catalog.catalog("t_fresh")


def test_the_names_that_postgresql_keeps_for_itself_are_known() -> None:
    make("t_env", schema(things={"x": TEXT}))
    kept = catalog.run("t_env", "SELECT attname FROM pg_attribute WHERE attrelid = 'things'::regclass AND attnum < 0")
    assert {name for (name,) in kept} == SYSTEM_COLUMNS
    make("t_fresh", schema(**{name: {f"{name}_at": TEXT} for name in SYSTEM_COLUMNS}))


def test_a_table_may_be_called_as_postgresql_would_call_an_index() -> None:
    odd = schema(
        a={"x": TEXT}, a_pkey={"x": TEXT}, a_pkey1={"x": TEXT}, a_x_key={"columns": {"x": TEXT}, "unique": [["x"]]}
    )
    make("t_env", odd)
    change("t_env", odd, EMPTY)
    assert catalog.catalog("t_env")["columns"] == set()


def test_defaults_of_every_type_are_stored_as_written() -> None:
    columns: dict[str, Any] = {
        "t": {"type": "text", "default": "50% of 'x' \\ \" é😀"},
        "i": {"type": "integer", "default": -(2**63)},
        "d": {"type": "decimal", "precision": 20, "scale": 10, "default": "-1234567890.0000000001"},
        "f": {"type": "float", "default": 1e-7},
        "b": {"type": "boolean", "default": True},
        "on": {"type": "date", "default": "2024-02-29"},
        "at": {"type": "timestamp", "default": "2026-01-31T12:00:00.123456+02:00"},
        "u": {"type": "uuid", "default": "6b1f1c1e-3c1c-4d0e-9d6c-0d2b8a7f5e11"},
        "j": {"type": "json", "default": {"%s": ["'", None, {"a": "\\"}]}},
        "l": {"type": "text[]", "default": ["a,b", "{}", 'q"']},
        "e": {"type": "enum", "values": ["o'k", "no%"], "default": "o'k"},
        "today": {"type": "date", "default": "$now"},
        "random": {"type": "uuid", "default": "$uuid"},
    }
    make("t_env", schema(a=columns))
    run("t_env", "INSERT INTO a (id) VALUES ('1'), ('2')")
    found = run(
        "t_env",
        "SELECT t, i, d::text, f, b, \"on\"::text, at AT TIME ZONE 'UTC', u::text, j, l, e, today::text FROM a LIMIT 1",
    )[0]
    assert [str(value) for value in found[:11]] == [
        "50% of 'x' \\ \" é😀", "-9223372036854775808", "-1234567890.0000000001", "1e-07", "True", "2024-02-29",
        "2026-01-31 10:00:00.123456", "6b1f1c1e-3c1c-4d0e-9d6c-0d2b8a7f5e11",
        '{"%s": ["\'", null, {"a": "\\\\"}]}', str(["a,b", "{}", 'q"']), "o'k",
    ]  # fmt: skip
    assert run("t_env", "SELECT count(DISTINCT random) FROM a") == [(2,)]
    assert run("t_env", "SELECT bool_and(today = (now() AT TIME ZONE 'UTC')::date) FROM a") == [(True,)]


def test_what_no_row_may_hold_is_refused_by_postgresql_too() -> None:
    make(
        "t_env",
        schema(a={"d": {"type": "decimal", "precision": 4, "scale": 2}, "e": {"type": "enum", "values": ["x"]}}),
    )
    for d, e in (("100", "x"), ("1.001", "x"), ("NaN", "x"), ("Infinity", "x"), ("1", "y")):
        with pytest.raises(DatabaseError):
            run("t_env", "INSERT INTO a (id, d, e) VALUES ('1', %s::numeric, %s)", d, e)
    run("t_env", "INSERT INTO a (id, d, e) VALUES ('1', 99.990, 'x')")


def test_references_do_what_they_say_when_the_row_pointed_to_goes() -> None:
    make("t_env", schema(
        lists={},
        a={"list": TO_LISTS},
        b={"list": {**TO_LISTS, "on_delete": "null", "null": True}},
        c={"list": {**TO_LISTS, "on_delete": "restrict"}},
    ))  # fmt: skip
    run("t_env", "INSERT INTO lists (id) VALUES ('1'), ('2')")
    for table in ("a", "b"):
        run("t_env", f"INSERT INTO {table} (id, list_id) VALUES ('x', '1')")
    run("t_env", "INSERT INTO c (id, list_id) VALUES ('x', '2')")
    run("t_env", "DELETE FROM lists WHERE id = '1'")
    assert run("t_env", "SELECT (SELECT count(*) FROM a), (SELECT list_id FROM b)") == [(0, None)]
    with pytest.raises(DatabaseError):
        run("t_env", "DELETE FROM lists WHERE id = '2'")


def test_the_search_path_and_limits_are_as_before() -> None:
    before = run("t_none", "SELECT 1")
    first, second = CHANGES["add a column"]
    make("t_env", first)
    change("t_env", first, second)
    with connections[catalog.REGION].cursor() as cursor:
        cursor.execute("SELECT current_setting('search_path'), current_setting('lock_timeout')")
        assert cursor.fetchone() == ("platform", "2s")
    assert before == [(1,)]
