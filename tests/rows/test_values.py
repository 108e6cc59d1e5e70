"""Values by column type: what is taken, what is refused and how it is named, and that PostgreSQL reads what was
written."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from django.db import connections
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from platform_site.http.exact_json import read_float
from platform_site.identity import ids
from platform_site.postgres import prepared
from rows.schema.column_values import read_cell, read_operand
from rows.schema.model import SQL_TYPES, Column
from rows.schema.types import Type
from rows.schema.values import ARRAYS, InvalidValue, read, wire

REGION = "us-east-1"


@pytest.fixture(scope="module")
def region(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock():
        yield
        connections[REGION].close()


def column(type_: str, **facts: Any) -> Column:
    return Column("cell", "cell", type_, **facts)  # type: ignore[arg-type]


ANY_TYPE = [*SQL_TYPES]

TAKEN: list[tuple[str, Any, Any, bytes]] = [
    ("text", "", "", b""),
    ("text", "é\n\u2028😀", "é\n\u2028😀", "é\n\u2028😀".encode()),
    ("integer", -(2**63), -(2**63), b"-9223372036854775808"),
    ("integer", 2**63 - 1, 2**63 - 1, b"9223372036854775807"),
    ("decimal", "0012.50", Decimal("12.50"), b"12.50"),
    ("decimal", 12, Decimal(12), b"12"),
    ("decimal", 0.1, Decimal("0.1"), b"0.1"),
    ("decimal", read_float("0.10000000000000000000"), Decimal("0.1"), b"0.1"),
    ("decimal", 1e20, Decimal("1e20"), b"100000000000000000000"),
    ("decimal", "-0", Decimal("-0"), b"-0"),
    ("decimal", 0.123456789012345, Decimal("0.123456789012345"), b"0.123456789012345"),
    ("decimal", 10**500 - 1, Decimal(10**500 - 1), b"9" * 500),
    ("float", 3, 3.0, b"3.0"),
    ("float", 1e300, 1e300, b"1e+300"),
    ("float", 5e-324, 5e-324, b"5e-324"),
    ("boolean", True, True, b"true"),
    ("boolean", False, False, b"false"),
    ("date", "2024-02-29", date(2024, 2, 29), b"2024-02-29"),
    ("date", "0001-01-01", date(1, 1, 1), b"0001-01-01"),
    ("timestamp", "2026-03-01T12:00Z", datetime(2026, 3, 1, 12, tzinfo=UTC), b"2026-03-01T12:00:00+00:00"),
    (
        "timestamp",
        "2026-03-01 12:00:00.5+02:00",
        datetime(2026, 3, 1, 10, 0, 0, 500_000, tzinfo=UTC),
        b"2026-03-01T10:00:00.500000+00:00",
    ),
    (
        "uuid",
        "6B1F1C1E-3C1C-4D0E-9D6C-0D2B8A7F5E11",
        "6b1f1c1e-3c1c-4d0e-9d6c-0d2b8a7f5e11",
        b"6b1f1c1e-3c1c-4d0e-9d6c-0d2b8a7f5e11",
    ),
    (
        "json",
        {"b": [1, None, True], "a": "é"},
        {"b": [1, None, True], "a": "é"},
        '{"b":[1,null,true],"a":"é"}'.encode(),
    ),
    ("json", 10**40, 10**40, str(10**40).encode()),
    ("json", "plain", "plain", b'"plain"'),
    ("text[]", [], (), b"{}"),
    ("text[]", ["a b", 'q"\\', "NULL", ""], ("a b", 'q"\\', "NULL", ""), b'{"a b","q\\"\\\\","NULL",""}'),
    ("enum", "open", "open", b"open"),
    ("reference", "tsk_1", "tsk_1", b"tsk_1"),
]


@pytest.mark.parametrize(("type_", "raw", "value", "text"), TAKEN)
def test_what_a_column_takes(type_: str, raw: Any, value: Any, text: bytes) -> None:
    found = read_cell(column(type_, values=("open", "done")), raw)
    assert found == value
    assert type(found) is type(value)
    assert wire(SQL_TYPES[type_], found) == text  # type: ignore[index]


REFUSED: list[tuple[str, Any, str]] = [
    ("text", 5, "wrong_type"),
    ("text", True, "wrong_type"),
    ("text", ["a"], "wrong_type"),
    ("text", "nul\0", "invalid"),
    ("text", "half \ud800", "invalid"),
    ("integer", "5", "wrong_type"),
    ("integer", True, "wrong_type"),
    ("integer", 5.0, "wrong_type"),
    ("integer", 2**63, "out_of_range"),
    ("integer", -(2**63) - 1, "out_of_range"),
    ("integer", 10**400, "out_of_range"),
    ("decimal", "1e5", "wrong_type"),
    ("decimal", "NaN", "wrong_type"),
    ("decimal", "Infinity", "wrong_type"),
    ("decimal", "", "wrong_type"),
    ("decimal", " 1", "wrong_type"),
    ("decimal", "1.", "wrong_type"),
    ("decimal", "1_000", "wrong_type"),
    ("decimal", "١٢", "wrong_type"),
    ("decimal", True, "wrong_type"),
    ("decimal", 12345678.123456789, "invalid"),
    ("decimal", 0.1234567890123456, "invalid"),
    ("decimal", read_float("12.500000000000000001"), "invalid"),
    ("decimal", float("nan"), "wrong_type"),
    ("decimal", float("-inf"), "wrong_type"),
    ("decimal", 10**500, "out_of_range"),
    ("decimal", -(10**500), "out_of_range"),
    ("decimal", "9" * 501, "wrong_type"),
    ("float", "1.5", "wrong_type"),
    ("float", False, "wrong_type"),
    ("float", float("nan"), "out_of_range"),
    ("float", float("inf"), "out_of_range"),
    ("float", 10**400, "out_of_range"),
    ("boolean", 1, "wrong_type"),
    ("boolean", "true", "wrong_type"),
    ("date", "0000-00-00", "invalid"),
    ("date", "2023-02-29", "invalid"),
    ("date", "20240101", "wrong_type"),
    ("date", "2024-W01-1", "wrong_type"),
    ("date", "2024-01-01T00:00:00Z", "wrong_type"),
    ("date", "infinity", "wrong_type"),
    ("date", 20240101, "wrong_type"),
    ("timestamp", "2026-03-01T12:00:00", "no_time_zone"),
    ("timestamp", "2026-03-01", "wrong_type"),
    ("timestamp", "2026-03-01T25:00:00Z", "invalid"),
    ("timestamp", "2026-03-01T12:00:60Z", "invalid"),
    ("timestamp", "0000-00-00T00:00:00Z", "invalid"),
    ("timestamp", "0001-01-01T00:00:00+01:00", "invalid"),
    ("timestamp", "9999-12-31T23:59:59-01:00", "invalid"),
    ("timestamp", "2026-03-01T12:00:00.1234567Z", "wrong_type"),
    ("timestamp", "2026-03-01T12:00:00+99:00", "invalid"),
    ("timestamp", "infinity", "wrong_type"),
    ("timestamp", "now", "wrong_type"),
    ("timestamp", 1700000000, "wrong_type"),
    ("uuid", "6b1f1c1e3c1c4d0e9d6c0d2b8a7f5e11", "wrong_type"),
    ("uuid", "{6b1f1c1e-3c1c-4d0e-9d6c-0d2b8a7f5e11}", "wrong_type"),
    ("uuid", 7, "wrong_type"),
    ("json", {"a": ["nul\0"]}, "invalid"),
    ("json", {"nul\0": 1}, "invalid"),
    ("json", {"a": "\udfff"}, "invalid"),
    ("json", [float("inf")], "out_of_range"),
    ("json", {1, 2}, "wrong_type"),
    ("text[]", "a", "wrong_type"),
    ("text[]", ["a", 1], "wrong_type"),
    ("text[]", ["a", None], "wrong_type"),
    ("text[]", ["nul\0"], "invalid"),
    ("enum", "shut", "not_among"),
    ("enum", 1, "wrong_type"),
    ("reference", "a/b", "no_such_row"),
    ("reference", "", "no_such_row"),
    ("reference", "a" * 65, "no_such_row"),
    ("reference", {"id": "a"}, "wrong_type"),
    ("user", "usr_short", "no_such_user"),
    ("user", "key_01k00000000000000000000000", "no_such_user"),
]


@pytest.mark.parametrize(("type_", "raw", "code"), REFUSED)
def test_what_a_column_refuses(type_: str, raw: Any, code: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        read_cell(column(type_, values=("open", "done")), raw)
    assert refused.value.code == code
    assert refused.value.message.endswith(".")


@pytest.mark.parametrize("type_", ANY_TYPE)
def test_null_is_for_columns_that_have_it(type_: str) -> None:
    assert read_cell(column(type_, null=True), None) is None
    with pytest.raises(InvalidValue) as refused:
        read_cell(column(type_), None)
    assert refused.value.code == "null"


def test_a_user_is_named_by_an_id() -> None:
    alice = ids.new("usr")
    assert read_cell(column("user"), alice) == alice


def test_length_is_counted_in_characters() -> None:
    short = column("text", max_length=3)
    assert read_cell(short, "äö😀") == "äö😀"
    with pytest.raises(InvalidValue, match="at most 3 characters"):
        read_cell(short, "abcd")
    with pytest.raises(InvalidValue, match="at most 3 characters"):
        read_cell(column("text[]", max_length=3), ["a", "abcd"])


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        ("999.99", None),
        ("-999.99", None),
        ("0001.10", None),
        ("1.5000", None),
        ("0.00", None),
        ("0", None),
        (0.25, None),
        ("1000", "out_of_range"),
        ("99999999999999999999", "out_of_range"),
        ("1.005", "too_precise"),
        ("0.001", "too_precise"),
    ],
)
def test_digits_of_a_decimal(raw: Any, code: str | None) -> None:
    price = column("decimal", precision=5, scale=2)
    if code is None:
        assert read_cell(price, raw) == Decimal(str(raw))
    else:
        with pytest.raises(InvalidValue) as refused:
            read_cell(price, raw)
        assert refused.value.code == code


def test_operands_may_be_what_no_cell_can_be() -> None:
    assert read_operand(column("text", max_length=3), "longer") == "longer"
    assert read_operand(column("decimal", precision=5, scale=2), "1.00001") == Decimal("1.00001")
    assert read_operand(column("user"), "nobody") == "nobody"
    assert read_operand(column("reference"), "no/where") == "no/where"
    with pytest.raises(InvalidValue):
        read_operand(column("enum", values=("open",)), "shut")
    with pytest.raises(InvalidValue):
        read_operand(column("text"), None)


def test_depth_of_json_is_bounded_without_recursion() -> None:
    deepest: Any = []
    for level in range(63):
        deepest = [deepest] if level % 2 else {"in": deepest}
    assert read_cell(column("json"), deepest) is deepest
    with pytest.raises(InvalidValue) as refused:
        read_cell(column("json"), {"in": deepest})
    assert refused.value.code == "too_deep"
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidValue) as refused:
        read_cell(column("json"), deep)
    assert refused.value.code == "too_deep"
    while isinstance(deep, list):  # dismantled step by step: dropping it whole would recurse
        deep = deep.pop()


_anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["2026-01-01", "2026-01-01T00:00:00Z", "12.5", "6b1f1c1e-3c1c-4d0e-9d6c-0d2b8a7f5e11"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.exhaustive
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(type_=st.sampled_from(ANY_TYPE), raw=_anything)
def test_whatever_is_taken_postgresql_takes_too(region: None, type_: str, raw: Any) -> None:
    try:
        cell = read_cell(column(type_, values=("open", "done"), null=True), raw)
    except InvalidValue:
        return
    sql_type = SQL_TYPES[type_]  # type: ignore[index]
    (row,) = prepared.run(REGION, f"SELECT $1::{sql_type}".encode(), [None if cell is None else wire(sql_type, cell)])
    assert (row[0] is None) == (raw is None)


@pytest.mark.exhaustive
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.lists(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
        | st.sampled_from('{}",\\ ')
        | st.just("NULL")
    )
)
def test_an_array_arrives_as_it_was(region: None, values: list[str]) -> None:
    rows = prepared.run(
        REGION, b"SELECT e FROM unnest($1::text[]) WITH ORDINALITY u (e, n) ORDER BY n", [wire("text[]", values)]
    )
    assert [cell.decode() for (cell,) in rows if cell is not None] == values


@pytest.mark.parametrize(("element", "array"), list(ARRAYS.items()))
def test_arrays_of_every_type_have_no_nulls(element: Type, array: Type) -> None:
    assert read(array, []) == ()
    for wrong in ([None], "text", {"a": 1}, "", {}, 5):
        with pytest.raises(InvalidValue):
            read(array, wrong)


@pytest.mark.parametrize(
    ("type_", "value", "bytes_"),
    [
        ("float8", -0.0, b"0.0"),
        ("jsonb", {"n": 1.0, "m": [-0.0, 100.0, 1.5, 1e300]}, b'{"n":1,"m":[0,100,1.5,1e+300]}'),
        ("jsonb", "1.0", b'"1.0"'),
        ("jsonb", {"1.0": ["a:1.0,b", 2.0]}, b'{"1.0":["a:1.0,b",2]}'),
    ],
)
def test_equal_values_have_equal_bytes(type_: Type, value: Any, bytes_: bytes) -> None:
    assert wire(type_, read(type_, value)) == bytes_
