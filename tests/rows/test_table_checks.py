"""`checks` of a table: conditions about a row's own cells, which every row fulfils whoever writes it."""

import io
import random
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connections
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from accounts import audit
from accounts.models import User
from accounts.users import service as user_service
from platform_site.http.errors import Conflict
from projects.directory.environments import environment_ref
from rows.migrate import service as schema_service
from rows.migrate.planning import planner
from rows.query.tables import table_checks
from rows.rules import checks
from rows.rules.evaluator import Facts, holds
from rows.rules.name_resolver import InvalidCondition
from rows.rules.rules import Ruleset
from rows.schema.column_values import encode_cell
from rows.schema.model import SQL_TYPES, InvalidDocument, Schema
from rows.schema.parser import parse
from rows.write.references import user_policies
from tests.rows.conftest import Tracker
from tests.support import catalog, random_documents
from tests.support.catalog import change, make, run
from tests.support.client import Answer

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)
ROLLED_BACK = pytest.mark.django_db(databases="__all__")
"""For tests that make PostgreSQL schemas themselves."""

DOCUMENT: dict[str, Any] = {
    "tables": {
        "rooms": {"columns": {"name": {"type": "text"}}},
        "events": {
            "columns": {
                "title": {"type": "text", "default": "100% 'fun'"},
                "starts_at": {"type": "timestamp"},
                "ends_at": {"type": "timestamp", "null": True},
                "seats": {"type": "integer", "default": 10},
                "sold": {"type": "integer", "default": 0},
                "state": {"type": "enum", "values": ["draft", "open", "done"], "default": "draft"},
                "room": {"type": "reference", "to": "rooms", "on_delete": "null", "null": True},
                "host": {"type": "user", "on_delete": "null", "null": True},
            },
            "checks": {
                "ends_after_start": {"$or": [{"ends_at": None}, {"ends_at": {"$gt": {"$column": "starts_at"}}}]},
                "not_oversold": {"sold": {"$lte": {"$column": "seats"}}},
                "open_has_room_and_host": {
                    "$or": [{"state": "draft"}, {"room_id": {"$null": False}, "host_id": {"$null": False}}]
                },
                "titles": {"title": {"$not": {"$like": "\\_%"}}},
            },
            "rules": {
                "user": {
                    "read": {"columns": ["*", "-seats"]},
                    "update": {"columns": ["sold", "title"]},
                    "insert": {"columns": ["starts_at", "title"], "set": {"sold": 99}},
                }
            },
        },
    }
}
NOON, LATER = "2026-06-01T12:00:00Z", "2026-06-01T14:00:00Z"


@pytest.fixture
def hall(make_tracker: Any) -> Tracker:
    made: Tracker = make_tracker(DOCUMENT)
    made.post("key", "/rows/rooms", {"id": "r1", "name": "Blue"})
    made.post("key", "/rows/events", {"id": "e1", "starts_at": NOON})
    return made


def refused(answer: Answer) -> dict[str, str]:
    assert answer.status == 422, answer.json
    found: dict[str, str] = answer.fields
    return found


def messages(answer: Answer) -> set[str]:
    return {field["message"] for field in answer.json["error"]["fields"]}


# ── Writes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("who", ["key", "operator", "owner"])
def test_every_way_to_write_a_row_is_held_to_the_checks(hall: Tracker, who: str) -> None:
    before = hall.get("key", "/rows/events").json["data"]
    bad = {"starts_at": LATER, "ends_at": NOON}
    fields = {"starts_at": "check_failed", "ends_at": "check_failed"}
    told = {'The check "ends_after_start" of events is not met.'}
    for answer in (
        hall.post(who, "/rows/events", bad),
        hall.patch(who, "/rows/events/e1", bad),
        hall.patch(who, f"/rows/events?where={quote('{}')}", bad),
    ):
        assert refused(answer) == fields
        assert messages(answer) == told
    for answer in (
        hall.post(who, "/rows/events", [{"starts_at": NOON}, bad]),
        hall.post(who, "/rows/events?on_conflict=id", [{"id": "e2", "starts_at": NOON}, {"id": "e1", **bad}]),
    ):
        assert refused(answer) == {f"1.{name}": code for name, code in fields.items()}
    batch = hall.post(
        who,
        "/batch",
        {"operations": [
            {"op": "insert", "table": "events", "values": {"starts_at": NOON}},
            {"op": "update", "table": "events", "id": "e1", "values": {"ends_at": NOON}},
        ]},
    )  # fmt: skip
    assert (refused(batch), batch.json["error"]["operation"]) == (fields, 1)
    assert hall.get("key", "/rows/events").json["data"] == before


def test_an_increment_and_a_part_of_a_row_are_judged_with_the_rest_of_it(hall: Tracker) -> None:
    assert hall.patch("key", "/rows/events/e1", {"sold": {"$inc": 10}}).status == 200
    fields = {"sold": "check_failed", "seats": "check_failed"}
    assert refused(hall.patch("key", "/rows/events/e1", {"sold": {"$inc": 1}})) == fields
    assert refused(hall.patch("key", "/rows/events/e1", {"seats": 9})) == fields
    assert hall.patch("key", "/rows/events/e1", {"seats": {"$inc": 1}, "sold": {"$inc": 1}}).status == 200
    upsert = {"id": "e1", "starts_at": NOON, "sold": {"$inc": 1}}
    assert refused(hall.post("key", "/rows/events?on_conflict=id", [upsert])) == {
        f"0.{name}": code for name, code in fields.items()
    }


def test_a_check_means_what_the_same_filter_means(hall: Tracker) -> None:
    """A comparison with a null is false, and `$not` its opposite."""
    assert refused(hall.patch("key", "/rows/events/e1", {"title": "_x"})) == {"title": "check_failed"}
    assert hall.patch("key", "/rows/events/e1", {"title": "x_%"}).status == 200
    checks = {"sooner": {"ends_at": {"$gt": {"$column": "starts_at"}}}}
    document = deepcopy(DOCUMENT)
    document["tables"]["events"]["checks"] = checks
    answer = hall.call("owner", "PUT", "/schema", json={"document": document, "dry_run": True})
    assert refused(answer) == {"document.tables.events.checks.sooner": "conflict"}
    where = quote('{"$not": {"ends_at": {"$gt": {"$column": "starts_at"}}}}')
    assert [row["id"] for row in hall.get("key", f"/rows/events?where={where}").json["data"]] == ["e1"]


def test_a_refusal_names_no_hidden_column_and_no_value(hall: Tracker) -> None:
    hall.patch("key", "/rows/events/e1", {"seats": 7})
    answer = hall.patch("alice", "/rows/events/e1", {"sold": 8})
    assert refused(answer) == {"sold": "check_failed"}
    assert messages(answer) == {'The check "not_oversold" of events is not met.'}
    assert "seats" not in str(answer.json)
    # What the rules set, over columns that the caller neither reads nor writes, has no name at all.
    document = deepcopy(DOCUMENT)
    document["tables"]["events"]["rules"]["user"]["read"]["columns"] = ["*", "-seats", "-sold"]
    document["tables"]["events"]["rules"]["user"]["update"]["columns"] = ["title"]
    hall.apply(document)
    answer = hall.post("alice", "/rows/events", {"starts_at": NOON})
    assert refused(answer) == {"$body": "check_failed"}
    assert messages(answer) == {"The row does not meet a check of its table."}


def test_a_row_that_may_not_be_changed_tells_nothing_by_a_check(hall: Tracker) -> None:
    document = deepcopy(DOCUMENT)
    document["tables"]["events"]["rules"]["user"]["update"]["where"] = {"host_id": "$user.id"}
    hall.apply(document)
    for sold in (1, 1000):
        assert hall.patch("alice", "/rows/events/e1", {"sold": sold}).status == 404
        assert hall.patch("alice", "/rows/events/nothing", {"sold": sold}).status == 404


# ── What is deleted elsewhere ───────────────────────────────────────────────────────────────────────────────────────


def open_event(hall: Tracker) -> None:
    body = {"id": "e2", "starts_at": NOON, "state": "open", "room_id": "r1", "host_id": hall.users["alice"]}
    assert hall.post("key", "/rows/events", body).status == 201


def test_a_row_stays_whose_deletion_would_break_a_check_of_another(hall: Tracker) -> None:
    open_event(hall)
    for answer in (hall.delete("key", "/rows/rooms/r1"), hall.delete("key", f"/rows/rooms?where={quote('{}')}")):
        assert answer.status == 409
        assert "open_has" not in str(answer.json)
    assert hall.get("key", "/rows/events/e2").json["room_id"] == "r1"
    hall.patch("key", "/rows/events/e2", {"state": "draft"})
    assert hall.delete("key", "/rows/rooms/r1").status == 204
    assert hall.get("key", "/rows/events/e2").json["room_id"] is None


def test_a_user_stays_whose_deletion_would_break_a_check(hall: Tracker) -> None:
    open_event(hall)
    alice = User.objects.get(pk=hall.users["alice"])
    with pytest.raises(Conflict):
        user_service.delete_user(alice, actor=audit.SYSTEM)
    assert User.objects.filter(pk=alice.pk).exists()
    hall.patch("key", "/rows/events/e2", {"state": "draft"})
    user_service.delete_user(alice, actor=audit.SYSTEM)
    assert hall.get("key", "/rows/events/e2").json["host_id"] is None


def test_what_a_deleted_user_left_behind_goes_as_far_as_the_checks_allow(hall: Tracker) -> None:
    open_event(hall)
    hall.patch("key", "/rows/events/e1", {"host_id": hall.users["alice"]})
    environment = environment_ref(hall.environment_id)
    assert environment is not None
    user_policies.apply_user_deletion(environment, hall.users["alice"], pending=None)
    assert hall.get("key", "/rows/events/e1").json["host_id"] is None
    assert hall.get("key", "/rows/events/e2").json["host_id"] == hall.users["alice"]


# ── Imports ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_line_of_an_import_that_meets_no_check_is_reported(hall: Tracker, tmp_path: Path) -> None:
    file = tmp_path / "events.csv"
    file.write_text(
        f"starts_at,ends_at,sold,title\n{NOON},{LATER},1,a%\n{LATER},{NOON},1,b\n{NOON},,11,c\n{LATER},{NOON},11,_d\n"
    )
    err = io.StringIO()
    with pytest.raises(CommandError):
        call_command("import_rows", hall.environment_id, "events", str(file), stdout=io.StringIO(), stderr=err)
    told = [line for line in err.getvalue().splitlines() if line.startswith("line")]
    assert told == [
        'line 3: does not meet the check "ends_after_start"',
        'line 4: does not meet the check "not_oversold"',
        'line 5: does not meet the check "ends_after_start"',
    ]
    call_command("import_rows", hall.environment_id, "events", str(file), "--skip-bad", stdout=err, stderr=err)
    assert {row["title"] for row in hall.get("key", "/rows/events").json["data"]} == {"a%", "100% 'fun'"}


def test_a_default_of_now_out_of_range_is_reported(hall: Tracker, tmp_path: Path) -> None:
    columns = {"n": {"type": "integer"}, "at": {"type": "timestamp", "default": "$now", "max": "2020-01-01T00:00:00Z"}}
    hall.apply({"tables": {"notes": {"columns": columns}}})
    assert refused(hall.post("key", "/rows/notes", {"n": 1})) == {"at": "out_of_range"}
    file = tmp_path / "notes.csv"
    file.write_text("n\n1\n")
    err = io.StringIO()
    with pytest.raises(CommandError):
        call_command("import_rows", hall.environment_id, "notes", str(file), stdout=io.StringIO(), stderr=err)
    assert "line 2: at: is out of range" in err.getvalue()


# ── Documents ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("check", "path", "code"),
    [
        ({}, "", "invalid"), ([], "", "invalid"), ("seats > 0", "", "invalid"), ({"$and": []}, "$and", "invalid"),
        ({"seats": {"$in": []}}, "", "invalid"), ({"$not": {"seats": {"$in": []}}}, "", "invalid"),
        ({"seat": 1}, "seat", "unknown"), ({"room": 1}, "room", "wrong_type"), ({"room.name": "x"}, "", "invalid"),
        ({"room": {"$some": {"name": "x"}}}, "", "invalid"), ({"$not": {"room": {"$none": {"name": "x"}}}}, "", "invalid"),
        ({"seats": "1"}, "seats", "wrong_type"), ({"seats": {"$like": "x"}}, "seats.$like", "misplaced"),
        ({"seats": {"$gt": {"$column": "title"}}}, "seats.$gt", "wrong_type"),
        ({"seats": {"$gt": {"$column": "nope"}}}, "seats.$gt", "unknown"),
        ({"starts_at": {"$gt": "$now"}}, "", "invalid"), ({"host_id": "$user.id"}, "", "invalid"),
        ({"$or": [{"seats": 1}, {"title": {"$ne": "$user.claims.x"}}]}, "", "invalid"),
        ({"seats": {"$gt": "$old.seats"}}, "seats.$gt", "unknown"), ({"title": "$nothing"}, "title", "unknown"),
        ({"title": {"$search": "x"}}, "", "misplaced"), ({"$search": "x"}, "", "misplaced"),
        ({"$is": "nothing"}, "$is", "unknown"), ({"$is": "mine"}, "", "invalid"),
        ({"$and": [{"seats": number} for number in range(101)]}, "$and.99.seats", "too_many"),
    ],
)  # fmt: skip
def test_what_is_no_check_is_refused_by_its_path(check: Any, path: str, code: str) -> None:
    document = deepcopy(DOCUMENT)
    document["tables"]["events"]["conditions"] = {"mine": {"host_id": "$user.id"}}
    document["tables"]["events"]["checks"] = {"bad": check}
    with pytest.raises(InvalidDocument) as caught:
        schema_service.read(document)
    [error] = caught.value.errors
    whole = f"tables.events.checks.bad.{path}" if path else "tables.events.checks.bad"
    assert (error.field, error.code) == (whole, code), error.message


@pytest.mark.parametrize(
    ("checks", "path"),
    [
        (None, ""), ([], ""), ({"A": {"seats": 1}}, ".A"), ({"": {"seats": 1}}, '.""'), ({"a" * 49: {"seats": 1}}, "." + "a" * 49),
        ({f"c{number}": {"seats": 1} for number in range(21)}, ""),
    ],
)  # fmt: skip
def test_bad_names_and_too_many_checks_are_refused(checks: Any, path: str) -> None:
    document = deepcopy(DOCUMENT)
    document["tables"]["events"]["checks"] = checks
    with pytest.raises(InvalidDocument) as caught:
        schema_service.read(document)
    assert [error.field for error in caught.value.errors] == [f"tables.events.checks{path}"]


# ── Changes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def events(checks: dict[str, Any] | None = None, **columns: Any) -> Schema:
    table: dict[str, Any] = {
        "columns": {"n": {"type": "integer", "default": 5}, "m": {"type": "integer", "null": True}}
    }
    table["columns"] |= columns
    table["columns"] = {key: column for key, column in table["columns"].items() if column}
    return parse({"tables": {"events": {**table, **({"checks": checks} if checks else {})}}})


BELOW = {"below": {"$or": [{"m": None}, {"n": {"$lt": {"$column": "m"}}}]}}
EVERYTHING: dict[str, Any] = {
    "texts": {"$or": [{"s": {"$ilike": "50\\%' \\_%"}}, {"s": {"$in": ["a%s", "{}", "'"]}}, {"s": {"$ieq": "Ü"}}]},
    "times": {"at": {"$between": ["2026-01-01T00:00:00Z", "2026-12-31T00:00:00+02:00"]}},
    "dates": {"on": {"$nin": ["2026-01-01", None]}},
    "lists": {"tags": {"$hasAny": ["a", 'b"']}},
    "json": {"j": {"$contains": {"a": ["%", "'"]}}, "$not": {"j": {"$hasAll": ["x"]}}},
    "numbers": {"d": {"$gte": "1.50"}, "f": {"$lt": 1e300}, "n": {"$ne": -(2**63)}},
    "truth": {"b": True, "u": {"$ne": "6b1f1c1e-3c1c-4d0e-9d6c-0d2b8a7f5e11"}, "id": {"$startsWith": "x"}},
}
ALL_TYPES: dict[str, Any] = {
    "s": {"type": "text"}, "at": {"type": "timestamp"}, "on": {"type": "date"}, "tags": {"type": "text[]"},
    "j": {"type": "json"}, "d": {"type": "decimal", "precision": 5, "scale": 2}, "f": {"type": "float"},
    "b": {"type": "boolean"}, "u": {"type": "uuid"},
}  # fmt: skip

CHANGES: dict[str, tuple[Schema, Schema, list[str]]] = {
    "add a check": (events(), events(BELOW), ["add check events.below"]),
    "drop a check": (events(BELOW), events(), ["drop check events.below"]),
    "change a check": (
        events(BELOW), events({"below": {"n": {"$lte": 5}}}), ["drop check events.below", "add check events.below"],
    ),
    "keep a check spelled differently": (events(BELOW), events({"below": {"$or": [{"m": {"$null": True}}, *BELOW["below"]["$or"][1:]]}}), []),
    "rename a column of a check": (
        events(BELOW),
        events(
            {"below": {"$or": [{"m": None}, {"amount": {"$lt": {"$column": "m"}}}]}},
            n=None, amount={"type": "integer", "default": 5, "renamed_from": "n"},
        ),
        ["rename column events.n to amount"],
    ),
    "swap the columns of a check": (
        events(BELOW),
        events(
            {"below": {"$or": [{"n": None}, {"m": {"$lt": {"$column": "n"}}}]}},
            n={"type": "integer", "null": True, "renamed_from": "m"}, m={"type": "integer", "default": 5, "renamed_from": "n"},
        ),
        ["rename column events.n to m", "rename column events.m to n"],
    ),
    "rename the table of a check": (
        events(BELOW),
        parse({"tables": {"shows": {**events(BELOW).document["tables"]["events"], "renamed_from": "events"}}}),
        ["rename table events to shows"],
    ),
    "drop a column and its check": (events(BELOW), events(m=None), ["drop check events.below", "drop column events.m"]),
    "change the type of a column of a check": (
        events({"small": {"n": {"$lte": 5}}}),
        events({"small": {"n": {"$lte": "5"}}}, n={"type": "decimal", "precision": 5, "scale": 1, "default": "5"}),
        ["drop check events.small", "alter column events.n", "add check events.small"],
    ),
    "change the types of both columns of a check": (
        events(BELOW),
        events(BELOW, n={"type": "text", "default": "5"}, m={"type": "text", "null": True, "max_length": 9}),
        ["drop check events.below", "alter column events.m", "alter column events.n", "add check events.below"],
    ),
    "add a column and a check over it": (
        events(), events({"fresh": {"x": {"$gt": 0}}}, x={"type": "integer", "backfill": 1}),
        ["add column events.x", "add check events.fresh"],
    ),
    "lengthen a text of a check": (
        events({"s": {"s": {"$ne": ""}}}, s={"type": "text", "max_length": 5, "default": "a"}),
        events({"s": {"s": {"$ne": ""}}}, s={"type": "text", "default": "a"}),
        ["alter column events.s"],
    ),
}  # fmt: skip


@ROLLED_BACK
@pytest.mark.parametrize("what", CHANGES)
def test_a_change_over_rows_leaves_the_catalog_of_a_fresh_schema(what: str) -> None:
    first, second, operations = CHANGES[what]
    make("t_changed", first)
    run("t_changed", "INSERT INTO events (id) VALUES ('e1')")
    make("t_fresh", parse(second.document))
    applied = change("t_changed", first, second)
    assert sorted(operation.name for operation in applied.operations) == sorted(operations)
    assert catalog.catalog("t_changed") == catalog.catalog("t_fresh")
    assert planner.plan(second, parse(second.document)).is_empty


@ROLLED_BACK
def test_every_operator_and_type_is_written_out_as_postgresql_reads_it() -> None:
    make("t_env", catalog.schema(a={"columns": {**ALL_TYPES, "n": {"type": "integer"}}, "checks": EVERYTHING}))
    good = {
        "id": "'x1'", "s": "E'50%\\' _x'", "at": "'2026-06-01'", "on": "'2026-01-02'", "tags": "'{\"b\\\"\"}'",
        "j": '\'{"a": ["%", "\'\'"]}\'', "d": "1.5", "f": "1", "n": "0", "b": "true", "u": "gen_random_uuid()",
    }  # fmt: skip

    def insert(**changed: str) -> None:
        row = {**good, **changed}
        names = ", ".join(f'"{name}"' for name in row)
        run("t_env", f"INSERT INTO a ({names}) VALUES ({', '.join(row.values())})".replace("%", "%%"))

    insert()
    for number, text in enumerate(("'a%s'", "'{}'", "''''", "'ü'")):
        insert(id=f"'x2{number}'", s=text)
    for column, value in (
        ("s", "'50x'' _x'"), ("s", "'a'"), ("at", "'2027-01-01'"), ("on", "'2026-01-01'"), ("tags", "'{c}'"), ("id", "'y'"),
        ("j", "'{\"a\": [\"%\"]}'"), ("j", '\'{"x": 1, "a": ["%", "\'\'"]}\''), ("d", "1.49"), ("f", "1e301"), ("b", "false"),
        ("n", "-9223372036854775808"), ("u", "'6b1f1c1e-3c1c-4d0e-9d6c-0d2b8a7f5e11'"),
    ):  # fmt: skip
        with pytest.raises(IntegrityError):
            insert(**{"id": "'x9'", column: value})


def test_a_plan_counts_and_lists_the_rows_in_the_way(hall: Tracker) -> None:
    hall.post("key", "/rows/events", [{"id": f"x{n}", "starts_at": NOON, "sold": n, "seats": 5} for n in range(6)])
    document = deepcopy(DOCUMENT)
    table = document["tables"]["events"]
    table["columns"]["taken"] = {**table["columns"].pop("sold"), "renamed_from": "sold"}
    table["checks"] = {"half": {"taken": {"$lte": 3}}, "titled": {"title": {"$ne": ""}}}
    table["rules"] = {}
    for dry_run in (True, False):
        answer = hall.call("owner", "PUT", "/schema", json={"document": document, "dry_run": dry_run})
        assert refused(answer) == {"document.tables.events.checks.half": "conflict"}
        assert messages(answer) == {"existing rows have values that this does not allow (2): x4, x5"}
    hall.patch("key", f"/rows/events?where={quote('{}')}", {"sold": 3})
    hall.apply(document)
    assert refused(hall.patch("key", "/rows/events/x1", {"taken": 4})) == {"taken": "check_failed"}


def test_a_check_goes_and_comes_back_with_a_revert(hall: Tracker) -> None:
    before = catalog.catalog(hall.environment_id)
    document = deepcopy(DOCUMENT)
    columns = document["tables"]["events"]["columns"]
    columns["places"] = {**columns.pop("seats"), "renamed_from": "seats"}
    document["tables"]["events"] |= {"checks": {}, "rules": {}}
    hall.apply(document)
    assert hall.patch("key", "/rows/events/e1", {"sold": 11}).status == 200
    back = hall.call("owner", "POST", "/schema/revert", json={"version": 1})
    assert refused(back) == {"document.tables.events.checks.not_oversold": "conflict"}
    hall.patch("key", "/rows/events/e1", {"sold": 10})
    assert hall.call("owner", "POST", "/schema/revert", json={"version": 1}).status == 200
    assert catalog.catalog(hall.environment_id) == before


def test_a_named_condition_of_a_check_changes_the_check(hall: Tracker) -> None:
    document = deepcopy(DOCUMENT)
    table = document["tables"]["events"]
    table |= {"conditions": {"fits": {"sold": {"$lte": 10}}}, "checks": {"all_fit": {"$is": "fits"}}, "rules": {}}
    hall.apply(document)
    assert refused(hall.patch("key", "/rows/events/e1", {"sold": 11})) == {"sold": "check_failed"}
    table["conditions"]["fits"] = {"sold": {"$lte": 11}}
    names = [operation["operation"] for operation in hall.apply(document).json["operations"]]
    assert names == ["drop check events.all_fit", "add check events.all_fit", "change condition fits of events"]
    assert hall.patch("key", "/rows/events/e1", {"sold": 11}).status == 200


# ── Any condition ───────────────────────────────────────────────────────────────────────────────────────────────────


class OwnCells(random_documents.Conditions):
    """Conditions as a check may have: no relations, no variables."""

    def variables(self, type_: str, *, many: bool = False) -> st.SearchStrategy[Any]:
        return st.nothing()

    def quantified(self, table: str, depth: int) -> st.SearchStrategy[Any]:
        return self.comparison(table)


EVERY_COLUMN = parse({"tables": {"lists": {"columns": random_documents.COLUMNS}}})
CONDITIONS = OwnCells({"tables": {"lists": {"columns": random_documents.COLUMNS}}}, [], is_rule=True).of("lists")


@pytest.fixture(scope="module")
def sample(django_db_setup: None, django_db_blocker: Any) -> Iterator[list[dict[str, Any]]]:
    """Rows with every value of every column and with nulls, as the API shows them, in the schema `t_sample`."""
    chance = random.Random(24)
    types = random_documents.type_of(EVERY_COLUMN.document, "lists")
    rows = [
        {
            "id": f"r{number}",
            **{name: chance.choice([None, *random_documents.VALUES[kind]]) for name, kind in types.items()},
        }
        for number in range(40)
    ]
    with django_db_blocker.unblock():
        make("t_sample", EVERY_COLUMN)
        table = EVERY_COLUMN.tables["lists"]
        for row in rows:
            cells = {name: encode_cell(table, table.all_columns[name], value) for name, value in row.items()}
            given = {name: cell.decode() for name, cell in cells.items() if cell is not None}
            names = ", ".join(f'"{name}"' for name in given)
            marks = ", ".join(f"%s::{SQL_TYPES[table.all_columns[name].type]}" for name in given)
            run("t_sample", f"INSERT INTO lists ({names}) VALUES ({marks})", *given.values())
        yield rows
        with connections[catalog.REGION].cursor() as cursor:
            cursor.execute("DROP SCHEMA t_sample CASCADE")
        connections[catalog.REGION].close()


@pytest.mark.exhaustive
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(document=CONDITIONS)
def test_a_check_holds_of_the_rows_of_which_its_condition_holds(sample: list[dict[str, Any]], document: Any) -> None:
    table = replace(EVERY_COLUMN.tables["lists"], checks={"any": document})
    schema = Schema({"lists": table}, {})
    try:
        condition = checks.read(table, "any", Ruleset(schema).author)
    except InvalidCondition:  # $search, or true or false of every row
        assume(False)
        raise
    expected = [row["id"] for row in sample if holds(condition, row, Facts())]
    text = table_checks.text_of(table, condition)
    found = run("t_sample", f"SELECT id FROM lists WHERE {text} ORDER BY ctid".replace("%", "%%"))
    assert [row_id for (row_id,) in found] == expected
    names = {name: f"{name}_now" for name in table.columns}
    back = {now: name for name, now in names.items()}
    moved = checks.renamed(condition, names)
    assert checks.columns_of(moved) <= {*back, "id", "created_at", "updated_at"}
    assert checks.renamed(moved, back) == condition
