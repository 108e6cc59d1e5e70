"""A write of an equal value in another spelling changes nothing: not the bytes, the ETag or an event."""

import json
from typing import Any

import pytest

from tests.support.tenants import OPERATOR, Tenant

pytestmark = pytest.mark.django_db(databases="__all__")
DOCUMENT = {
    "tables": {
        "m": {
            "columns": {"f": {"type": "float"}, "j": {"type": "json", "null": True}},
            "rules": {"user": {"read": {}}},
        }
    }
}


@pytest.mark.parametrize(
    ("first", "again"),
    [
        ({"f": 0.0}, {"f": -0.0}),
        ({"f": 0, "j": {"n": 1}}, {"j": {"n": 1.0}}),
        ({"f": 0, "j": {"n": [100]}}, {"j": {"n": [100.0]}}),
        ({"f": 0, "j": 1.0}, {"j": 1}),
        ({"f": 0, "j": {"n": 10**20}}, {"j": {"n": 1e20}}),
        ({"f": 0, "j": {"n": 2**53}}, {"j": {"n": float(2**53)}}),
    ],
)
def test_an_equal_value_in_another_spelling_changes_no_byte(first: dict[str, Any], again: dict[str, Any]) -> None:
    tenant = Tenant(DOCUMENT)
    row = tenant.put("m", **first)
    before = tenant.raw("SELECT f::text, j::text FROM {}.m")
    tenant.update(OPERATOR, "m", row, **again)
    assert tenant.raw("SELECT f::text, j::text FROM {}.m") == before


@pytest.mark.parametrize("way", ["default", "backfill"])
def test_a_value_of_the_schema_is_written_as_a_row_s(way: str) -> None:
    tenant = Tenant(DOCUMENT)
    row = tenant.put("m", f=0.5)
    table = DOCUMENT["tables"]["m"]
    value = {"n": [1.0, 1e3, -0.0, 1.5]}
    changed = {**table, "columns": {**table["columns"], "d": {"type": "json", way: value}}}
    tenant.apply({"tables": {"m": changed}})
    before = tenant.raw("SELECT d::text FROM {}.m")
    tenant.update(OPERATOR, "m", row, d=value)
    assert tenant.raw("SELECT d::text FROM {}.m") == before == [('{"n": [1, 1000, 0, 1.5]}',)]


@pytest.mark.parametrize(
    ("kind", "text", "stored"),
    [
        ("float", "-0", "0"),
        ("json", "-0.0", "0"),
        ("json", "[1.0, 1.10, 1.005, 10.00, 1.5e-3]", "[1, 1.1, 1.005, 10, 0.0015]"),
        ("json", "100e-2", "1"),
        ("json", r'{"1.0": "v1.0 \" 2.0 \\\\", "b": 3.0}', r'{"b": 3, "1.0": "v1.0 \" 2.0 \\\\"}'),
    ],
)
def test_a_text_that_changes_its_type_is_stored_as_the_api_writes_it(kind: str, text: str, stored: str) -> None:
    table = DOCUMENT["tables"]["m"]
    columns = {**table["columns"], "t": {"type": "text", "null": True}}
    tenant = Tenant({"tables": {"m": {**table, "columns": columns}}})
    row = tenant.put("m", f=0.5, t=text)
    columns["t"] = {"type": kind, "null": True}
    tenant.apply({"tables": {"m": {**table, "columns": columns}}})
    assert tenant.raw("SELECT t::text FROM {}.m") == [(stored,)]
    tenant.update(OPERATOR, "m", row, t=json.loads(text))
    assert tenant.raw("SELECT t::text FROM {}.m") == [(stored,)]
