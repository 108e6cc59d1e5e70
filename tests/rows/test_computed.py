"""`{"$inc": 1}` and the like: a cell is computed from what it is, under the row's lock, and tells of nothing hidden."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, LiteralString
from urllib.parse import quote

import pytest
from django.db import connections
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from platform_site.http.errors import ValidationFailed
from platform_site.postgres.row_access import row_access
from rows.models import EventInterest, OutboxEvent
from rows.schema.model import Column
from rows.write import update_operators
from rows.write.row_size import LARGE_WRITE
from rows.write.statements import writes
from rows.write.statements.shapes import UpdateShape
from rows.write.update_operators import MAX_TEXTS, OPERATORS, Operator
from tests.rows.conftest import Tracker
from tests.support.client import Answer
from tests.support.concurrency import another_session, at_once, is_blocked
from tests.support.row_statistics import counted_blocks
from tests.support.service import wait_for
from tests.support.tenants import KEY, REGION, Tenant

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(databases="__all__", transaction=True)]

MOST = 2**63 - 1
FLOAT = 1.7976931348623157e308
DOCUMENT: dict[str, Any] = {
    "tables": {
        "things": {
            "columns": {
                "title": {"type": "text", "null": True},
                "n": {"type": "integer", "null": True},
                "m": {"type": "integer", "default": 5},
                "price": {"type": "decimal", "precision": 5, "scale": 2, "null": True},
                "weight": {"type": "float", "null": True},
                "tags": {"type": "text[]", "null": True},
                "labels": {"type": "text[]", "default": ["new"]},
                "meta": {"type": "json", "null": True},
                "done": {"type": "boolean", "null": True},
                "day": {"type": "date", "null": True},
                "kind": {"type": "enum", "values": ["a", "b"], "null": True},
                "slot": {"type": "integer", "null": True},
                "secret": {"type": "integer", "null": True},
                "secrets": {"type": "text[]", "null": True},
                "shared": {"type": "boolean", "default": False},
                "owner": {"type": "user", "null": True},
            },
            "unique": [["slot"]],
            "rules": {
                "user": {
                    "read": [
                        {"where": {"owner_id": "$user.id"}, "columns": ["*", "-secret", "-secrets"]},
                        {"where": {"shared": True}, "columns": ["title", "n"]},
                        {"columns": ["title"]},
                    ],
                    "insert": {"set": {"owner_id": "$user.id"}},
                    "update": {
                        "columns": ["*", "-owner_id", "-done", "-shared"],
                        "check": {"$or": [{"n": None}, {"n": {"$lte": 100}}]},
                    },
                }
            },
        },
        "budgets": {
            "columns": {
                "spent": {"type": "integer", "default": 0},
                "budget": {"type": "integer", "default": 0},
                "tags": {"type": "text[]", "default": []},
                "name": {"type": "text", "null": True},
                "up": {"type": "reference", "to": "budgets", "on_delete": "cascade", "null": True},
            },
            "rules": {
                "user": {
                    "read": {},
                    "update": {
                        "columns": ["spent", "budget", "tags", "up_id"],
                        "set": {"name": "$user.id"},
                        "check": {
                            "spent": {"$gte": 0, "$lte": "$old.budget"},
                            "$not": {"tags": {"$has": "bad"}},
                            "$or": [{"up_id": None}, {"up.budget": {"$gte": 10}}],
                        },
                    },
                }
            },
        },
        "nodes": {
            "columns": {
                "weight": {"type": "integer", "default": 0},
                "tags": {"type": "text[]", "default": []},
                "up": {"type": "reference", "to": "nodes", "on_delete": "cascade", "null": True},
            },
            "rules": {"user": {"read": {}, "update": {"check": {"nodes": {"$none": {"up.weight": {"$gt": 5}}}}}}},
        },
    }
}


@pytest.fixture
def tracker(make_tracker: Any) -> Tracker:
    made: Tracker = make_tracker(DOCUMENT)
    return made


def add(tracker: Tracker, *rows: dict[str, Any], table: str = "things") -> None:
    answer = tracker.post("operator", f"/rows/{table}", list(rows))
    assert answer.status == 201, answer.json


def change(tracker: Tracker, who: str, row: str, changes: Any, table: str = "things", **how: Any) -> Answer:
    return tracker.patch(who, f"/rows/{table}/{row}", changes, **how)


def held(tracker: Tracker, row: str, table: str = "things") -> dict[str, Any]:
    found: dict[str, Any] = tracker.get("operator", f"/rows/{table}/{row}").json
    return found


def behind_its_back(tracker: Tracker, sql: LiteralString, *values: Any) -> None:
    """SQL past the service, such as for cells that are longer than a body."""
    with another_session(tracker) as other:
        other.execute(sql, values)
        other.commit()


def refused(answer: Answer) -> tuple[int, dict[str, str]]:
    return answer.status, answer.fields


def without_id(answer: Answer) -> str:
    """The bytes of a refusal, but for what is different in each answer."""
    return json.dumps(answer.json["error"] | {"request_id": ""})


COMPUTED: list[tuple[str, Any, dict[str, Any], Any]] = [
    ("n", 5, {"$inc": 3}, 8), ("n", 5, {"$inc": -7}, -2), ("n", None, {"$inc": 3}, 3), ("n", 5, {"$inc": 0}, 5),
    ("n", MOST - 1, {"$inc": 1}, MOST), ("n", 1 - MOST, {"$inc": -2}, -MOST - 1), ("n", -MOST - 1, {"$inc": MOST}, -1),
    ("n", -1, {"$inc": -MOST}, -MOST - 1), ("n", 0, {"$inc": -MOST - 1}, -MOST - 1), ("n", None, {"$inc": MOST}, MOST),
    ("price", "1.50", {"$inc": "0.25"}, "1.75"), ("price", None, {"$inc": "-0.01"}, "-0.01"),
    ("price", "999.98", {"$inc": "0.01"}, "999.99"), ("price", "1.00", {"$inc": 2}, "3.00"),
    ("price", "-999.99", {"$inc": "999.99"}, "0.00"), ("price", "0.10", {"$inc": "0.2000"}, "0.30"),
    ("weight", 1.5, {"$inc": 0.25}, 1.75), ("weight", None, {"$inc": -2}, -2), ("weight", 0.1, {"$inc": 0.2}, 0.1 + 0.2),
    ("weight", FLOAT, {"$inc": 1.0}, FLOAT), ("weight", FLOAT, {"$inc": -FLOAT}, 0), ("weight", None, {"$inc": FLOAT}, FLOAT),
    ("weight", 5e-324, {"$inc": 5e-324}, 1e-323),
    ("tags", ["a"], {"$append": ["b", "a", "b"]}, ["a", "b", "a", "b"]), ("tags", None, {"$append": ["a"]}, ["a"]),
    ("tags", [], {"$append": []}, []), ("tags", ["a"], {"$append": ["", "NULL", 'x"y\\,{}']}, ["a", "", "NULL", 'x"y\\,{}']),
    ("tags", ["a", "b"], {"$add": ["c", "b", "d", "c"]}, ["a", "b", "c", "d"]), ("tags", None, {"$add": ["z", "a"]}, ["z", "a"]),
    ("tags", ["a", "a"], {"$add": ["a"]}, ["a", "a"]), ("tags", ["a"], {"$add": []}, ["a"]),
    ("tags", ["a", "b", "a", "c"], {"$remove": ["a", "x"]}, ["b", "c"]), ("tags", None, {"$remove": ["a"]}, []),
    ("tags", ["a"], {"$remove": ["a"]}, []), ("tags", ["ä", "A"], {"$remove": ["a", "Ä"]}, ["ä", "A"]),
]  # fmt: skip


def test_each_operator_computes_from_what_is_there(tracker: Tracker) -> None:
    """The answer has the new value, and nothing else of the row changes."""
    for number, (column, before, operation, after) in enumerate(COMPUTED):
        row = f"r{number}"
        add(tracker, {"id": row, "title": "t", column: before})
        old = held(tracker, row)
        answer = change(tracker, "key", row, {column: operation})
        assert answer.status == 200, (column, before, operation, answer.json)
        new = held(tracker, row)
        assert answer.json == new == {**old, column: after, "updated_at": new["updated_at"]}, (
            column,
            before,
            operation,
        )
        assert new["updated_at"] > old["updated_at"]
        assert answer.headers["ETag"] == tracker.get("key", f"/rows/things/{row}").headers["ETag"]


def test_several_columns_at_once_beside_plain_values(tracker: Tracker) -> None:
    add(tracker, {"id": "a", "n": 1, "price": "1.00", "tags": ["x"]})
    changes = {"n": {"$inc": 1}, "price": {"$inc": "1"}, "tags": {"$add": ["y"]}, "title": "new", "meta": {"$inc": 1}}
    assert change(tracker, "key", "a", changes).status == 200
    found = held(tracker, "a")
    assert {name: found[name] for name in changes} == {
        "n": 2, "price": "2.00", "tags": ["x", "y"], "title": "new", "meta": {"$inc": 1},
    }  # fmt: skip


def test_an_object_in_a_json_column_is_a_value(tracker: Tracker) -> None:
    add(tracker, {"id": "a"})
    for value in ({"$inc": 1}, {"$append": ["x"]}, {"$nothing": None}, {}, {"$inc": 1, "$add": []}):
        assert change(tracker, "key", "a", {"meta": value}).json["meta"] == value


BAD: list[tuple[str, Any, str]] = [
    ("n", {"$inc": None}, "null"), ("n", {"$inc": True}, "wrong_type"), ("n", {"$inc": "1"}, "wrong_type"),
    ("n", {"$inc": 1.5}, "wrong_type"), ("n", {"$inc": [1]}, "wrong_type"), ("n", {"$inc": {"$inc": 1}}, "wrong_type"),
    ("n", {"$inc": 2**63}, "out_of_range"),
    ("n", {"$increment": 1}, "unknown_operator"), ("n", {"$inc ": 1}, "unknown_operator"), ("n", {"$": 1}, "unknown_operator"),
    ("n", {"$inc": 1, "$x": 1}, "unknown_operator"), ("n", {"$append": ["a"]}, "misplaced"), ("n", {"$inc": 1, "$add": []}, "misplaced"),
    ("n", {}, "wrong_type"), ("n", {"inc": 1}, "wrong_type"), ("n", {"$inc": 1, "x": 1}, "wrong_type"), ("n", [{"$inc": 1}], "wrong_type"),
    ("price", {"$inc": "x"}, "wrong_type"), ("price", {"$inc": "NaN"}, "wrong_type"), ("price", {"$inc": "1e2"}, "wrong_type"),
    ("price", {"$inc": "0.001"}, "too_precise"), ("price", {"$inc": "1000"}, "out_of_range"), ("price", {"$inc": False}, "wrong_type"),
    ("price", {"$inc": None}, "null"), ("weight", {"$inc": "1"}, "wrong_type"), ("weight", {"$inc": True}, "wrong_type"),
    ("weight", {"$inc": None}, "null"),
    ("tags", {"$append": None}, "null"), ("tags", {"$append": "a"}, "wrong_type"), ("tags", {"$append": ["a", None]}, "wrong_type"),
    ("tags", {"$append": [1]}, "wrong_type"), ("tags", {"$append": [["a"]]}, "wrong_type"), ("tags", {"$append": {"$add": ["a"]}}, "wrong_type"),
    ("tags", {"$add": ["x"] * (MAX_TEXTS + 1)}, "too_many"), ("tags", {"$append": ["a"], "$remove": ["b"]}, "too_many"),
    ("tags", {"$inc": 1}, "misplaced"), ("tags", {"$push": ["a"]}, "unknown_operator"), ("tags", {"$addToSet": ["a"]}, "unknown_operator"),
    ("title", {"$inc": 1}, "misplaced"), ("title", {"$append": ["a"]}, "misplaced"), ("title", {"$x": 1}, "wrong_type"),
    ("done", {"$inc": 1}, "misplaced"), ("day", {"$inc": 1}, "misplaced"), ("kind", {"$inc": 1}, "misplaced"),
    ("owner_id", {"$inc": 1}, "misplaced"), ("id", {"$inc": 1}, "read_only"), ("updated_at", {"$inc": 1}, "read_only"),
    ("nothing", {"$inc": 1}, "unknown"),
]  # fmt: skip


def test_what_is_no_operator_is_refused_and_names_its_column(tracker: Tracker) -> None:
    add(tracker, {"id": "a", "n": 1, "price": "1.00", "weight": 1.0, "tags": ["a"]})
    before = held(tracker, "a")
    for column, value, code in BAD:
        for answer in (
            change(tracker, "key", "a", {column: value, "slot": 1}),
            tracker.patch("key", f"/rows/things?where={quote('{}')}", {column: value, "slot": 1}),
        ):
            assert refused(answer) == (422, {column: code}), (column, value, answer.json)
    everything = change(tracker, "key", "a", {"n": {"$inc": None}, "price": {"$x": 1}, "tags": {"$inc": 1}, "title": 5})
    assert everything.fields == {"n": "null", "price": "unknown_operator", "tags": "misplaced", "title": "wrong_type"}
    told = [field["message"] for field in everything.json["error"]["fields"]]
    assert told[:3] == [
        "$inc: must not be null.",
        "There is no such operator. This column takes $inc.",
        "$inc cannot be used on a column of type text[].",
    ]
    assert held(tracker, "a") == before


def test_operands_that_are_no_numbers_of_any_column(tracker: Tracker) -> None:
    add(tracker, {"id": "a", "n": 1, "price": "1.00", "weight": 1.0})
    before = held(tracker, "a")

    def ask(column: str, number: bytes) -> Answer:
        return tracker.call("key", "PATCH", "/rows/things/a", body=b'{"%b": {"$inc": %b}}' % (column.encode(), number))

    for column, number, code in (
        ("n", b"9223372036854775808", "out_of_range"), ("n", b"-9223372036854775809", "out_of_range"),
        ("n", b"1.0", "wrong_type"), ("price", b"0.1234567890123456789", "invalid"),
    ):  # fmt: skip
        assert refused(ask(column, number)) == (422, {column: code}), (column, number)
    for number in (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"1" + b"0" * 400, b"1" + b"0" * 5_000):
        for column in ("n", "price", "weight"):
            assert ask(column, number).status in (400, 422), (column, number)
    assert held(tracker, "a") == before


def test_a_sum_that_is_no_value_of_its_column_is_refused(tracker: Tracker) -> None:
    for column, before, operand in (
        ("n", MOST, 1), ("n", 1, MOST), ("n", -MOST - 1, -1), ("n", -2, -MOST), ("price", "999.99", "0.01"),
        ("price", "-999.99", "-0.01"), ("price", "0.01", "999.99"), ("weight", FLOAT, FLOAT), ("weight", -1e308, -1e308),
        ("weight", FLOAT, 2.0**970),
    ):  # fmt: skip
        tracker.delete("operator", "/rows/things/a")
        add(tracker, {"id": "a", column: before})
        row = held(tracker, "a")
        answer = change(tracker, "key", "a", {column: {"$inc": operand}, "title": "x"})
        assert refused(answer) == (422, {column: "out_of_range"}), (column, before, operand, answer.json)
        assert (
            answer.json["error"]["fields"][0]["message"] == "$inc: the sum would be outside of what the column holds."
        )
        many = tracker.patch("key", f"/rows/things?where={quote('{}')}", {column: {"$inc": operand}})
        assert refused(many) == (422, {column: "out_of_range"})
        assert many.json["error"]["fields"][0]["message"].startswith("a: $inc")
        assert held(tracker, "a") == row


# ── Nobody's change is lost ─────────────────────────────────────────────────────────────────────────────────────────


def test_forty_increments_at_the_same_moment_are_forty(tracker: Tracker) -> None:
    add(tracker, {"id": "a", "n": 2})

    def one(number: int) -> int:
        return change(tracker, "key", "a", {"n": {"$inc": 1}, "tags": {"$append": [str(number)]}}).status

    statuses = at_once(*[lambda number=number: one(number) for number in range(40)])  # type: ignore[misc]
    assert statuses == [200] * 40
    found = held(tracker, "a")
    assert found["n"] == 42
    assert sorted(found["tags"], key=int) == [str(number) for number in range(40)]


def test_it_is_computed_from_what_another_has_just_committed(tracker: Tracker) -> None:
    """So is whether there is space, and whether the rules permit it."""
    add(tracker, {"id": "a", "n": 1, "tags": ["x"], "owner_id": tracker.users["alice"]})
    cases: list[tuple[str, LiteralString, Any, int]] = [
        ("alice", "UPDATE things SET n = 50", {"n": {"$inc": 50}}, 200),
        ("alice", "UPDATE things SET n = 51", {"n": {"$inc": 50}}, 422),
        ("key", "UPDATE things SET n = 9223372036854775807", {"n": {"$inc": 1}}, 422),
        ("key", "UPDATE things SET tags = '{y,z}'", {"tags": {"$add": ["z", "w"]}}, 200),
    ]
    for who, theirs, operation, status in cases:
        behind_its_back(tracker, "UPDATE things SET n = 1")
        with another_session(tracker) as other, ThreadPoolExecutor(1) as pool:
            other.execute(theirs)
            asked = pool.submit(
                at_once, lambda who=who, operation=operation: change(tracker, who, "a", operation).status
            )
            wait_for("the update waits", is_blocked)
            other.commit()
            assert asked.result(30) == [status], theirs
    assert (held(tracker, "a")["n"], held(tracker, "a")["tags"]) == (1, ["y", "z", "w"])


def test_the_same_request_twice_adds_once(tracker: Tracker) -> None:
    add(tracker, {"id": "a", "n": 1, "m": 1})
    headers = {"Idempotency-Key": "once"}
    first = change(tracker, "key", "a", {"n": {"$inc": 1}}, headers=headers)
    again = change(tracker, "key", "a", {"n": {"$inc": 1}}, headers=headers)
    assert (again.status, again.body, again.headers["Idempotency-Replayed"]) == (200, first.body, "true")
    path = f"/rows/things?where={quote('{}')}"
    for _ in range(2):
        assert tracker.patch("key", path, {"m": {"$inc": 1}}, headers={"Idempotency-Key": "many"}).status == 200
    assert (held(tracker, "a")["n"], held(tracker, "a")["m"]) == (2, 2)
    other = change(tracker, "key", "a", {"n": {"$inc": 5}}, headers=headers)
    assert other.status == 422
    assert held(tracker, "a")["n"] == 2


def test_a_tag_is_compared_before_anything_is_computed(tracker: Tracker) -> None:
    add(tracker, {"id": "a", "n": MOST})
    etag = tracker.get("key", "/rows/things/a").headers["ETag"]
    assert change(tracker, "key", "a", {"n": {"$inc": 1}}, headers={"If-Match": '"other"'}).status == 412
    assert change(tracker, "key", "a", {"n": {"$inc": 1}}, headers={"If-Match": etag}).fields == {"n": "out_of_range"}
    assert change(tracker, "key", "a", {"n": {"$inc": -1}}, headers={"If-Match": etag}).status == 200
    assert change(tracker, "key", "a", {"n": {"$inc": -1}}, headers={"If-Match": etag}).status == 412
    assert held(tracker, "a")["n"] == MOST - 1


SMALL: dict[str, Any] = {
    "n": st.integers(-5, 5) | st.sampled_from([MOST, -MOST - 1]),
    "price": st.decimals(-999, 999, places=2, allow_nan=False).map(str),
    "weight": st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([FLOAT, -FLOAT]),
    "tags": st.lists(st.sampled_from(["", "a", "b", "A", "{", '"', "NULL", "\\"]), max_size=5),
}
TYPES = {"n": "integer", "price": "decimal", "weight": "float", "tags": "text[]"}


def modelled(column: str, before: Any, operator: str, operand: Any) -> Any:
    """What Python makes of it; None where it is no value of the column."""
    match operator:
        case "$inc" if column == "n":
            after: Any = (before or 0) + operand
            return after if -MOST - 1 <= after <= MOST else None
        case "$inc" if column == "price":
            exact = Decimal(before or 0) + Decimal(operand)
            return f"{exact:.2f}" if abs(exact) < 1000 else None
        case "$inc":
            after = (before or 0.0) + operand
            return after if math.isfinite(after) else None
        case "$append":
            return [*(before or []), *operand]
        case "$add":
            after = [*(before or [])]
            for text in operand:
                if text not in after:
                    after.append(text)
            return after
        case _:
            return [text for text in before or [] if text not in operand]


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_sequence_of_operators_is_what_python_makes_of_it(data: st.DataObject) -> None:
    tenant = Tenant(DOCUMENT)
    row = tenant.put(
        "things", **{column: data.draw(st.none() | SMALL[column], f"{column} at first") for column in TYPES}
    )
    for _ in range(12):
        model = tenant.get(KEY, "things", row)
        column = data.draw(st.sampled_from(sorted(TYPES)), "column")
        operator = data.draw(st.sampled_from(OPERATORS[TYPES[column]]), "operator")  # type: ignore[index]
        operand = data.draw(SMALL[column], "operand")
        expected = modelled(column, model[column], operator, operand)
        if expected is None:
            with pytest.raises(ValidationFailed) as found:
                tenant.update(KEY, "things", row, **{column: {operator: operand}})
            assert [(field.field, field.code) for field in found.value.fields] == [(column, "out_of_range")]
            expected = model[column]
        else:
            tenant.update(KEY, "things", row, **{column: {operator: operand}})
        now = tenant.get(KEY, "things", row)
        assert now == {**model, column: expected, "updated_at": now["updated_at"]}


@given(operand=st.floats(allow_nan=False, allow_infinity=False), nearby=st.integers(-3, 3))
def test_the_room_of_a_float_ends_where_the_sum_is_infinite(operand: float, nearby: int) -> None:
    change = update_operators.read(Column("w", "w", "float"), {"$inc": operand})
    assert change is not None
    least, greatest = (float(wire) for wire in change.bounds.values())
    for end in (least, greatest):
        cell = end
        for _ in range(abs(nearby)):
            cell = math.nextafter(cell, math.copysign(math.inf, nearby))
        if math.isfinite(cell):
            exact = abs(Fraction(cell) + Fraction(operand))
            assert (least <= cell <= greatest) == (exact < 2**1024 - 2**970)
            assert (least <= cell <= greatest) == math.isfinite(cell + operand)


# ── Rules ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_check_is_asked_of_what_was_computed(tracker: Tracker) -> None:
    add(tracker, {"id": "a", "budget": 10}, {"id": "low", "budget": 1}, {"id": "high", "budget": 10}, table="budgets")

    def ask(**changes: Any) -> Answer:
        return change(tracker, "alice", "a", changes, table="budgets")

    spent = ask(spent={"$inc": 10})
    assert (spent.status, spent.json["spent"], spent.json["name"]) == (200, 10, tracker.users["alice"])
    before = held(tracker, "a", "budgets")
    # Compared with what the budget was, not with what this write makes of it.
    assert refused(ask(spent={"$inc": 1}, budget={"$inc": 5})) == (422, {"spent": "not_allowed"})
    assert refused(ask(spent={"$inc": -11})) == (422, {"spent": "not_allowed"})
    assert refused(ask(tags={"$append": ["good", "bad"]})) == (422, {"tags": "not_allowed"})
    assert refused(ask(tags={"$add": ["bad"]}, spent={"$inc": -1})) == (422, {"tags": "not_allowed"})
    assert refused(ask(up_id="low", spent={"$inc": -1})) == (422, {"up_id": "not_allowed"})
    assert refused(ask(name={"$inc": 1})) == (422, {"name": "read_only"})
    assert held(tracker, "a", "budgets") == before
    assert ask(up_id="high", spent={"$inc": -1}, tags={"$add": ["good"]}, budget={"$inc": -1}).status == 200
    after = held(tracker, "a", "budgets")
    assert (after["up_id"], after["spent"], after["tags"], after["budget"]) == ("high", 9, ["good"], 9)


def test_a_check_that_looks_back_into_the_table_sees_what_was_computed(tracker: Tracker) -> None:
    add(tracker, {"id": "up"}, {"id": "down", "up_id": "up"}, table="nodes")
    assert change(tracker, "alice", "up", {"weight": {"$inc": 5}}, table="nodes").json["weight"] == 5
    refusal = change(tracker, "alice", "up", {"weight": {"$inc": 1}, "tags": {"$add": ["x"]}}, table="nodes")
    assert refusal.status == 404
    assert (held(tracker, "up", "nodes")["weight"], held(tracker, "up", "nodes")["tags"]) == (5, [])
    many = tracker.patch("alice", f"/rows/nodes?where={quote('{}')}", {"tags": {"$append": ["x"]}})
    assert many.json["ids"] == ["down", "up"]
    assert held(tracker, "up", "nodes")["tags"] == held(tracker, "down", "nodes")["tags"] == ["x"]


def test_a_unique_value_that_is_computed_and_taken(tracker: Tracker) -> None:
    add(tracker, {"id": "a", "slot": 1}, {"id": "b", "slot": 2})
    assert refused(change(tracker, "key", "a", {"slot": {"$inc": 1}})) == (422, {"slot": "taken"})
    assert held(tracker, "a")["slot"] == 1


LENGTHEN_SECRETS: Final = "UPDATE things SET secrets[1] = repeat('x', 8380000) WHERE length(secrets[1]) = 1000"
LENGTHEN_TAGS: Final = "UPDATE things SET tags[1] = repeat('x', 8380000) WHERE tags[1] = 'long'"
HIDDEN: list[dict[str, Any]] = [
    {"secret": None, "secrets": None},
    {"secret": 0, "secrets": []},
    {"secret": MOST, "secrets": ["x"]},
    {"secret": -MOST - 1, "secrets": ["x" * 1_000]},
]


def test_an_operator_on_a_column_that_is_not_read_tells_nothing(tracker: Tracker) -> None:
    """By whether a sum overflows, one could find a number that one may write and not read."""
    told: dict[str, set[str]] = {}
    for number, cells in enumerate(HIDDEN):
        add(tracker, {"id": f"r{number}", "owner_id": tracker.users["alice"], "n": number, **cells})
        behind_its_back(tracker, LENGTHEN_SECRETS)
        before = held(tracker, f"r{number}")
        for changes in (
            {"secret": {"$inc": 1}}, {"secret": {"$inc": MOST}}, {"secret": {"$inc": 0}, "n": {"$inc": 1}},
            {"secrets": {"$append": ["x"]}}, {"secrets": {"$add": ["x"]}}, {"secrets": {"$remove": ["x"]}},
        ):  # fmt: skip
            answer = change(tracker, "alice", f"r{number}", changes)
            assert refused(answer) == (422, {next(iter(changes)): "not_allowed"})
            told.setdefault(json.dumps(changes), set()).add(without_id(answer))
        assert held(tracker, f"r{number}") == before
        assert change(tracker, "alice", f"r{number}", {"secret": 3}).status == 200, "a value may be written as ever"
    assert {len(answers) for answers in told.values()} == {1}
    made = tracker.post("alice", "/rows/things", {"secret": {"$inc": 1}})
    assert refused(made) == (422, {"secret": "not_allowed"})


def test_an_operator_on_a_cell_that_is_not_read_tells_nothing(tracker: Tracker) -> None:
    """Alice sees of bob's rows the titles, and may write their other columns; of his shared ones she also sees `n`."""
    bobs = {"owner_id": tracker.users["bob"]}
    told: dict[str, set[str]] = {}
    cells: list[dict[str, Any]] = [
        {}, {"n": 1, "m": MOST, "price": "999.99", "weight": FLOAT, "tags": ["bad"], "slot": 1},
        {"n": MOST, "m": 0, "price": "-999.99", "weight": -FLOAT, "tags": ["long"], "slot": 2},
        {"n": 100, "slot": 3, "labels": []}, {"n": 101, "slot": MOST},
    ]  # fmt: skip
    for number, row in enumerate(cells):
        add(tracker, {"id": f"r{number}", **bobs, **row})
        behind_its_back(tracker, LENGTHEN_TAGS)
        before = held(tracker, f"r{number}")
        for changes in (
            {"n": {"$inc": 0}}, {"n": {"$inc": 1}}, {"n": {"$inc": MOST}}, {"m": {"$inc": 1}}, {"price": {"$inc": "0.01"}},
            {"weight": {"$inc": FLOAT}}, {"tags": {"$append": ["x" * 900_000]}}, {"tags": {"$add": ["bad"]}},
            {"tags": {"$remove": ["bad"]}}, {"labels": {"$add": ["new"]}}, {"slot": {"$inc": 1}}, {"slot": {"$inc": MOST}},
            {"title": "x", "m": {"$inc": 1}},
        ):  # fmt: skip
            answer = change(tracker, "alice", f"r{number}", changes)
            assert answer.status == 422, (row, changes, answer.json)
            assert list(answer.fields.values()) == ["not_allowed"]
            told.setdefault(json.dumps(changes), set()).add(without_id(answer))
            where = quote(json.dumps({"id": f"r{number}"}))
            many = tracker.patch("alice", f"/rows/things?where={where}", changes)
            assert (many.status, many.fields) == (422, answer.fields)
            told.setdefault(f"many {json.dumps(changes)}", set()).add(without_id(many).replace(f"r{number}:", ":"))
        assert held(tracker, f"r{number}") == before
    assert {len(answers) for answers in told.values()} == {1}


def test_what_is_refused_for_one_cell_tells_of_the_readable_others_only(tracker: Tracker) -> None:
    add(tracker, {"id": "a", "n": 99, "m": MOST, "shared": True, "owner_id": tracker.users["bob"]})
    both = change(tracker, "alice", "a", {"n": {"$inc": MOST}, "m": {"$inc": MOST}})
    assert both.fields == {"n": "out_of_range", "m": "not_allowed"}
    assert change(tracker, "alice", "a", {"n": {"$inc": 1}}).json["n"] == 100
    assert change(tracker, "alice", "a", {"n": {"$inc": 1}}).fields == {"n": "not_allowed"}
    assert change(tracker, "alice", "nothing", {"n": {"$inc": 1}}).status == 404


LISTS: Final[dict[str, Any]] = {
    "columns": {
        "title": {"type": "text", "null": True},
        "tags": {"type": "text[]", "null": True},
        "owner": {"type": "user", "null": True},
        "up": {"type": "reference", "to": "heads", "on_delete": "cascade", "null": True},
    }
}
OPEN_TITLES: Final[list[dict[str, Any]]] = [
    {"where": {"owner_id": "$user.id"}},
    {"where": {"up.is_open": True}, "columns": ["title"]},
]
NOT_BAD: Final = {"$not": {"tags": {"$has": "bad"}}}


def lists(read: Any, check: dict[str, Any]) -> dict[str, Any]:
    update = {"columns": ["title", "tags"], "check": check}
    return LISTS | {"rules": {"user": {"read": read, "update": update, "delete": {}}}}


def test_a_refused_write_does_not_look_at_a_hidden_list(make_tracker: Any) -> None:
    """By the time that it took, one could find how long the list is. Counted in blocks: one of 100,000 texts is in
    hundreds of them. All of them are refused for what they find: an operator, the size, the tag."""
    looking_back = {"$and": [NOT_BAD, {"up.backs": {"$none": {"title": "taken"}}}]}
    tracker = make_tracker(
        {
            "tables": {
                "heads": {"columns": {"is_open": {"type": "boolean"}}},
                "lists": lists(OPEN_TITLES, NOT_BAD),
                "backs": lists(OPEN_TITLES, looking_back),
                "rows": lists({"where": {"up.is_open": True}}, NOT_BAD),
            }
        }
    )
    add(tracker, {"id": "open", "is_open": True}, {"id": "closed", "is_open": False}, table="heads")
    cells: dict[str, list[str]] = {"short": [], "long": [str(number) for number in range(100_000)]}

    def looked_at(who: str, table: str, row: str, changes: Any) -> tuple[int, dict[str, str], list[int]]:
        with counted_blocks() as blocks:
            answer = change(tracker, who, row, changes, table=table)
            many = tracker.patch(who, f"/rows/{table}?where={quote(json.dumps({'id': row}))}", changes)
        assert many.json.get("ids") == [] or refused(many) == refused(answer)
        return answer.status, answer.fields, blocks

    bob = tracker.users["bob"]
    hidden: list[tuple[str, str, tuple[int, dict[str, str]]]] = [
        ("lists", "open", (422, {"tags": "not_allowed"})), ("lists", "closed", (404, {})),
        ("backs", "open", (422, {"tags": "not_allowed"})), ("backs", "closed", (404, {})), ("rows", "closed", (404, {})),
    ]  # fmt: skip
    for table, up, refusal in hidden:
        for length, tags in cells.items():
            add(tracker, {"id": f"{up}-{length}", "up_id": up, "tags": tags, "owner_id": bob}, table=table)
        requests: list[Any] = [{"tags": {operator: ["bad"]}} for operator in ("$add", "$append", "$remove")]
        if refusal[0] == 404:
            requests.append({"title": "x" * (LARGE_WRITE + 1)})
        for changes in requests:
            short, long = (looked_at("alice", table, f"{up}-{length}", changes) for length in cells)
            assert short[:2] == refusal
            assert short == long, (table, up, changes)
        for method, body in (("PATCH", {"title": "x"}), ("DELETE", None)) if refusal[0] == 404 else ():
            tagged: list[list[int]] = []
            for length in cells:
                with counted_blocks() as blocks:
                    path, headers = f"/rows/{table}/{up}-{length}", {"If-Match": '"x"'}
                    assert tracker.call("alice", method, path, json=body, headers=headers).status == 404
                tagged.append(blocks)
            assert tagged[0] == tagged[1], (table, up, method)
        assert held(tracker, f"{up}-long", table)["tags"] == cells["long"]
    # For who may read it, it is computed, and that is seen in the blocks.
    short, long = (looked_at("bob", "lists", f"open-{length}", {"tags": {"$add": ["bad"]}}) for length in cells)
    assert short[:2] == long[:2] == (422, {"tags": "not_allowed"})
    assert max(long[2]) > 10 * max(short[2])


def test_what_is_read_by_way_of_another_row_is_computed(make_tracker: Any) -> None:
    read = [{"columns": ["title"]}, {"where": {"up.is_open": True}, "columns": ["title", "tags"]}]
    heads = {"columns": {"is_open": {"type": "boolean"}}}
    tracker = make_tracker({"tables": {"heads": heads, "lists": lists(read, NOT_BAD)}})
    add(tracker, {"id": "open", "is_open": True}, {"id": "closed", "is_open": False}, table="heads")
    add(tracker, *[{"id": up, "up_id": up, "tags": ["a"]} for up in ("open", "closed")], table="lists")
    for operation, after in (({"$add": ["b"]}, ["a", "b"]), ({"$append": ["c"]}, ["a", "b", "c"])):
        assert change(tracker, "alice", "open", {"tags": operation}, table="lists").json["tags"] == after
        answer = change(tracker, "alice", "closed", {"tags": operation}, table="lists")
        assert refused(answer) == (422, {"tags": "not_allowed"})
    where = quote(json.dumps({"tags": {"$has": "a"}}))
    assert tracker.patch("alice", f"/rows/lists?where={where}", {"tags": {"$remove": ["a"]}}).json["ids"] == ["open"]
    assert held(tracker, "open", "lists")["tags"] == ["b", "c"]
    assert held(tracker, "closed", "lists")["tags"] == ["a"]


# ── Events, many rows, lengths ──────────────────────────────────────────────────────────────────────────────────────


def listen(tracker: Tracker) -> None:
    EventInterest.objects.using(REGION).create(environment_id=tracker.environment_id, table_name="*", action="*")


def events(tracker: Tracker) -> list[dict[str, Any]]:
    found = OutboxEvent.objects.using(REGION).filter(environment_id=tracker.environment_id, type="things.update")
    return [json.loads(event.data) for event in found.order_by("sequence")]


def test_an_event_tells_what_was_and_what_was_computed(tracker: Tracker) -> None:
    add(tracker, {"id": "a", "n": 1, "tags": ["x"]})
    listen(tracker)
    rows = [held(tracker, "a")]
    for changes in (
        {"n": {"$inc": 2}, "tags": {"$add": ["x"]}},
        {"n": {"$inc": 0}},
        {"n": {"$inc": MOST}},
        {"tags": {"$remove": ["x"]}},
    ):
        change(tracker, "key", "a", changes)
        rows.append(held(tracker, "a"))
    told = events(tracker)
    assert [event["changed"] for event in told] == [["n"], [], ["tags"]], "what was refused is no event"
    assert [(event["old_record"], event["record"]) for event in told] == [
        (rows[0], rows[1]), (rows[1], rows[2]), (rows[3], rows[4]),
    ]  # fmt: skip


def test_an_operation_on_many_rows_is_computed_for_each(tracker: Tracker) -> None:
    add(tracker, {"id": "a", "n": 1, "tags": ["x"]}, {"id": "b", "n": 2}, {"id": "c", "n": 90, "tags": ["y"]})
    listen(tracker)
    where = quote(json.dumps({"n": {"$lt": 50}}))
    answer = tracker.patch("key", f"/rows/things?where={where}", {"n": {"$inc": 10}, "tags": {"$add": ["y"]}})
    assert answer.json == {"ids": ["a", "b"], "next_cursor": None}
    found = {row: (held(tracker, row)["n"], held(tracker, row)["tags"]) for row in "abc"}
    assert found == {"a": (11, ["x", "y"]), "b": (12, ["y"]), "c": (90, ["y"])}
    assert [(event["id"], event["record"]["n"], sorted(event["changed"])) for event in events(tracker)] == [
        ("a", 11, ["n", "tags"]), ("b", 12, ["n", "tags"]),
    ]  # fmt: skip


def test_of_many_rows_none_is_changed_where_one_has_no_room(tracker: Tracker) -> None:
    add(tracker, {"id": "a", "n": 1}, {"id": "b", "n": MOST})
    answer = tracker.patch("key", f"/rows/things?where={quote('{}')}", {"n": {"$inc": 1}})
    assert refused(answer) == (422, {"n": "out_of_range"})
    assert (held(tracker, "a")["n"], held(tracker, "b")["n"]) == (1, MOST)


def test_a_list_grows_to_no_more_than_a_body_could_bring_in(tracker: Tracker) -> None:
    add(tracker, {"id": "a"})
    text = "x" * (LARGE_WRITE // 2)
    behind_its_back(tracker, "UPDATE things SET tags = array_fill(%s::text, ARRAY[127])", text)
    before = tracker.get("key", "/rows/things/a").json
    for changes in ({"tags": {"$append": [text]}}, {"tags": {"$add": [text[1:]]}, "n": {"$inc": 1}}):
        assert refused(change(tracker, "key", "a", changes)) == (422, {"tags": "too_long"})
        many = tracker.patch("key", f"/rows/things?where={quote('{}')}", changes)
        assert refused(many) == (422, {"tags": "too_long"})
    assert tracker.get("key", "/rows/things/a").json == before
    assert len(change(tracker, "key", "a", {"tags": {"$append": ["short"]}, "n": {"$inc": 1}}).json["tags"]) == 128
    assert change(tracker, "key", "a", {"tags": {"$remove": [text]}}).json["tags"] == ["short"]
    assert change(tracker, "key", "a", {"tags": {"$append": [text]}}).status == 200


def test_small_additions_add_up_to_no_more_than_a_row_holds(tracker: Tracker) -> None:
    """Each is smaller than what a plain write's size is looked at for."""
    add(tracker, {"id": "a"})
    text = "x" * (LARGE_WRITE - 100)
    behind_its_back(tracker, "UPDATE things SET title = repeat('x', 8380000), tags = ARRAY[%s]", text)
    row = "/rows/things/a?columns=updated_at,tags"
    before = tracker.get("key", row).json
    for changes in ({"tags": {"$append": ["x" * 200]}}, {"tags": {"$add": ["x" * 200]}, "n": {"$inc": 1}}):
        assert refused(change(tracker, "key", "a", changes)) == (422, {"tags": "too_large"})
        many = tracker.patch("key", f"/rows/things?where={quote('{}')}", changes)
        assert refused(many) == (422, {"tags": "too_large"})
    assert tracker.get("key", row).json == before
    assert change(tracker, "key", "a", {"tags": {"$append": ["short"]}, "n": {"$inc": 1}}).status == 200
    assert change(tracker, "key", "a", {"tags": {"$remove": [text]}}).json["tags"] == ["short"]


def test_by_a_list_one_learns_no_length_of_what_is_hidden(tracker: Tracker) -> None:
    add(tracker, {"id": "a", "owner_id": tracker.users["alice"]})
    text = "x" * (LARGE_WRITE // 2)
    told: list[str] = []
    for secret in (0, 1_000_000, 6_000_000):
        behind_its_back(tracker, "UPDATE things SET secrets = ARRAY[repeat('x', %s)]", secret)
        behind_its_back(tracker, "UPDATE things SET tags = array_fill(%s::text, ARRAY[126])", text)
        answers = [change(tracker, "alice", "a", {"tags": {"$append": [text]}}) for _ in range(2)]
        assert [answer.status for answer in answers] == [200, 422]
        told.append(without_id(answers[1]))
    assert len(set(told)) == 1


@pytest.mark.parametrize("operator", ["$add", "$remove"])
def test_texts_are_looked_for_by_hashing(operator: Operator) -> None:
    """A thousand compared one by one with those of a list of 8 MB would be 10^9 comparisons; for whatever operand the
    plan is made."""
    tenant = Tenant(DOCUMENT)
    viewer = tenant.compiled.role_view(tenant.compiled.rules.role_key(KEY))
    statement = writes.update(viewer, UpdateShape("things", ("tags",), computed=(("tags", operator),)))
    with row_access(), connections[REGION].cursor() as cursor:
        cursor.execute(f"EXPLAIN (GENERIC_PLAN) {statement.sql.decode()}")
        assert "hashed SubPlan" in str(cursor.fetchall())


# ── New rows ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_of_a_new_row_it_is_computed_from_the_default(tracker: Tracker) -> None:
    body = {
        "n": {"$inc": 2}, "m": {"$inc": 2}, "price": {"$inc": "-1.5"}, "weight": {"$inc": 0.5}, "tags": {"$add": ["a", "a"]},
        "labels": {"$append": ["new"]}, "meta": {"$inc": 1},
    }  # fmt: skip
    made = tracker.post("key", "/rows/things", body)
    assert made.status == 201
    assert {name: made.json[name] for name in body} == {
        "n": 2, "m": 7, "price": "-1.50", "weight": 0.5, "tags": ["a"], "labels": ["new", "new"], "meta": {"$inc": 1},
    }  # fmt: skip
    for labels, operation in ((["new", "x"], {"$add": ["x", "new"]}), ([], {"$remove": ["new"]})):
        assert tracker.post("key", "/rows/things", {"labels": operation}).json["labels"] == labels
    assert refused(tracker.post("key", "/rows/things", {"m": {"$inc": MOST}})) == (422, {"m": "out_of_range"})
    assert refused(tracker.post("key", "/rows/things", [{}, {"n": {"$x": 1}}])) == (422, {"1.n": "unknown_operator"})


def test_an_upsert_counts_from_the_first_on(tracker: Tracker) -> None:
    path = "/rows/things?on_conflict=slot"
    body = {"slot": 7, "n": {"$inc": 1}, "m": {"$inc": 1}, "tags": {"$add": ["x"]}}
    answers = [tracker.post("key", path, body) for _ in range(3)]
    assert [answer.status for answer in answers] == [201, 200, 200]
    assert [(answer.json["n"], answer.json["m"], answer.json["tags"]) for answer in answers] == [
        (1, 6, ["x"]), (2, 7, ["x"]), (3, 8, ["x"]),
    ]  # fmt: skip
    assert refused(tracker.post("key", path, {"slot": {"$inc": 7}, "n": 1})) == (422, {"slot": "misplaced"})
    assert refused(tracker.post("key", path, [{"slot": 1}, {"slot": {"$inc": 7}}])) == (422, {"1.slot": "misplaced"})
    assert tracker.get("key", "/rows/things?count=exact").json["count"] == 1


def test_upserts_at_the_same_moment_count_each(tracker: Tracker) -> None:
    def one() -> int:
        return tracker.post("key", "/rows/things?on_conflict=slot", {"slot": 7, "n": {"$inc": 1}}).status

    assert at_once(*[one] * 8) == [200] * 7 + [201]
    [row] = tracker.get("key", "/rows/things").json["data"]
    assert row["n"] == 8


def test_the_page_of_the_api_lists_the_operators() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "rows.md").read_text()
    for operators in OPERATORS.values():
        for operator in operators:
            assert f'`{{"{operator}": ' in page
