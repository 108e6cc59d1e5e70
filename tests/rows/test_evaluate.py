"""The plain-Python evaluator against PostgreSQL itself: each operator, each type, one cell and one operand at a
time."""

import sys
import unicodedata
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from django.db import connections
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from platform_site.postgres import prepared
from rows.rules.conditions import (
    Compare,
    Constant,
    IsNull,
    Not,
    Operator,
    Path,
    Present,
    Quantified,
    Search,
    Slot,
    Type,
    Variable,
)
from rows.rules.evaluator import Effort, Facts, TooCostly, holds, is_like, lower
from rows.rules.operators import escape_pattern
from rows.schema.model import Hop
from rows.schema.values import ARRAYS, read, wire

REGION = "us-east-1"
CELL = Path((), "cell")


@pytest.fixture(scope="module")
def region(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """One connection for the whole module: its tests only compute."""
    with django_db_blocker.unblock():
        yield
        connections[REGION].close()


def ask(sql: str, *values: bytes | None) -> list[bool]:
    """The truth values of a statement's one row."""
    return [cell == b"t" for cell in prepared.run(REGION, sql.encode(), values)[0]]


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6) | st.text(
    "abAB%_\\ ä", max_size=5
)
decimals = st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**12), max_value=10**12, places=3)
timestamps = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)).map(  # noqa: DTZ001
    lambda moment: moment.replace(tzinfo=UTC).isoformat().replace("+00:00", "Z")
)
VALUES: dict[Type, st.SearchStrategy[Any]] = {
    "text": texts,
    "bigint": st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3),
    "numeric": decimals.map(lambda number: format(number, "f")) | st.sampled_from(["1", "1.0", "1.00", "-0", "0.10"]),
    "float8": st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, -0.0, 1, 0.1, 1e300]),
    "boolean": st.booleans(),
    "date": st.dates(date(1, 1, 1)).map(str) | st.sampled_from(["2026-01-01", "2026-01-02"]),
    "timestamptz": timestamps | st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-01T02:00:00+02:00"]),
    "uuid": st.uuids().map(str) | st.sampled_from(["00000000-0000-0000-0000-0000000000aA"]),
}
_scalars = (
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.sampled_from([0, 1, 1.0, 0.1, 1e22, -0.0]) | texts
)
documents = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "ä", ""]), inner, max_size=3)
    ),
    max_leaves=6,
).filter(lambda value: value is not None)

slow = settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
OPERATORS: tuple[Operator, ...] = ("eq", "lt", "lte", "gt", "gte")


@pytest.mark.parametrize("type_", list(VALUES))
@slow
@given(data=st.data())
def test_comparisons_agree(region: None, type_: Type, data: st.DataObject) -> None:
    raw, operand = data.draw(VALUES[type_]), data.draw(VALUES[type_])
    if data.draw(st.booleans()):
        operand = raw
    value = read(type_, operand)
    said = ask(
        f"SELECT c = v, c < v, c <= v, c > v, c >= v FROM (SELECT $1::{type_} c, $2::{type_} v)",
        wire(type_, read(type_, raw)),
        wire(type_, value),
    )
    row, facts = {"cell": raw}, Facts([value])
    ours = [holds(Compare(CELL, name, Slot(0, type_)), row, facts) for name in OPERATORS]
    assert ours == said


@pytest.mark.exhaustive
@pytest.mark.parametrize("type_", list(VALUES))
@slow
@given(data=st.data())
def test_membership_agrees(region: None, type_: Type, data: st.DataObject) -> None:
    raw = data.draw(VALUES[type_])
    others = data.draw(st.lists(VALUES[type_] | st.just(raw), max_size=3))
    array = ARRAYS[type_]
    value = read(array, others)
    (said,) = ask(f"SELECT $1::{type_} = ANY ($2::{array})", wire(type_, read(type_, raw)), wire(array, value))
    assert holds(Compare(CELL, "in", Slot(0, array)), {"cell": raw}, Facts([value])) == said


@slow
@given(cell=texts, pattern=texts)
@example("a", "%%%%%%a")
@example("Straße", "STRASSE")
@example("ΌΔΟΣ", "όδος")
@example("İ", "i%")
@example("\\", "\\\\")
@example("100%", "100\\%")
def test_patterns_agree(region: None, cell: str, pattern: str) -> None:
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        pattern += "\\"
    said = ask("SELECT c LIKE p, c ILIKE p FROM (SELECT $1::text c, $2::text p)", cell.encode(), pattern.encode())
    assert [
        holds(Compare(CELL, operator, Slot(0, "text")), {"cell": cell}, Facts([pattern]))  # type: ignore[arg-type]
        for operator in ("like", "ilike")
    ] == said


@slow
@given(cell=texts, part=texts)
def test_an_escaped_pattern_matches_itself_and_nothing_else(region: None, cell: str, part: str) -> None:
    pattern = escape_pattern(part)
    (said,) = ask("SELECT $1::text LIKE $2::text", cell.encode(), pattern.encode())
    assert said == (cell == part) == is_like(cell, pattern)
    assert is_like(cell, f"%{pattern}%") == (part in cell)
    assert is_like(cell, f"{pattern}%") == cell.startswith(part)


def test_lower_case_agrees_for_every_letter_that_both_know(region: None) -> None:
    known = [
        code
        for code in range(1, sys.maxunicode + 1)
        if not 0xD800 <= code <= 0xDFFF and unicodedata.category(chr(code)) != "Cn"
    ]
    rows = prepared.run(
        REGION,
        b"SELECT n, lower(chr(n)) FROM unnest($1::int[]) n WHERE lower(chr(n)) <> chr(n)",
        [wire("bigint[]", known)],
    )
    said = {int(code or 0): letter.decode() for code, letter in rows if letter}
    ours = {code: lower(chr(code)) for code in known if lower(chr(code)) != chr(code)}
    differ = {code for code in said.keys() | ours.keys() if said.get(code) != ours.get(code)}
    assert not {hex(code) for code in differ}


@pytest.mark.exhaustive
@slow
@given(left=documents, right=documents, keys=st.lists(st.sampled_from(["a", "b", "ä", ""]), max_size=3))
@example(["foo", "bar"], "bar", [])
@example([["foo"]], "foo", [])
@example([1, [2, 3]], [[3]], [])
@example("foo", ["foo"], [])
@example("a", "a", ["a"])
@example({"a": {"b": [1, 2]}}, {"a": {"b": [2]}}, ["a", "b"])
@example({"a": 1}, {"a": 1.0}, ["a"])
@example({"a": True}, {"a": 1}, [])
@example([], [], [])
def test_json_agrees(region: None, left: Any, right: Any, keys: list[str]) -> None:
    said = ask(
        "SELECT l = r, l @> r, l ?| k, l ?& k FROM (SELECT $1::jsonb l, $2::jsonb r, $3::text[] k)",
        wire("jsonb", left),
        wire("jsonb", right),
        wire("text[]", keys),
    )
    facts = Facts([right, tuple(keys)])
    assert [
        holds(Compare(CELL, operator, Slot(index, type_)), {"cell": left}, facts)  # type: ignore[arg-type]
        for operator, index, type_ in (
            ("eq", 0, "jsonb"),
            ("encloses", 0, "jsonb"),
            ("has_any", 1, "text[]"),
            ("has_all", 1, "text[]"),
        )
    ] == said


@slow
@given(cell=st.lists(texts, max_size=3), other=st.lists(texts, max_size=3))
@example(["a"], ["a", "a"])
def test_lists_of_text_agree(region: None, cell: list[str], other: list[str]) -> None:
    said = ask(
        "SELECT c = o, c && o, c @> o FROM (SELECT $1::text[] c, $2::text[] o)",
        wire("text[]", cell),
        wire("text[]", other),
    )
    assert [
        holds(Compare(CELL, operator, Slot(0, "text[]")), {"cell": cell}, Facts([tuple(other)]))  # type: ignore[arg-type]
        for operator in ("eq", "has_any", "has_all")
    ] == said


@slow
@given(
    cells=st.lists(st.none() | texts, min_size=1, max_size=3),
    words=st.lists(texts.map(str.split).map("".join), max_size=3),
)
def test_search_agrees(region: None, cells: list[str | None], words: list[str]) -> None:
    patterns = tuple(f"%{escape_pattern(word)}%" for word in words)
    (said,) = ask(
        f"SELECT concat_ws(E'\\x1f', {', '.join(f'${n}::text' for n in range(2, len(cells) + 2))}) ILIKE ALL ($1::text[])",
        wire("text[]", patterns),
        *(None if cell is None else cell.encode() for cell in cells),
    )
    row = {f"c{n}": cell for n, cell in enumerate(cells)}
    search = Search(tuple(Path((), name) for name in row), Slot(0, "text[]"))
    assert holds(search, row, Facts([patterns])) == said


# What no single statement says


def test_a_null_cell_is_false_for_every_operator_and_true_for_its_opposite() -> None:
    for operator, type_, value in (
        ("eq", "bigint", 1),
        ("lt", "bigint", 1),
        ("in", "bigint[]", (1,)),
        ("like", "text", "%"),
        ("ilike", "text", "%"),
        ("has_any", "text[]", ("a",)),
        ("has_all", "text[]", ()),
        ("encloses", "jsonb", {}),
    ):
        leaf = Compare(CELL, operator, Slot(0, type_))  # type: ignore[arg-type]
        for row in ({"cell": None}, {}):
            assert not holds(leaf, row, Facts([value]))
            assert holds(Not(leaf), row, Facts([value]))


def test_a_path_reads_null_where_it_leads_nowhere() -> None:
    hop = Hop("list", "lists", "list_id")
    lists = {"lst_1": {"id": "lst_1", "name": "Alpha"}}

    def related(hop: Hop, row: Any) -> list[Any]:
        found = lists.get(row[hop.column])
        return [found] if found else []

    name = Path((hop,), "name")
    is_alpha = Compare(name, "eq", Constant(b"Alpha", "text", "Alpha"))
    facts = Facts(related=related)
    assert holds(is_alpha, {"list_id": "lst_1"}, facts)
    for nowhere in ({"list_id": None}, {"list_id": "lst_2"}):
        assert not holds(is_alpha, nowhere, facts)
        assert holds(Not(is_alpha), nowhere, facts)
        assert holds(IsNull(name), nowhere, facts)


def test_quantified_conditions_ask_the_related_rows() -> None:
    hop = Hop("comments", "comments", "task_id", many=True)
    comments = [{"task_id": "t1", "stars": 1}, {"task_id": "t1", "stars": 5}, {"task_id": "t2", "stars": 5}]
    facts = Facts([5], related=lambda hop, row: [c for c in comments if c[hop.column] == row["id"]])
    five = Compare(Path((), "stars"), "eq", Slot(0, "bigint"))
    some, none = Quantified("some", hop, five), Quantified("none", hop, five)
    every = Quantified("none", hop, Not(five))
    assert [holds(c, {"id": "t1"}, facts) for c in (some, none, every)] == [True, False, False]
    assert [holds(c, {"id": "t2"}, facts) for c in (some, none, every)] == [True, False, True]
    assert [holds(c, {"id": "t3"}, facts) for c in (some, none, every)] == [False, True, True]


def test_a_variable_of_the_old_row_is_read_from_it_by_its_type() -> None:
    old = Variable("old.price", "numeric")
    raised = Compare(Path((), "price"), "gt", old)
    assert holds(raised, {"price": "10.00"}, Facts(old={"price": "9.50"}))
    assert not holds(raised, {"price": "10.00"}, Facts(old={"price": "10"}))
    assert not holds(Present(old), {}, Facts(old={"price": None}))
    assert not holds(Present(old), {}, Facts())
    assert not holds(Present(Variable("old.tags", "text[]")), {}, Facts(old={"tags": []}))
    assert holds(Present(Variable("old.title", "text")), {}, Facts(old={"title": ""}))


def test_what_nobody_said_is_an_error_not_an_answer() -> None:
    with pytest.raises(LookupError):
        holds(Compare(CELL, "eq", Variable("user.id", "text")), {"cell": "x"})
    with pytest.raises(LookupError):
        holds(Quantified("some", Hop("a", "b", "c"), IsNull(CELL)), {})


@pytest.mark.parametrize("piece", ["a" * 499, "a_" * 249, "%a" * 249, "_" * 499])
def test_hostile_patterns_look_at_each_letter_once(piece: str) -> None:
    """Where each place of the text began a comparison of its own these took minutes."""
    text = "a" * 1_000_000
    assert not is_like(text, f"%{piece}b%")
    assert is_like(text + "b", f"%{piece}b%")


@pytest.mark.parametrize(
    ("operator", "cell", "operand", "type_"),
    [
        ("like", "a" * 10_000, "%a_b%", "text"),
        ("ilike", "a" * 10_000, "%a_b%", "text"),
        ("encloses", [{"a": 1}] * 120, [{"b": 1}] * 120, "jsonb"),
        ("encloses", {"in": [[{"a": 1}] * 120]}, {"in": [[{"b": 1}] * 120]}, "jsonb"),
        ("encloses", ["a"] * 10_000, "b", "jsonb"),
        ("has_any", ["a"] * 28_000, ("b",), "text[]"),
        ("has_all", {str(number): 1 for number in range(28_000)}, ("b",), "text[]"),
        ("eq", ["a"] * 28_000, ("b",), "text[]"),
        ("in", "a", ("b",) * 28_000, "text[]"),
    ],
)
def test_what_would_take_long_is_bounded_by_the_effort_that_is_left(
    operator: Any, cell: Any, operand: Any, type_: Any
) -> None:
    leaf = Compare(CELL, operator, Slot(0, type_))
    facts = Facts([operand], effort=Effort(16_010))
    assert not holds(leaf, {"cell": cell}, facts)
    with pytest.raises(TooCostly):
        holds(leaf, {"cell": cell}, facts)


def test_decimals_compare_whatever_their_length() -> None:
    long = "0." + "1" * 60
    assert not holds(Compare(CELL, "eq", Slot(0, "numeric")), {"cell": long}, Facts([Decimal(long + "1")]))
    assert holds(Compare(CELL, "lt", Slot(0, "numeric")), {"cell": long}, Facts([Decimal(long + "1")]))
