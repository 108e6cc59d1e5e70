"""Documents are read whole: what is valid becomes facts, and every error is named at once with its path."""

from copy import deepcopy
from time import process_time
from typing import Any

import pytest

from rows.migrate import service as schema_service
from rows.migrate.planning import planner
from rows.schema import document_renames, parser, table_parser
from rows.schema.identifiers import SYSTEM_COLUMNS
from rows.schema.model import DEFAULT_ID_PREFIX, MAX_ERRORS, Hop, IndexKey, InvalidDocument, Schema, digest
from rows.schema.parser import parse
from tests.support.schema_documents import TRACKER
from tests.support.timing import within


def errors_of(document: object) -> dict[str, str]:
    """Path → code."""
    with pytest.raises(InvalidDocument) as caught:
        parse(document)
    return {error.field: error.code for error in caught.value.errors}


def message_of(document: object) -> str:
    with pytest.raises(InvalidDocument) as caught:
        parse(document)
    (error,) = caught.value.errors
    return error.message


def table(columns: Any = None, **rest: Any) -> dict[str, Any]:
    return {"tables": {"t": {"columns": {"x": {"type": "text"}} if columns is None else columns, **rest}}}


def column(**facts: Any) -> dict[str, Any]:
    return table({"x": facts})


def test_the_tracker_of_the_design_is_understood() -> None:
    schema = parse(TRACKER)
    tasks, lists = schema.tables["tasks"], schema.tables["lists"]
    assert list(tasks.columns) == ["title", "done", "due_on", "internal", "list_id", "owner_id"]
    assert list(tasks.all_columns) == ["id", *tasks.columns, "created_at", "updated_at"]
    assert tasks.columns["list_id"].references == "lists"
    assert tasks.columns["owner_id"].is_user
    assert tasks.columns["owner_id"].on_user_delete == "keep"
    assert tasks.relations == {"list": Hop("list", "lists", "list_id")}
    assert lists.relations == {"tasks": Hop("tasks", "tasks", "list_id", many=True)}
    assert tasks.unique == (("list_id", "title"),)
    assert [str(index) for index in tasks.indexes] == ["owner_id, -created_at, -id", "list_id, id", "owner_id, id"]
    assert tasks.rules["user"]["insert"][0].columns == ("title", "list_id")
    assert tasks.id_prefix == "tsk_"
    assert tasks.column("list") is tasks.column("list_id")
    assert schema.document == TRACKER


def test_an_empty_document_has_no_tables() -> None:
    assert parse({"tables": {}}).tables == {}
    assert parse(table({})).tables["t"].id_prefix == DEFAULT_ID_PREFIX


@pytest.mark.parametrize(
    "raw", [None, [], "tables", 5, True, {}, {"tables": None}, {"tables": []}, {"tables": {"t": 1}}]
)
def test_what_is_no_document_is_refused(raw: object) -> None:
    assert errors_of(raw)


def test_every_error_is_named_at_once() -> None:
    document = deepcopy(TRACKER)
    document["tables"]["usrs"] = {"columns": {"a": {"type": "txt"}, "list": {"type": "reference", "to": "user"}}}
    document["tables"]["tasks"]["columns"]["owner"] = {"type": "reference", "to": "usr"}
    document["tables"]["tasks"]["unique"].append(["titel"])
    document["tables"]["tasks"]["rules"]["user"]["reed"] = {}
    document["colour"] = "red"
    with pytest.raises(InvalidDocument) as caught:
        parse({"tables": document["tables"]})
    assert {error.field: error.message.rpartition("; ")[2] for error in caught.value.errors} == {
        "tables.usrs.columns.a.type": 'did you mean "text"?',
        "tables.usrs.columns.list.to": 'did you mean "usrs"?',
        "tables.tasks.columns.owner.to": 'did you mean "usrs"?',
        "tables.tasks.unique.1.0": 'did you mean "title"?',
        "tables.tasks.rules.user.reed": 'did you mean "read"?',
    }
    assert errors_of(document)["colour"] == "unknown"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("", "invalid"), ("1a", "invalid"), ("A", "invalid"), ("a b", "invalid"), ("a-b", "invalid"), ("ä", "invalid"),
        ("a__b", "invalid"), ("a_", "invalid"), ("_a", "invalid"), ("a" * 49, "invalid"), ("a\n", "invalid"),
        ('x"; DROP TABLE y; --', "invalid"), ("a%s", "invalid"), ("a.b", "invalid"), ("$user", "invalid"),
        ("pk", "reserved"), ("check", "reserved"), ("objects", "reserved"), ("unruled", "reserved"),
        ("id", "reserved"), ("created_at", "reserved"), ("updated_at", "reserved"),
    ],
)  # fmt: skip
def test_names_that_cannot_be_are_refused_for_tables_and_columns(name: str, code: str) -> None:
    assert set(errors_of({"tables": {name: {"columns": {}}}}).values()) == {code}
    assert set(errors_of(table({name: {"type": "text"}})).values()) == {code}


@pytest.mark.parametrize("name", sorted(SYSTEM_COLUMNS))
def test_what_postgresql_has_in_every_table_is_no_column(name: str) -> None:
    assert errors_of(table({name: {"type": "text"}})) == {f"tables.t.columns.{name}": "reserved"}
    assert f"{name}_id" in parse({"tables": {name: {"columns": {name: {"type": "user"}}}}}).tables[name].columns


@pytest.mark.parametrize(
    "name", ["a", "a" * 48, "user", "order", "select", "table", "class", "self", "save", "q", "env_1"]
)
def test_names_that_can_be_are_taken(name: str) -> None:
    assert name in parse({"tables": {name: {"columns": {name: {"type": "text"}}}}}).tables[name].columns


@pytest.mark.parametrize(
    ("columns", "path"),
    [
        ({"x": {"type": "reference", "to": "t", "related_name": "r"}, "x_id": {"type": "text"}}, "x_id"),
        ({"x_id": {"type": "text"}, "x": {"type": "reference", "to": "t", "related_name": "r"}}, "x"),
        ({"x": {"type": "user"}, "x_id": {"type": "user"}}, "x_id"),
    ],
)
def test_a_reference_and_a_column_cannot_have_one_name(columns: dict[str, Any], path: str) -> None:
    assert errors_of(table(columns)) == {f"tables.t.columns.{path}": "taken"}


@pytest.mark.parametrize(
    ("facts", "path"),
    [
        ({}, "type"), ({"type": None}, "type"), ({"type": ["text"]}, "type"), ({"type": "string"}, "type"),
        ({"type": "text", "null": "yes"}, "null"), ({"type": "text", "nul": True}, "nul"),
        ({"type": "text", "max_length": 0}, "max_length"), ({"type": "text", "max_length": True}, "max_length"),
        ({"type": "text", "max_length": 10.0}, "max_length"), ({"type": "integer", "max_length": 5}, "max_length"),
        ({"type": "text", "min_length": 0}, "min_length"), ({"type": "text", "min_length": "2"}, "min_length"),
        ({"type": "text", "min_length": 5, "max_length": 4}, "min_length"), ({"type": "json", "min_length": 1}, "min_length"),
        ({"type": "text", "format": "phone"}, "format"), ({"type": "text", "format": ["url"]}, "format"),
        ({"type": "integer", "format": "slug"}, "format"), ({"type": "text", "format": "slug", "default": "A"}, "default"),
        ({"type": "text", "min": "a"}, "min"), ({"type": "boolean", "max": True}, "max"),
        ({"type": "integer", "min": "0"}, "min"), ({"type": "integer", "min": 0.5}, "min"),
        ({"type": "integer", "max": 2**63}, "max"), ({"type": "integer", "min": 2, "max": 1}, "min"),
        ({"type": "float", "min": float("nan")}, "min"), ({"type": "date", "min": "$now"}, "min"),
        ({"type": "date", "max": "2026-02-30"}, "max"), ({"type": "timestamp", "min": "2026-01-01T00:00:00"}, "min"),
        ({"type": "decimal", "precision": 4, "scale": 1, "max": "1000"}, "max"),
        ({"type": "decimal", "precision": 4, "scale": 1, "min": "0.25"}, "min"),
        ({"type": "integer", "min": 1, "default": 0}, "default"), ({"type": "integer", "max": 1, "backfill": 2}, "backfill"),
        ({"type": "text", "min_length": 3, "default": "ab"}, "default"),
        ({"type": "decimal"}, "precision"), ({"type": "decimal", "precision": 5, "scale": 6}, "scale"),
        ({"type": "decimal", "precision": 101, "scale": 0}, "precision"),
        ({"type": "enum"}, "values"), ({"type": "enum", "values": []}, "values"),
        ({"type": "enum", "values": ["a", "a"]}, "values.1"), ({"type": "enum", "values": ["a", 1]}, "values.1"),
        ({"type": "enum", "values": ["a\0"]}, "values.0"), ({"type": "enum", "values": "ab"}, "values"),
        ({"type": "reference"}, "to"), ({"type": "reference", "to": 5}, "to"),
        ({"type": "reference", "to": "t", "on_delete": "set null"}, "on_delete"),
        ({"type": "reference", "to": "t", "on_delete": "null"}, "on_delete"),
        ({"type": "reference", "to": "t", "default": "x"}, "default"),
        ({"type": "reference", "to": "t", "related_name": "a__b"}, "related_name"),
        ({"type": "user", "on_delete": "cascade"}, "on_delete"), ({"type": "user", "on_delete": "null"}, "on_delete"),
        ({"type": "user", "to": "users"}, "to"),
        ({"type": "text", "renamed_from": 5}, "renamed_from"), ({"type": "text", "renamed_from": "A-"}, "renamed_from"),
        ({"type": "text", "null": True, "backfill": "x"}, "backfill"),
        ({"type": "integer", "backfill": "x"}, "backfill"),
    ],
)  # fmt: skip
def test_bad_settings_of_a_column_are_named(facts: dict[str, Any], path: str) -> None:
    assert f"tables.t.columns.x.{path}" in errors_of(column(**facts))


@pytest.mark.parametrize("raw", ["text", None, [], 5])
def test_a_column_that_is_no_object_says_what_one_looks_like(raw: Any) -> None:
    assert message_of(table({"x": raw})) == 'must be an object such as {"type": "text"}'


@pytest.mark.parametrize(
    ("facts", "default"),
    [
        ({"type": "text"}, 5), ({"type": "text", "max_length": 3}, "four"), ({"type": "text"}, "a\0b"),
        ({"type": "text"}, "\ud800"), ({"type": "text"}, "x" * 20_000),
        ({"type": "integer"}, "5"), ({"type": "integer"}, 2**63), ({"type": "integer"}, 1.5), ({"type": "integer"}, True),
        ({"type": "decimal", "precision": 4, "scale": 1}, "1.25"),
        ({"type": "decimal", "precision": 4, "scale": 1}, "1000"),
        ({"type": "decimal", "precision": 4, "scale": 1}, "NaN"),
        ({"type": "float"}, "1"), ({"type": "float"}, float("inf")), ({"type": "boolean"}, 1),
        ({"type": "date"}, "2026-02-30"), ({"type": "date"}, "0000-00-00"), ({"type": "date"}, "today"),
        ({"type": "timestamp"}, "2026-01-01T00:00:00"), ({"type": "timestamp"}, "infinity"),
        ({"type": "uuid"}, "x"), ({"type": "text[]"}, ["a", 1]), ({"type": "text[]"}, "a"),
        ({"type": "enum", "values": ["a"]}, "b"), ({"type": "json"}, {"a": "\0"}),
    ],
)  # fmt: skip
def test_defaults_that_their_column_would_not_take_are_refused(facts: dict[str, Any], default: Any) -> None:
    assert errors_of(column(**facts, default=default)) == {"tables.t.columns.x.default": "invalid"}


def test_indexes_say_where_nulls_go_and_end_in_the_id() -> None:
    columns = {"n": {"type": "integer", "null": True}, "m": {"type": "integer"}}
    indexes = [["n"], ["-n"], ["-n.nullslast"], ["n.nullsfirst", "-m"], ["m.desc.nullslast"], ["m", "id"]]
    found = parse(table(columns, indexes=indexes)).tables["t"].indexes
    assert [str(index) for index in found] == [
        "n, id", "-n, -id", "-n.nullslast, -id", "n.nullsfirst, -m, -id", "-m, -id", "m, id"
    ]  # fmt: skip
    assert found[2].keys == (IndexKey("n", descending=True, nulls_first=False), IndexKey("id", True, True))


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"indexes": [["y"]]}, "indexes.0.0"), ({"indexes": [[]]}, "indexes.0"), ({"indexes": ["x"]}, "indexes.0"),
        ({"indexes": [["x"], ["x"]]}, "indexes.1"), ({"indexes": [["x", "-x"]]}, "indexes.0"),
        ({"indexes": [["id"]]}, "indexes.0"), ({"indexes": [["id", "x"]]}, "indexes.0"),
        ({"indexes": [["-x.desc"]]}, "indexes.0.0"), ({"indexes": [["x.nulls"]]}, "indexes.0.0"),
        ({"indexes": [["j"]]}, "indexes.0.0"), ({"indexes": [["x"]] * 33}, "indexes"), ({"indexes": {}}, "indexes"),
        ({"unique": [["y"]]}, "unique.0.0"), ({"unique": ["x"]}, "unique.0"), ({"unique": [[]]}, "unique.0"),
        ({"unique": [["x"], ["x"]]}, "unique.1"), ({"unique": [["x", "x"]]}, "unique.0"),
        ({"unique": [["id"]]}, "unique.0"), ({"unique": [["j"]]}, "unique.0.0"), ({"unique": [[5]]}, "unique.0.0"),
        ({"id_prefix": "tsk"}, "id_prefix"), ({"id_prefix": "TSK_"}, "id_prefix"), ({"id_prefix": 5}, "id_prefix"),
        ({"renamed_from": "a b"}, "renamed_from"), ({"rowes": {}}, "rowes"),
        ({"rules": {"user": []}}, "rules.user"), ({"rules": {"a b": {}}}, 'rules."a b"'),
        ({"rules": {"user": {"read": 5}}}, "rules.user.read"),
        ({"rules": {"user": {"update": [{}]}}}, "rules.user.update"),
        ({"rules": {"user": {"read": {"check": {}}}}}, "rules.user.read.check"),
        ({"rules": {"user": {"insert": {"where": {}}}}}, "rules.user.insert.where"),
        ({"rules": {"user": {"delete": {"columns": []}}}}, "rules.user.delete.columns"),
        ({"rules": {"user": {"read": {"where": []}}}}, "rules.user.read.where"),
        ({"rules": {"user": {"read": {"columns": ["x", 5]}}}}, "rules.user.read.columns.1"),
        ({"rules": {"user": {"read": [{}] * 17}}}, "rules.user.read"),
    ],
)  # fmt: skip
def test_bad_settings_of_a_table_are_named(settings: dict[str, Any], path: str) -> None:
    assert f"tables.t.{path}" in errors_of(table({"x": {"type": "text"}, "j": {"type": "json"}}, **settings))


def test_the_way_back_needs_a_name_where_the_far_tables_is_taken() -> None:
    two = {"a": {"type": "reference", "to": "u"}, "b": {"type": "reference", "to": "u"}}
    document = {"tables": {"t": {"columns": two}, "u": {"columns": {}}}}
    assert errors_of(document) == {"tables.t.columns.b.related_name": "required"}
    two["b"]["related_name"] = "as_b"
    assert set(parse(document).tables["u"].relations) == {"t", "as_b"}
    document["tables"]["u"]["columns"] = {"t": {"type": "text"}}
    assert errors_of(document) == {"tables.t.columns.a.related_name": "required"}
    two["a"]["related_name"] = "as_b"
    assert errors_of(document) == {"tables.t.columns.b.related_name": "taken"}


def test_two_cannot_be_renamed_from_one() -> None:
    twice = {name: {"columns": {}, "renamed_from": "z"} for name in ("a", "b")}
    assert errors_of({"tables": twice}) == {"tables.b.renamed_from": "taken"}


def test_the_words_of_one_step_are_not_stored() -> None:
    schema = parse(table({"x": {"type": "text", "renamed_from": "y", "backfill": "z"}}, renamed_from="s"))
    assert schema.tables["t"].renamed_from == "s"
    assert schema.tables["t"].columns["x"].backfill == "z"
    assert schema.document == table()
    assert parse(schema.document) == parse(table())


def test_what_is_stored_reads_back_the_same() -> None:
    assert parse(parse(TRACKER).document) == parse(TRACKER)


def test_digest_depends_on_content_and_not_on_key_order() -> None:
    def reversed_keys(value: Any) -> Any:
        return {k: reversed_keys(v) for k, v in reversed(value.items())} if isinstance(value, dict) else value

    assert digest(reversed_keys(TRACKER)) == digest(TRACKER)
    other = deepcopy(TRACKER)
    other["tables"]["tasks"]["columns"]["title"]["max_length"] = 201
    assert digest(other) != digest(TRACKER)


def test_limits_of_size_hold_at_their_edge() -> None:
    def of_size(tables: int, columns: int) -> Schema:
        many = {f"c{n}": {"type": "boolean"} for n in range(columns)}
        return parse({"tables": {f"t{n}": {"columns": many} for n in range(tables)}})

    of_size(parser.MAX_TABLES, 1)
    of_size(1, table_parser.MAX_COLUMNS)
    assert errors_of({"tables": {f"t{n}": {"columns": {}} for n in range(parser.MAX_TABLES + 1)}}) == {
        "tables": "too_many"
    }
    too_wide = {f"c{n}": {"type": "boolean"} for n in range(table_parser.MAX_COLUMNS + 1)}
    assert errors_of(table(too_wide)) == {"tables.t.columns": "too_many"}
    assert errors_of(column(type="json", default="x" * parser.MAX_BYTES)) == {"tables": "too_long"}


def test_long_and_odd_keys_do_not_travel_back_whole() -> None:
    with pytest.raises(InvalidDocument) as caught:
        parse({"tables": {"x" * 5000: {"columns": {}}, "a\x00\nb": {"columns": {}}}})
    assert all(len(error.field) < 100 and error.field.isprintable() for error in caught.value.errors)


HUNDREDS: dict[str, Any] = {
    "settings": {"tables": {"notes": {"columns": {}, **{f"column_{n}": 1 for n in range(300)}}}},
    "columns": {"tables": {"notes": {"columns": {f"X{n}": {"type": "text"} for n in range(200)}}}},
    "forced cells": {"tables": {"notes": {
        "columns": {"body": {"type": "text"}}, "rules": {"user": {"insert": {"set": {f"b{n}": 1 for n in range(300)}}}},
    }}},
    "rules": {"tables": {"notes": {
        "columns": {"body": {"type": "text"}},
        "rules": {f"role_{n}": {"read": [{"columns": ["bode"], "where": {"bode": 1}}] * 16} for n in range(30)},
    }}},
}  # fmt: skip


@pytest.mark.parametrize("what", HUNDREDS)
def test_first_hundred_errors_are_listed_at_bounded_cost(what: str) -> None:
    """For each a word that may have been meant is looked for: 40,000 took eight seconds, and an answer of 2.5 MB."""
    with pytest.raises(InvalidDocument) as caught:
        schema_service.read(HUNDREDS[what])
    *first, last = caught.value.errors
    assert len(first) == MAX_ERRORS
    assert (last.field, last.code) == ("tables", "too_many")


def test_of_many_renames_that_name_nothing_the_first_hundred_are_named() -> None:
    def tables(**more: Any) -> Schema:
        return parse({"tables": {"a": {"columns": {f"c{n}": {"type": "text"} for n in range(9)}}, **more}})

    lost = {f"t{n}": {"columns": {}, "renamed_from": f"s{n}"} for n in range(150)}
    with pytest.raises(InvalidDocument) as caught:
        planner.plan(tables(), tables(**lost))
    assert len(caught.value.errors) == MAX_ERRORS + 1


@pytest.mark.exhaustive
def test_planning_time_grows_linearly_with_the_change() -> None:
    """Ten tables that refer to each other in a circle, eighty times each; then most columns of twenty dropped."""

    def circle(tables: int, references: int) -> dict[str, Any]:
        return {f"t{n}": {"columns": {
            f"c{i}": {"type": "reference", "to": f"t{(n + 1) % tables}", "on_delete": "cascade", "related_name": f"r{n}x{i}"}
            for i in range(references)
        }} for n in range(tables)}  # fmt: skip

    wide = parse({"tables": {f"w{n}": {"columns": {f"c{i}": {"type": "text"} for i in range(200)}} for n in range(20)}})
    narrow = parse({"tables": {f"w{n}": {"columns": {"c0": {"type": "text"}}} for n in range(20)}})
    began = process_time()
    made = planner.plan(wide, parse({"tables": {**wide.document["tables"], **circle(10, 80)}}))
    dropped = planner.plan(wide, narrow)
    assert process_time() - began < within(3)
    created = [step.name for step in made.steps if step.name.startswith("create")]
    assert created == [f"create table t{n}" for n in (0, *range(9, 0, -1))], (
        "each but the first after what it refers to"
    )
    assert len(dropped.steps) == 20 * 199


def test_the_fields_of_users_are_read_by_role() -> None:
    users = {"user": ["name", "id"], "anonymous": [], "editor": ["email"]}
    schema = parse({**TRACKER, "users": users})
    assert schema.users == {"user": ("id", "name"), "anonymous": (), "editor": ("email",)}
    assert schema.document == {**parse(TRACKER).document, "users": users}
    assert parse(TRACKER).users == {}
    assert "users" not in parse(TRACKER).document
    assert schema.digest != parse(TRACKER).digest


@pytest.mark.parametrize(
    ("users", "expected"),
    [
        (None, {"users": "invalid"}),
        (["id"], {"users": "invalid"}),
        ({"user": "id"}, {"users.user": "invalid"}),
        ({"user": None}, {"users.user": "invalid"}),
        ({"user": ["id", "nmae"]}, {"users.user.1": "unknown"}),
        ({"user": ["*"]}, {"users.user.0": "unknown"}),
        ({"user": ["claims", "password"]}, {"users.user.0": "unknown", "users.user.1": "unknown"}),
        ({"user": [["id"], None]}, {"users.user.0": "unknown", "users.user.1": "unknown"}),
        ({"user": ["id", "id"]}, {"users.user.1": "taken"}),
        ({"user": ["id"] * 6}, {"users.user": "too_many"}),
        ({"User!": ["id"]}, {'users."User!"': "invalid"}),
        ({f"role_{number}": [] for number in range(33)}, {"users": "too_many"}),
    ],
)
def test_fields_of_users_that_cannot_be(users: Any, expected: dict[str, str]) -> None:
    assert errors_of({**TRACKER, "users": users}) == expected


def test_a_misspelled_field_of_users_gets_a_suggestion() -> None:
    told = message_of({**TRACKER, "users": {"user": ["nmae"]}})
    assert told == 'must be one of id, email, name, role, created_at; did you mean "name"?'


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({}, {"user": ["id"]}, ["widen users.user: id"]),
        ({"user": ["id", "email"]}, {"user": ["id", "name"]}, ["widen users.user: name", "narrow users.user: email"]),
        ({"user": ["id"]}, {}, ["narrow users.user: id"]),
        ({"user": ["id", "name"]}, {"user": ["id", "name"], "editor": ["id"]}, ["narrow users.editor: name"]),
        ({"user": ["id"]}, {"user": ["id", "name"], "editor": ["id"]}, ["widen users.user: name"]),
        ({"user": ["id"], "editor": ["id"]}, {"user": ["id"]}, ["change users"]),
        ({}, {"anonymous": [], "server": ["email"]}, ["widen users.server: email"]),
        ({"user": ["id"]}, {"user": ["id"]}, []),
    ],
)
def test_a_plan_says_which_role_sees_more_or_less_of_users(before: Any, after: Any, expected: list[str]) -> None:
    old, new = (parse({**TRACKER, "users": users}) for users in (before, after))
    plan = planner.plan(old, new)
    assert (list(plan.notes), plan.steps, plan.destructive) == (expected, (), frozenset())


@pytest.mark.parametrize(
    ("written", "meant"), [("varchar(255)", "text"), ("datetime", "timestamp"), ("time", "text"), ("int", "integer")]
)
def test_a_type_of_another_database_gets_a_suggestion(written: str, meant: str) -> None:
    told = message_of({"tables": {"notes": {"columns": {"body": {"type": written}}}}})
    assert told.endswith(f'; did you mean "{meant}"?')


def test_a_rename_in_a_draft_reaches_old_cells_in_lists() -> None:
    table = {
        "columns": {"state": {"type": "text"}},
        "rules": {"user": {"update": {"check": {"status": {"$in": ["$old.status", "done"]}}}}},
    }
    document_renames.columns(table, {"status": "state"})
    assert table["rules"] == {"user": {"update": {"check": {"state": {"$in": ["$old.state", "done"]}}}}}
