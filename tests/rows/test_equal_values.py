"""A write of an equal value in another spelling changes nothing: not the bytes, the ETag or an event."""

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
    ],
)
def test_an_equal_value_in_another_spelling_changes_no_byte(first: dict[str, Any], again: dict[str, Any]) -> None:
    tenant = Tenant(DOCUMENT)
    row = tenant.put("m", **first)
    before = tenant.raw("SELECT f::text, j::text FROM {}.m")
    tenant.update(OPERATOR, "m", row, **again)
    assert tenant.raw("SELECT f::text, j::text FROM {}.m") == before
