"""The grammar: what each operator becomes, what is refused and how, and that hidden values are indistinguishable from
missing ones."""

import json
from decimal import Decimal
from functools import partial
from pathlib import Path as Path_
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from platform_site.http.errors import ValidationFailed
from rows.query.params import DEFAULT_ORDER, OrderKey, With, parse_columns, parse_order, parse_with
from rows.query.where import MAX_BODY_BYTES, parse_where
from rows.rules.conditions import (
    FALSE,
    NO_FILTER,
    TRUE,
    And,
    Compare,
    Condition,
    Filter,
    IsNull,
    Not,
    Or,
    Path,
    Quantified,
    Search,
    Slot,
    all_of,
    leaves,
    negate,
    operands,
)
from rows.rules.evaluator import Facts, holds
from rows.rules.grammar import read_record
from rows.rules.operand_reader import MAX_LIST
from rows.rules.operators import ALL_OPERATORS, MAX_PATTERN, MAX_WORDS, OPERATORS
from rows.rules.rules import Ruleset
from rows.schema.model import Hop
from tests.support.tracker import tracker

RULES = Ruleset(tracker())
ALICE = RULES.resolver("user")
ALL = RULES.resolver("all")

LIST = Hop("list", "lists", "list_id")
COMMENTS = Hop("comments", "comments", "task_id", many=True)
TASKS = Hop("tasks", "tasks", "list_id", many=True)


def path(name: str, *hops: Hop) -> Path:
    return Path(hops, name)


def parsed(where: Any, table: str = "tasks", resolver: Any = ALICE) -> Filter:
    """What the text of `where` becomes; and the object itself must become the same."""
    found = parse_where(json.dumps(where), table, resolver)
    assert parse_where(where, table, resolver) == found
    return found


def refusal(where: Any, table: str = "tasks", resolver: Any = ALICE) -> tuple[str, str]:
    """Code and message of the one error on `where`."""
    with pytest.raises(ValidationFailed) as refused:
        parse_where(where, table, resolver)
    (error,) = refused.value.fields
    assert error.field == "where"
    json.dumps(refused.value.body("req_1")).encode()
    return error.code, error.message


# What operators become

LEAVES: list[tuple[dict[str, Any], str, str, Any, bytes]] = [
    ({"done": False}, "eq", "boolean", False, b"false"),
    ({"priority": 3}, "eq", "bigint", 3, b"3"),
    ({"priority": {"$eq": 3}}, "eq", "bigint", 3, b"3"),
    ({"priority": {"$gt": 3}}, "gt", "bigint", 3, b"3"),
    ({"priority": {"$gte": 3}}, "gte", "bigint", 3, b"3"),
    ({"priority": {"$lt": 3}}, "lt", "bigint", 3, b"3"),
    ({"priority": {"$lte": 3}}, "lte", "bigint", 3, b"3"),
    ({"priority": {"$in": [3, 1]}}, "in", "bigint[]", (3, 1), b'{"3","1"}'),
    ({"priority": {"$in": []}}, "in", "bigint[]", (), b"{}"),
    ({"price": {"$gte": "9.90"}}, "gte", "numeric", Decimal("9.90"), b"9.90"),
    ({"status": "open"}, "eq", "text", "open", b"open"),
    ({"owner_id": {"$in": ["usr_1"]}}, "in", "text[]", ("usr_1",), b'{"usr_1"}'),
    ({"title": {"$like": "a_%"}}, "like", "text", "a_%", b"a_%"),
    ({"title": {"$ilike": "a\\%"}}, "ilike", "text", "a\\%", b"a\\%"),
    ({"title": {"$like": "a\\\\"}}, "like", "text", "a\\\\", b"a\\\\"),
    ({"title": {"$contains": "50%_\\"}}, "like", "text", "%50\\%\\_\\\\%", b"%50\\%\\_\\\\%"),
    ({"title": {"$ieq": "a_%"}}, "ilike", "text", "a\\_\\%", b"a\\_\\%"),
    ({"title": {"$icontains": "a"}}, "ilike", "text", "%a%", b"%a%"),
    ({"title": {"$startsWith": "a"}}, "like", "text", "a%", b"a%"),
    ({"title": {"$istartsWith": "a"}}, "ilike", "text", "a%", b"a%"),
    ({"title": {"$endsWith": "a"}}, "like", "text", "%a", b"%a"),
    ({"title": {"$iendsWith": "a"}}, "ilike", "text", "%a", b"%a"),
    ({"title": "$user.id"}, "eq", "text", "$user.id", b"$user.id"),
    ({"tags": ["a"]}, "eq", "text[]", ("a",), b'{"a"}'),
    ({"tags": {"$has": "a"}}, "has_all", "text[]", ("a",), b'{"a"}'),
    ({"tags": {"$hasAny": ["a", "b"]}}, "has_any", "text[]", ("a", "b"), b'{"a","b"}'),
    ({"tags": {"$hasAll": []}}, "has_all", "text[]", (), b"{}"),
    ({"meta": {"a": 1}}, "eq", "jsonb", {"a": 1}, b'{"a":1}'),
    ({"meta": {}}, "eq", "jsonb", {}, b"{}"),
    ({"meta": {"$eq": {"$gt": 1}}}, "eq", "jsonb", {"$gt": 1}, b'{"$gt":1}'),
    ({"meta": {"$contains": [1]}}, "encloses", "jsonb", [1], b"[1]"),
    ({"meta": {"$has": "a"}}, "has_all", "text[]", ("a",), b'{"a"}'),
]


@pytest.mark.parametrize(("where", "operator", "type_", "value", "wire"), LEAVES)
def test_an_operator_becomes_a_leaf(where: dict[str, Any], operator: Any, type_: Any, value: Any, wire: bytes) -> None:
    found = parsed(where)
    (name,) = where
    assert found == Filter(Compare(path(name), operator, Slot(0, type_)), (wire,), (value,))


def test_the_shape_ignores_values_and_lengths() -> None:
    assert parsed({"priority": {"$in": [1]}}).shape == parsed({"priority": {"$in": [*range(500)]}}).shape
    assert parsed({"title": "a"}).shape == parsed({"title": "b"}).shape
    assert parsed({"title": {"$search": "a b c"}}).shape == parsed({"title": {"$search": "d"}}).shape
    assert parsed({"title": {"$contains": "a"}}).shape == parsed({"title": {"$startsWith": "b"}}).shape
    assert hash(parsed({"done": True, "title": "a"}).shape) == hash(parsed({"done": False, "title": "b"}).shape)


def eq(name: str, slot: int, type_: Any = "bigint") -> Compare:
    return Compare(path(name), "eq", Slot(slot, type_))


COMPOUND: list[tuple[dict[str, Any], Condition]] = [
    ({}, TRUE),
    ({"$not": {}}, FALSE),
    ({"priority": None}, IsNull(path("priority"))),
    ({"priority": {"$eq": None}}, IsNull(path("priority"))),
    ({"priority": {"$ne": None}}, Not(IsNull(path("priority")))),
    ({"priority": {"$null": True}}, IsNull(path("priority"))),
    ({"priority": {"$null": False}}, Not(IsNull(path("priority")))),
    ({"priority": {"$ne": 1}}, Not(eq("priority", 0))),
    ({"priority": {"$nin": [1]}}, Not(Compare(path("priority"), "in", Slot(0, "bigint[]")))),
    (
        {"priority": {"$in": [1, None]}},
        Or((Compare(path("priority"), "in", Slot(0, "bigint[]")), IsNull(path("priority")))),
    ),
    (
        {"priority": {"$nin": [1, None]}},
        And((Not(Compare(path("priority"), "in", Slot(0, "bigint[]"))), Not(IsNull(path("priority"))))),
    ),
    ({"priority": {"$in": [None]}}, IsNull(path("priority"))),
    (
        {"priority": {"$between": [1, 2]}},
        And((Compare(path("priority"), "gte", Slot(0, "bigint")), Compare(path("priority"), "lte", Slot(1, "bigint")))),
    ),
    ({"priority": {"$not": {"$eq": 1}}}, Not(eq("priority", 0))),
    ({"$not": {"priority": 1, "weight": 2}}, Or((Not(eq("priority", 0)), Not(eq("weight", 1, "float8"))))),
    ({"$and": [{"priority": 1}, {"$and": [{"weight": 2}]}]}, And((eq("priority", 0), eq("weight", 1, "float8")))),
    ({"$or": [{"priority": 1}, {"weight": 2}]}, Or((eq("priority", 0), eq("weight", 1, "float8")))),
    ({"$or": [{"priority": 1}, {}], "weight": 2}, eq("weight", 0, "float8")),
    ({"$and": [{"$not": {}}, {"priority": 1}]}, FALSE),
    ({"list.name": "A"}, Compare(path("name", LIST), "eq", Slot(0, "text"))),
    ({"list.name": None}, IsNull(path("name", LIST))),
    ({"comments": {"$some": {}}}, Quantified("some", COMMENTS, TRUE)),
    ({"comments": {"$none": {"stars": 1}}}, Quantified("none", COMMENTS, eq("stars", 0))),
    ({"comments": {"$every": {"stars": 1}}}, Quantified("none", COMMENTS, Not(eq("stars", 0)))),
    ({"$not": {"comments": {"$some": {"stars": 1}}}}, Quantified("none", COMMENTS, eq("stars", 0))),
    ({"$not": {"comments": {"$every": {"stars": 1}}}}, Quantified("some", COMMENTS, Not(eq("stars", 0)))),
    ({"list": {"$some": {"name": "A"}}}, Quantified("some", LIST, eq("name", 0, "text"))),
    (
        {"list.tasks": {"$some": {"priority": 1}}},
        Quantified("some", LIST, Quantified("some", TASKS, eq("priority", 0))),
    ),
    (
        {"list.tasks": {"$none": {"priority": 1}}},
        Quantified("none", LIST, Quantified("some", TASKS, eq("priority", 0))),
    ),
    (
        {"list.tasks": {"$every": {"priority": 1}}},
        Quantified("none", LIST, Quantified("some", TASKS, Not(eq("priority", 0)))),
    ),
    ({"title": {"$search": "  tea  Tea  "}}, Search((path("title"),), Slot(0, "text[]"))),
    ({"list.name": {"$search": "tea"}}, Search((path("name", LIST),), Slot(0, "text[]"))),
    ({"$search": "tea"}, Search((path("title"), path("notes")), Slot(0, "text[]"))),
    ({"$search": " \n"}, TRUE),
    ({"list.name": {"$search": ""}}, Not(IsNull(path("name", LIST)))),
    ({"title": {"$search": " "}, "priority": 1}, And((Not(IsNull(path("title"))), eq("priority", 0)))),
    ({"$search": "", "priority": 1}, eq("priority", 0)),
]


@pytest.mark.parametrize(("where", "shape"), COMPOUND)
def test_what_a_filter_becomes(where: dict[str, Any], shape: Condition) -> None:
    found = parsed(where)
    assert found.shape == shape
    # Every value has its slot, and every slot its value.
    slots = [operand.index for operand in operands(found.shape) if isinstance(operand, Slot)]
    assert sorted(slots) == list(range(len(found.wire))) == list(range(len(found.values)))


def test_values_follow_their_conditions_where_others_fell_away() -> None:
    some = {"comments": {"$some": {"stars": 3, "$search": "tea"}}}
    found = parsed(
        {"$or": [{"priority": 9}, {}], "weight": 2, "title": {"$ne": "a"}, "$and": [{"$or": [{"priority": 1}, some]}]}
    )
    tea = And((eq("stars", 3), Search((path("body"),), Slot(4, "text[]"))))
    assert found.shape == And(
        (
            eq("weight", 0, "float8"),
            Not(eq("title", 1, "text")),
            Or((eq("priority", 2), Quantified("some", COMMENTS, tea))),
        )
    )
    assert found.values == (2.0, "a", 1, 3, ("%tea%",))
    assert found.wire == (b"2.0", b"a", b"1", b"3", b'{"%tea%"}')


def test_nothing_asked_is_one_filter() -> None:
    assert parse_where(None, "tasks", ALICE) is NO_FILTER
    assert parse_where("{}", "tasks", ALICE) is NO_FILTER


def test_words_are_split_and_escaped() -> None:
    assert parsed({"$search": "50% off\u2003now\x1fnow"}).values == (("%50\\%%", "%off%", "%now%"),)


def test_search_looks_through_what_the_caller_may_read() -> None:
    assert [p.column for p in parsed({"$search": "x"}).shape.paths] == ["title", "notes"]  # type: ignore[union-attr]
    assert [p.column for p in parsed({"$search": "x"}, resolver=ALL).shape.paths] == ["title", "notes", "internal"]  # type: ignore[union-attr]


def test_search_over_no_column_finds_nothing() -> None:
    bare = Ruleset(tracker(bare={"columns": {"n": {"type": "integer"}}})).resolver("all")
    assert parsed({"$search": "x"}, "bare", bare) == Filter(FALSE)
    assert parsed({"$or": [{"$search": "x"}, {"n": 1}]}, "bare", bare).wire == (b"1",)


def test_one_text_is_read_once_for_one_sight() -> None:
    text = '{"title": "remembered"}'
    assert parse_where(text, "tasks", ALICE) is parse_where(text, "tasks", ALICE)
    assert parse_where('{"internal": "x"}', "tasks", ALL).wire == (b"x",)
    assert refusal('{"internal": "x"}')[0] == "unknown"


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_where, '{"parent.internal": "x"}'),
        (parse_order, "parent.internal"),
        (parse_with, "parent.secrets"),
        (lambda text, table, resolver: parse_columns(text, table, resolver, ()), "internal,title"),
    ],
    ids=["where", "order", "with", "columns"],
)
def test_what_was_read_for_one_sight_and_table_is_no_others(parse: Any, text: str) -> None:
    """Else whoever may see least sees what others asked for before."""
    assert parse(text, "tasks", ALL)
    assert parse(text, "tasks", ALL)
    for table, resolver in (("tasks", ALICE), ("comments", ALL)):
        with pytest.raises(ValidationFailed) as refused:
            parse(text, table, resolver)
        assert refused.value.fields[0].code == "unknown"


# What is refused

REFUSED: list[tuple[Any, str, str]] = [
    ({"owner_id": "$user.id"}, "invalid", "owner_id"),
    ({"id": {"$ne": "$user.id"}}, "invalid", "id.$ne"),
    ({"list.owner_id": {"$in": ["usr_01", "$user.claims.friends"]}}, "invalid", "list.owner_id.$in.1"),
    ({"comments": {"$some": {"task_id": "$old.id"}}}, "invalid", "comments.$some.task_id"),
    ({"title": {"$eq": {"$column": "list.name"}}}, "unknown", "title.$eq"),
    ("", "invalid_json", ""),
    ("{", "invalid_json", ""),
    ("nonsense", "invalid_json", ""),
    ('{"priority": NaN}', "invalid_json", ""),
    ('{"priority": Infinity}', "invalid_json", ""),
    ('{"priority": 1}{}', "invalid_json", ""),
    ("[]", "wrong_type", ""),
    ("5", "wrong_type", ""),
    ("null", "wrong_type", ""),
    ('"text"', "wrong_type", ""),
    ([], "wrong_type", ""),
    (5, "wrong_type", ""),
    ('{"priority": 1, "priority": 2}', "invalid", ""),
    ('{"$and": [{"done": true, "done": true}]}', "invalid", ""),
    ({"nope": 1}, "unknown", "nope"),
    ({"": 1}, "unknown", ""),
    ({"PRIORITY": 1}, "unknown", "PRIORITY"),
    ({"priority'; drop table tasks": 1}, "unknown", "priority'; drop table tasks"),
    ({"%s": 1}, "unknown", "%s"),
    ({"__class__": 1}, "unknown", "__class__"),
    ({"list.nope": 1}, "unknown", "list.nope"),
    ({"list.": 1}, "unknown", "list."),
    ({".list": 1}, "unknown", ".list"),
    ({"nope.name": 1}, "unknown", "nope.name"),
    ({"title.name": 1}, "unknown", "title.name"),
    ({"$or": [{"done": True}, {"nope": 1}]}, "unknown", "$or.1.nope"),
    ({"comments": {"$some": {"nope": 1}}}, "unknown", "comments.$some.nope"),
    ({"$nope": 1}, "unknown_operator", "$nope"),
    ({"$": 1}, "unknown_operator", "$"),
    ({"$where": "1"}, "unknown_operator", "$where"),
    ({"priority": {"$regex": "a"}}, "unknown_operator", "priority.$regex"),
    ({"priority": {"gt": 1}}, "unknown_operator", "priority.gt"),
    ({"$gt": 1}, "misplaced", "$gt"),
    ({"$some": {}}, "misplaced", "$some"),
    ({"priority": {"$some": {}}}, "misplaced", "priority.$some"),
    ({"$and": [{"priority": {"$gt": 1, "$lt": 5}}] * 60}, "too_many", "$and.49.priority.$lt"),
    ({"priority": {"$or": []}}, "misplaced", "priority.$or"),
    ({"priority": {"$like": "a"}}, "misplaced", "priority.$like"),
    ({"done": {"$gt": True}}, "misplaced", "done.$gt"),
    ({"meta": {"$gt": 1}}, "misplaced", "meta.$gt"),
    ({"meta": {"$in": [1]}}, "misplaced", "meta.$in"),
    ({"tags": {"$in": [["a"]]}}, "misplaced", "tags.$in"),
    ({"tags": {"$contains": "a"}}, "misplaced", "tags.$contains"),
    ({"list_id": {"$startsWith": "a"}}, "misplaced", "list_id.$startsWith"),
    ({"priority": {}}, "invalid", "priority"),
    ({"priority": {"$not": {}}}, "invalid", "priority.$not"),
    ({"priority": {"$not": 1}}, "wrong_type", "priority.$not"),
    ({"priority": {"$not": {"$not": {"$eq": 1}}}}, "too_deep", "priority.$not"),
    ({"priority": "3"}, "wrong_type", "priority"),
    ({"priority": True}, "wrong_type", "priority"),
    ({"priority": 1.5}, "wrong_type", "priority"),
    ({"priority": [1]}, "wrong_type", "priority"),
    ({"priority": 2**63}, "out_of_range", "priority"),
    ({"priority": {"$gt": None}}, "null", "priority.$gt"),
    ({"priority": {"$in": 1}}, "wrong_type", "priority.$in"),
    ({"priority": {"$in": {"a": 1}}}, "wrong_type", "priority.$in"),
    ({"priority": {"$in": [1, "2"]}}, "wrong_type", "priority.$in.1"),
    ({"priority": {"$null": 1}}, "wrong_type", "priority.$null"),
    ({"priority": {"$between": [1]}}, "wrong_type", "priority.$between"),
    ({"priority": {"$between": [1, None]}}, "null", "priority.$between.1"),
    ({"title": {"$between": "az"}}, "wrong_type", "title.$between"),
    ({"title": {"$between": {"a": 1, "z": 1}}}, "wrong_type", "title.$between"),
    ({"title": 5}, "wrong_type", "title"),
    ({"title": "nul\0"}, "invalid", "title"),
    ({"title": {"$like": "a\\"}}, "invalid", "title.$like"),
    ({"title": {"$like": "a\\\\\\"}}, "invalid", "title.$like"),
    ({"title": {"$contains": "a" * 501}}, "too_long", "title.$contains"),
    ({"title": {"$contains": None}}, "null", "title.$contains"),
    ({"title": {"$search": " ".join(map(str, range(11)))}}, "too_many", "title.$search"),
    ({"title": {"$search": "a" * 501}}, "too_long", "title.$search"),
    ({"$search": "a" * 501}, "too_long", "$search"),
    ({"$search": 5}, "wrong_type", "$search"),
    ({"$search": None}, "null", "$search"),
    ({"price": "1e5"}, "wrong_type", "price"),
    ({"due_on": "0000-00-00"}, "invalid", "due_on"),
    ({"seen_at": "2026-01-01T00:00:00"}, "no_time_zone", "seen_at"),
    ({"token": "x"}, "wrong_type", "token"),
    ({"status": "shut"}, "not_among", "status"),
    ({"tags": "a"}, "wrong_type", "tags"),
    ({"tags": {"$hasAny": "a"}}, "wrong_type", "tags.$hasAny"),
    ({"tags": {"$hasAny": [1]}}, "wrong_type", "tags.$hasAny"),
    ({"$and": {}}, "wrong_type", "$and"),
    ({"$and": []}, "invalid", "$and"),
    ({"$or": []}, "invalid", "$or"),
    ({"$or": [1]}, "wrong_type", "$or.0"),
    ({"$not": []}, "wrong_type", "$not"),
    ({"comments": {}}, "wrong_type", "comments"),
    ({"comments": None}, "wrong_type", "comments"),
    ({"comments": 5}, "wrong_type", "comments"),
    ({"comments": ["$some"]}, "wrong_type", "comments"),
    ({"comments": {"$some": {}, "stars": 1}}, "wrong_type", "comments"),
    ({"comments": {"$some": 1}}, "wrong_type", "comments.$some"),
    ({"comments.body": "x"}, "to_many", "comments.body"),
    ({"list": "lst_1"}, "wrong_type", "list"),
    ({"parent.parent.parent.parent.title": "x"}, "too_deep", "parent.parent.parent.parent.title"),
]


@pytest.mark.parametrize(("where", "code", "at"), REFUSED)
def test_what_a_filter_refuses(where: Any, code: str, at: str) -> None:
    found, message = refusal(where if isinstance(where, str | list | int) else json.dumps(where))
    assert (found, message.startswith(f"{at}: ") if at else ": " not in message[:12]) == (code, True), message
    if not isinstance(where, str):
        assert refusal(where) == (found, message)


def test_an_object_of_more_than_operators_is_a_json_value() -> None:
    assert parsed({"meta": {"$eq": 1, "a": 1}}).values == ({"$eq": 1, "a": 1},)


@pytest.mark.parametrize("where", [{1: 2}, {None: 1}, {"$not": {True: 1}}, {"comments": {"$some": {5: 1}}}])
def test_objects_that_never_were_json_are_refused_by_their_keys(where: Any) -> None:
    code, message = refusal(where)
    assert (code, message.endswith("must be named by a string.")) == ("wrong_type", True)


def test_three_steps_are_not_too_many() -> None:
    assert len(next(leaves(parsed({"parent.parent.parent.title": "x"}).shape)).path.hops) == 3  # type: ignore[union-attr]


HIDDEN = [
    ({"internal": 1}, {"xnternal": 1}),
    ({"internal": {"$regex": 1}}, {"xnternal": {"$regex": 1}}),
    ({"internal": {"$eq": []}}, {"xnternal": {"$eq": []}}),
    ({"parent.internal": "x"}, {"parent.xnternal": "x"}),
    ({"comments": {"$some": {"task.internal": "x"}}}, {"comments": {"$some": {"task.xnternal": "x"}}}),
    ({"secrets": {"$some": {}}}, {"xecrets": {"$some": {}}}),
    ({"secrets": 1}, {"xecrets": 1}),
    ({"secrets.body": 1}, {"xecrets.body": 1}),
    ({"secrets.nope": 1}, {"xecrets.nope": 1}),
    ({"$not": {"$or": [{"internal": 1}]}}, {"$not": {"$or": [{"xnternal": 1}]}}),
]


@pytest.mark.parametrize(("hidden", "unknown"), HIDDEN)
def test_a_hidden_name_is_refused_byte_for_byte_like_an_unknown_one(hidden: Any, unknown: Any) -> None:
    for spell in (json.dumps, lambda where: where):
        with pytest.raises(ValidationFailed) as one:
            parse_where(spell(hidden), "tasks", ALICE)
        with pytest.raises(ValidationFailed) as other:
            parse_where(spell(unknown), "tasks", ALICE)
        told = json.dumps(one.value.body("req_1")).replace("internal", "xnternal").replace("secrets", "xecrets")
        assert told == json.dumps(other.value.body("req_1"))


def test_a_name_is_repeated_shortened_and_clean() -> None:
    _, message = refusal(json.dumps({"x" * 7_000: 1}))
    assert len(message) < 300
    assert "\\ud800" in refusal('{"\\ud800": 1}')[1]
    assert refusal('{"\\u0000": 1}')[1].startswith("\\x00: ")


# Limits


def nested(depth: int, word: str) -> Any:
    where: Any = {"done": True}
    for _ in range(depth - 1):
        where = {word: [where]} if word in ("$and", "$or") else {word: where}
    return where


@pytest.mark.parametrize("word", ["$and", "$or", "$not"])
def test_depth_six_is_taken_and_seven_is_not(word: str) -> None:
    assert parsed(nested(6, word)).wire == (b"true",)
    for deep in (7, 200):
        code, message = refusal(nested(deep, word))
        assert code == "too_deep"
        assert "6 levels" in message
    assert refusal('{"$not":' * 900 + "{}" + "}" * 900)[0] == "too_deep"
    assert refusal("[" * 8_000)[0] in ("too_deep", "invalid_json")
    assert refusal('{"$not":' * 1_000)[0] in ("too_deep", "invalid_json")


def test_depth_counts_through_relations() -> None:
    where: Any = {"done": True}
    for _ in range(5):
        where = {"tasks": {"$some": where}}
    assert parsed(where).wire == (b"true",)
    assert refusal({"tasks": {"$some": where}})[0] == "too_deep"


def test_a_hundred_nodes_are_taken_and_one_more_is_not() -> None:
    one = {"priority": 1}
    assert len(parsed({"$or": [one] * 99}).wire) == 99
    for where in (
        {"$or": [one] * 100},
        {"$or": [{}] * 100},
        {"$or": [{"$and": [one] * 40} for _ in range(3)]},
        {"$or": [one] * 4_000},
        {"priority": {f"${n}": 1 for n in range(200)}},
        {"title": {"$not": {"$contains": "a"}}, "$and": [one] * 98},
    ):
        assert refusal(where)[0] in ("too_many", "unknown_operator"), where
    assert refusal({"$or": [one] * 100}) == refusal(json.dumps({"$or": [one] * 100}))


def test_text_of_eight_kilobytes_is_taken_and_nine_is_not() -> None:
    fits = '{"title": "%s"}' % ("x" * (8 * 1024 - 13))
    assert len(fits) == 8 * 1024
    assert parse_where(fits, "tasks", ALICE).wire[0].startswith(b"xxx")
    for text in (fits.replace("x", "xx", 1), '{"title": "%s"}' % ("ä" * 4_096), " " * 9_000 + "{}"):
        assert refusal(text)[0] == "too_long"


def test_a_body_may_be_longer_but_not_endless() -> None:
    ids = [f"tsk_{n:026d}" for n in range(1_000)]
    assert len(parse_where({"id": {"$in": ids}}, "tasks", ALICE).values[0]) == 1_000
    assert refusal({"title": "x" * 70_000})[0] == "too_long"
    assert refusal({"title": 10**5_000, "x": [10**4_000] * 20})[0] == "too_long"


def test_what_is_as_long_as_it_may_be_is_taken() -> None:
    for where in (
        {"title": {"$contains": "a" * MAX_PATTERN}},
        {"title": {"$search": "a" * MAX_PATTERN}},
        {"title": {"$search": " ".join(map(str, range(MAX_WORDS)))}},
    ):
        assert parsed(where).wire
    fits = {"title": "x" * (MAX_BODY_BYTES - len('{"title":""}'))}
    assert parse_where(fits, "tasks", ALICE).wire == (fits["title"].encode(),)
    assert refusal({"title": fits["title"] + "x"})[0] == "too_long"


@pytest.mark.parametrize("operator", ["$in", "$nin"])
def test_lists_are_bounded(operator: str) -> None:
    assert len(parse_where({"priority": {operator: [1] * MAX_LIST}}, "tasks", ALICE).values[0]) == MAX_LIST
    assert refusal({"priority": {operator: [1] * (MAX_LIST + 1)}})[0] == "too_many"
    assert refusal({"priority": {operator: [1] * 10_000}})[0] == "too_many"
    assert refusal({"tags": {"$hasAll": ["a"] * 1_001}})[0] == "too_many"


def test_lists_in_json_are_bounded_together() -> None:
    """PostgreSQL compares each of their values with each of the cell's lists, and does not look at its timeout."""
    for value in ([1] * MAX_LIST, [{"a": 1}] * 100, {"a": [1] * 500, "b": {"c": [1] * 500}}):
        assert parse_where({"meta": {"$contains": value}}, "tasks", ALICE).values == (value,)
    for value in ([1] * 1_001, [[1]] * 100, [{"a": 1}] * 101, {"a": [1] * 501, "b": {"c": [1] * 500}}):
        assert refusal({"meta": {"$contains": value}})[0] == "too_many", value
    assert parse_where({"meta": [1] * 1_001}, "tasks", ALICE)


def test_every_operator_of_the_design_is_known_and_none_else() -> None:
    assert " ".join(sorted(ALL_OPERATORS)) == (
        "$and $between $contains $endsWith $eq $every $gt $gte $has $hasAll $hasAny $icontains $iendsWith $ieq $iin $ilike $in "
        "$istartsWith $like $lt $lte $ne $nin $none $not $null $or $search $some $startsWith"
    )


# Properties

_names = st.sampled_from(
    [
        "title",
        "priority",
        "done",
        "meta",
        "tags",
        "list",
        "list.name",
        "comments",
        "internal",
        "status",
        "due_on",
        "nope",
    ]
)
_words = st.sampled_from([*sorted(ALL_OPERATORS), "$nope", "$"])
_values = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["open", "2026-01-01"])
)
anything = st.recursive(
    _values,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(_names | _words | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=25,
)


def is_normal(condition: Condition) -> bool:
    match condition:
        case Not(condition=inner):
            return isinstance(inner, Compare | IsNull | Search)
        case And(conditions=parts) | Or(conditions=parts):
            simple = not any(isinstance(part, type(condition)) or part in (TRUE, FALSE) for part in parts)
            return len(parts) > 1 and simple and all(map(is_normal, parts))
        case Quantified(condition=inner):
            return is_normal(inner)
        case _:
            return True


@pytest.mark.exhaustive
@settings(max_examples=600, deadline=None)
@given(where=anything)
@example(where={"$not": {"comments": {"$every": {"$or": [{"stars": 1}, {"$not": {"body": "x"}}]}}}})
def test_any_json_is_a_filter_in_normal_form_or_a_422(where: Any) -> None:
    found = parsed_or_refused(parse_where, "where", where)
    if found is None:
        return
    assert is_normal(found.shape)
    slots = [operand.index for operand in operands(found.shape) if isinstance(operand, Slot)]
    assert sorted(slots) == list(range(len(found.wire)))
    assert not any(name == "internal" for leaf in leaves(found.shape) for name in _columns(leaf))


def parsed_or_refused(parse: Any, field: str, given: Any) -> Any:
    """What `parse` makes of it, None if it is refused as it should be."""
    errors: list[ValidationFailed] = []
    try:
        return parse(given, "tasks", ALICE)
    except ValidationFailed as refused:
        errors.append(refused)
    (refused,) = errors
    assert [error.field for error in refused.fields] == [field]
    json.dumps(refused.body(None)).encode()
    return None


def _columns(leaf: Any) -> list[str]:
    return [one.column for one in (leaf.paths if isinstance(leaf, Search) else [leaf.path])]


@pytest.mark.exhaustive
@settings(max_examples=300, deadline=None)
@given(
    text=st.text()
    | st.text('{}[]":,$ \\untrefalsi0123.', max_size=60)
    | anything.map(lambda where: json.dumps(where, default=str))
)
def test_any_text_is_a_filter_or_a_422(text: str) -> None:
    for parse, field in ((parse_where, "where"), (parse_order, "order"), (parse_with, "with")):
        parsed_or_refused(parse, field, text)


_flat_names = st.sampled_from(["priority", "weight"])


def _flat(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.builds(lambda parts: {"$and": parts}, st.lists(inner, min_size=1, max_size=3))
        | st.builds(lambda parts: {"$or": parts}, st.lists(inner, min_size=1, max_size=3))
        | st.builds(lambda part: {"$not": part}, inner)
    )


_numbers = st.none() | st.integers(0, 3)
flat_filters = st.recursive(
    st.builds(lambda name, value: {name: value}, _flat_names, _numbers)
    | st.builds(
        lambda name, word, value: {name: {word: value}},
        _flat_names,
        st.sampled_from(["$ne", "$eq"]),
        _numbers,
    )
    | st.builds(
        lambda name, word, value: {name: {word: value}},
        _flat_names,
        st.sampled_from(["$gt", "$gte", "$lt", "$lte"]),
        st.integers(0, 3),
    )
    | st.builds(
        lambda name, word, values: {name: {word: values}},
        _flat_names,
        st.sampled_from(["$in", "$nin"]),
        st.lists(_numbers, max_size=3),
    )
    | st.just({}),
    _flat,
    max_leaves=6,
)


def by_the_book(where: dict[str, Any], row: dict[str, Any]) -> bool:
    """The filter decided from its text, as docs/reference/filters.md explains it: no tree, no normal form."""

    def leaf(cell: Any, word: str, operand: Any) -> bool:
        match word:
            case "$eq":
                return cell is None if operand is None else cell == operand
            case "$ne":
                return not leaf(cell, "$eq", operand)
            case "$in":
                return any(leaf(cell, "$eq", one) for one in operand)
            case "$nin":
                return not leaf(cell, "$in", operand)
        if cell is None:
            return False
        return {"$gt": cell > operand, "$gte": cell >= operand, "$lt": cell < operand, "$lte": cell <= operand}[word]

    for key, value in where.items():
        match key:
            case "$and":
                true = all(by_the_book(part, row) for part in value)
            case "$or":
                true = any(by_the_book(part, row) for part in value)
            case "$not":
                true = not by_the_book(value, row)
            case _:
                tests = value if isinstance(value, dict) else {"$eq": value}
                true = all(leaf(row[key], word, operand) for word, operand in tests.items())
        if not true:
            return False
    return True


@pytest.mark.exhaustive
@settings(max_examples=500, deadline=None)
@given(where=flat_filters, priority=_numbers, weight=_numbers)
def test_a_filter_means_what_the_documentation_says(where: Any, priority: Any, weight: Any) -> None:
    row = {"priority": priority, "weight": weight}
    found = parsed_or_refused(parse_where, "where", where)
    if found is None:
        return
    facts = Facts(found.values)
    assert holds(found.shape, row, facts) == by_the_book(where, row)
    assert holds(negate(found.shape), row, facts) != holds(found.shape, row, facts)
    assert is_normal(negate(found.shape))
    assert negate(negate(found.shape)) == found.shape


def test_conditions_join_flat_and_without_repetition() -> None:
    one, two = IsNull(path("a")), IsNull(path("b"))
    assert all_of([]) == TRUE
    assert all_of([one]) == one
    assert all_of([one, TRUE, And((one, two))]) == And((one, two))
    assert all_of([one, FALSE]) == FALSE


# Order

DUE = OrderKey(path("due_on"), "date", null=True)


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        (None, DEFAULT_ORDER),
        ("due_on", (DUE, OrderKey(path("id"), "text"))),
        ("due_on.asc", (DUE, OrderKey(path("id"), "text"))),
        ("due_on.asc.nullslast", (DUE, OrderKey(path("id"), "text"))),
        (
            "due_on.nullsfirst",
            (OrderKey(path("due_on"), "date", nulls_first=True, null=True), OrderKey(path("id"), "text")),
        ),
        (
            "due_on.desc",
            (OrderKey(path("due_on"), "date", True, True, True), OrderKey(path("id"), "text", True, True)),
        ),
        (
            "due_on.desc.nullslast,title",
            (
                OrderKey(path("due_on"), "date", True, False, True),
                OrderKey(path("title"), "text"),
                OrderKey(path("id"), "text"),
            ),
        ),
        # A column without nulls sorts alike either way.
        (
            "title.desc.nullslast",
            (OrderKey(path("title"), "text", True, True), OrderKey(path("id"), "text", True, True)),
        ),
        (
            "title,priority,weight",
            (
                OrderKey(path("title"), "text"),
                OrderKey(path("priority"), "bigint", null=True),
                OrderKey(path("weight"), "float8", null=True),
                OrderKey(path("id"), "text"),
            ),
        ),
        ("id.desc", (OrderKey(path("id"), "text", True, True),)),
        ("id,title", (OrderKey(path("id"), "text"),)),
        (
            " created_at.desc , id ",
            (OrderKey(path("created_at"), "timestamptz", True, True), OrderKey(path("id"), "text")),
        ),
        (
            "list.name.desc",
            (OrderKey(path("name", LIST), "text", True, True, True), OrderKey(path("id"), "text", True, True)),
        ),
    ],
)
def test_what_an_order_becomes(text: Any, keys: Any) -> None:
    assert parse_order(text, "tasks", ALICE) == keys


def order_refusal(text: Any, resolver: Any = ALICE) -> tuple[str, str]:
    with pytest.raises(ValidationFailed) as refused:
        parse_order(text, "tasks", resolver)
    (error,) = refused.value.fields
    assert error.field == "order"
    return error.code, error.message


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "unknown"),
        ("nope", "unknown"),
        ("nope.desc", "unknown"),
        ("title.sideways", "invalid"),
        ("title.desc.nullslast.x", "invalid"),
        ("title.nullslast.desc", "invalid"),
        ("title..desc", "invalid"),
        ("list.name.up", "invalid"),
        ("list.nope.up", "unknown"),
        ("...", "unknown"),
        (",", "unknown"),
        ("title,", "unknown"),
        ("comments.body", "unknown"),
        ("list", "unknown"),
        ("parent.parent.parent.parent.title", "unknown"),
        ("title; drop table", "unknown"),
        ("title,title.desc", "invalid"),
        ("title,done,priority,weight", "too_many"),
        ("meta", "invalid"),
        ("tags.desc", "invalid"),
        ("title" + " " * 2_000, "too_long"),
        (5, "wrong_type"),
        (["title"], "wrong_type"),
    ],
)
def test_what_an_order_refuses(text: Any, code: str) -> None:
    assert order_refusal(text)[0] == code


@pytest.mark.parametrize("text", ["", " ", ",", "title,", ",title"])
@pytest.mark.parametrize("member", ["order", "with", "columns"])
def test_an_empty_name_is_said_to_be_one(member: str, text: str) -> None:
    parse: Any = {"order": parse_order, "with": parse_with, "columns": partial(parse_columns, withs=())}[member]
    with pytest.raises(ValidationFailed) as refused:
        parse(text, "tasks", ALICE)
    (field,) = refused.value.fields
    assert (field.field, field.code) == (member, "unknown")
    assert field.message.startswith("A name is empty")
    assert f'"{member}"' in field.message


@pytest.mark.parametrize(
    ("hidden", "unknown"),
    [("internal.desc", "xnternal.desc"), ("parent.internal", "parent.xnternal"), ("internal.x", "xnternal.x")],
)
def test_an_order_by_a_hidden_column_is_refused_like_an_unknown_one(hidden: str, unknown: str) -> None:
    code, message = order_refusal(hidden)
    assert (code, message.replace("internal", "xnternal")) == order_refusal(unknown)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("titel.asc", "title"),
        ("-priority", "priority"),
        ("list.nme.desc", "name"),
        ("lists.name", "list"),
        ("list", "list_id"),
        ("comments.body", None),
        ("qqqq", None),
    ],
)
def test_a_misspelled_order_is_told_what_is_meant(text: str, meant: str | None) -> None:
    suggestion = f'; did you mean "{meant}"?' if meant else "."
    assert order_refusal(text)[1].startswith(f"{text}: there is no such column{suggestion} Write column.asc")


def test_columns_named_like_directions_can_be_ordered_by() -> None:
    odd = Ruleset(tracker(odd={"columns": {"desc": {"type": "text"}, "nullslast": {"type": "text"}}})).resolver("all")
    assert [key.path.column for key in parse_order("desc,nullslast.desc", "odd", odd)] == ["desc", "nullslast", "id"]
    assert parse_order("desc.desc", "odd", odd)[0].descending
    assert parse_order("nullslast", "odd", odd)[0].path.column == "nullslast"


# With


def test_relations_become_a_tree() -> None:
    comments, parent = With(COMMENTS), Hop("parent", "tasks", "parent_id")
    assert parse_with(None, "tasks", ALICE) == ()
    assert parse_with("list", "tasks", ALICE) == (With(LIST),)
    assert parse_with("list, comments,list", "tasks", ALICE) == (With(LIST), comments)
    assert parse_with("parent.list,parent,parent.comments", "tasks", ALICE) == (With(parent, (With(LIST), comments)),)
    assert parse_with("parent.parent.parent", "tasks", ALICE) == (With(parent, (With(parent, (With(parent),)),)),)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "unknown"),
        ("nope", "unknown"),
        ("list.nope", "unknown"),
        ("secrets", "unknown"),
        ("list_id", "unknown"),
        ("owner", "unknown"),
        ("list,", "unknown"),
        ("list..tasks", "unknown"),
        ("list.tasks", "cyclic"),
        ("comments.task", "cyclic"),
        ("parent.parent.parent.parent", "too_deep"),
        ("parent.parent.parent.nope", "unknown"),
        (",".join(["list"] * 11), "too_many"),
        ("list" + " " * 2_000, "too_long"),
        (["list"], "wrong_type"),
    ],
)
def test_what_a_with_refuses(text: Any, code: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        parse_with(text, "tasks", ALICE)
    (error,) = refused.value.fields
    assert (error.field, error.code) == ("with", code)


def test_a_tree_of_relations_is_bounded_as_a_whole() -> None:
    """Not only how many paths there are: each may bring some that none of the others ends at."""
    *ten, eleventh = [f"{'parent.' * n}{leaf}" for n in (2, 1, 0) for leaf in ("list", "comments", "tasks")]
    assert len(parse_with(",".join(ten), "tasks", ALICE)) == 3
    assert len(parse_with(",".join(["list"] * 10), "tasks", ALICE)) == 1
    with pytest.raises(ValidationFailed) as refused:
        parse_with(",".join([*ten, eleventh]), "tasks", ALICE)
    assert refused.value.fields[0].code == "too_many"


def test_relations_come_back_to_no_table_on_the_way_either() -> None:
    with pytest.raises(ValidationFailed) as refused:
        parse_with("tasks.comments.task", "lists", ALICE)
    assert (refused.value.fields[0].code, refused.value.fields[0].message) == (
        "cyclic",
        "tasks.comments.task: returns to tasks.",
    )


# Columns


def chosen(text: Any, withs: str | None = None, resolver: Any = ALICE) -> Any:
    return parse_columns(text, "tasks", resolver, parse_with(withs, "tasks", resolver))


def test_columns_become_a_choice_of_each_rows_cells() -> None:
    parent = Hop("parent", "tasks", "parent_id")
    everything = [name for name in ALICE.names("tasks") if ALICE.column("tasks", name)]
    assert chosen(None, "list") == (None, (With(LIST),))
    assert chosen("done, title,done") == chosen("id,title,done") == (("id", "title", "done"), ())
    assert chosen("id") == (("id",), ())
    assert chosen("*") == chosen(",".join(everything)) == chosen("*,title") == (None, ())
    assert chosen("*,-notes,-tags")[0] == tuple(name for name in everything if name not in ("notes", "tags"))
    assert chosen("-notes,*") == chosen("*,-notes")
    assert chosen("title,list.name", "list,parent.list") == (
        ("id", "title"),
        (With(LIST, (), ("id", "name")), With(parent, (With(LIST),))),
    )
    assert chosen("parent.list.id", "parent.list") == (None, (With(parent, (With(LIST, (), ("id",)),)),))
    assert chosen("list.*,-list.name", "list")[1][0].columns == ("id", "owner_id", "created_at", "updated_at")
    assert chosen("list.*", "list") == (None, (With(LIST),))
    assert chosen(",".join(["title"] * 100)) == (("id", "title"), ())


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "unknown"),
        (",", "unknown"),
        ("title,", "unknown"),
        ("nope", "unknown"),
        ("internal", "unknown"),
        ("*,-internal", "unknown"),
        ("*,-nope", "unknown"),
        ("--title", "unknown"),
        ("list.-name", "unknown"),
        ("secrets.body", "unknown"),
        ("parent.internal", "unknown"),
        ("title.desc", "unknown"),
        ("-*", "unknown"),
        ("*.title", "unknown"),
        ("parent.parent.parent.parent.title", "unknown"),
        ("...", "unknown"),
        ('title"; drop table', "unknown"),
        ("list", "invalid"),
        ("comments", "invalid"),
        ("-title", "invalid"),
        ("title,-done", "invalid"),
        ("*,-list.name", "invalid"),
        ("*,-id", "invalid"),
        ("parent.title", "invalid"),
        ("list.tasks.title", "invalid"),
        (",".join(["title"] * 101), "too_many"),
        ("title" + " " * 4_000, "too_long"),
        (["title"], "wrong_type"),
        (5, "wrong_type"),
    ],
)
def test_what_columns_refuse(text: Any, code: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        chosen(text, "list,comments")
    (error,) = refused.value.fields
    assert (error.field, error.code) == ("columns", code)


def test_slips_in_columns_are_told_what_is_meant() -> None:
    def told(text: str, resolver: Any = ALICE) -> str:
        with pytest.raises(ValidationFailed) as refused:
            chosen(text, "list", resolver)
        return refused.value.fields[0].message

    assert told("titel") == 'titel: there is no such column; did you mean "title"?'
    assert told("lists.name") == 'lists.name: there is no such column; did you mean "list"?'
    assert told("internol") == "internol: there is no such column."
    assert told("internol", ALL).endswith('did you mean "internal"?')
    whole = 'list: is a relation: "with" embeds it whole. Leave it out here, or choose its columns (list.id).'
    assert told("list") == whole


# Filters of webhooks


def test_a_record_filter_compares_with_the_old_record() -> None:
    became_done = read_record({"status": "done", "$not": {"status": "$old.status"}}, "tasks", ALL)
    assert holds(became_done, {"status": "done"}, Facts(old={"status": "open"}))
    assert not holds(became_done, {"status": "done"}, Facts(old={"status": "done"}))
    assert not holds(became_done, {"status": "done"}, Facts())


@pytest.mark.parametrize(
    "document",
    [
        {"list.name": "x"},
        {"comments": {"$some": {}}},
        {"owner_id": "$user.id"},
        {"status": "$old.nope"},
        {"priority": "$old.title"},
    ],
)
def test_a_record_filter_knows_its_record_and_nothing_else(document: Any) -> None:
    from rows.rules.name_resolver import InvalidCondition

    with pytest.raises(InvalidCondition):
        read_record(document, "tasks", ALL)


def test_the_table_of_operators_covers_every_type() -> None:
    from rows.schema.model import SQL_TYPES

    assert OPERATORS.keys() == SQL_TYPES.keys()


def test_the_documentation_has_every_operator_and_every_code() -> None:
    page = (Path_(__file__).parents[2] / "docs" / "reference" / "filters.md").read_text()
    assert not [word for word in ALL_OPERATORS if f"`{word}`" not in page]
    codes = {code for _, code, _ in REFUSED} | {"unknown"}
    assert not [code for code in codes if f"`{code}`" not in page]
