"""A field takes its own type or says no; every wrong field is named at once."""

import json
from typing import Any

import pytest

from platform_site.http import fields
from tests.support.client import Api

pytestmark = pytest.mark.usefixtures("things")


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("name", 5, "invalid"),
        ("name", True, "invalid"),
        ("name", None, "null"),
        ("name", "", "blank"),
        ("name", " \t\n", "blank"),
        ("name", ["x"], "invalid"),
        ("name", {"a": 1}, "invalid"),
        ("name", "x" * 11, "too_long"),
        ("name", "😀" * 11, "too_long"),
        ("size", "5", "invalid"),
        ("size", True, "invalid"),
        ("size", 5.5, "invalid"),
        ("size", 2**63, "out_of_range"),
        ("size", -(2**63) - 1, "out_of_range"),
        ("size", 1e30, "out_of_range"),
        ("size", [], "invalid"),
        ("on", "true", "invalid"),
        ("on", 1, "invalid"),
        ("on", 0, "invalid"),
        ("on", None, "null"),
        ("on", [], "invalid"),
        ("on", {}, "invalid"),
        ("kind", "c", "not_among"),
        ("kind", "", "not_among"),
        ("kind", 1, "invalid"),
        ("kind", ["a"], "invalid"),
        ("kind", {"a": 1}, "invalid"),
        ("at", "2026-01-01", "no_zone"),
        ("at", "2026-01-01T00:00:00", "no_zone"),
        ("at", "0000-00-00T00:00:00Z", "invalid"),
        ("at", "0001-01-01T00:00:00+14:00", "invalid"),
        ("at", "infinity", "invalid"),
        ("at", 1700000000, "invalid"),
        ("at", "2026-02-30T00:00:00Z", "invalid"),
        ("tags", "x", "not_a_list"),
        ("tags", {"0": "x"}, "not_a_list"),
        ("tags", ["a", "b", "c", "d"], "too_many"),
        ("tags", ["a", "a"], "repeated"),
        ("data", [], "not_an_object"),
        ("data", "{}", "not_an_object"),
        ("data", {"a": [2**64]}, "too_large"),
        ("price", "1.5", "invalid"),
        ("price", True, "invalid"),
        ("env", "prj_01k6zzzzzzzzzzzzzzzzzzzzzz", "invalid_id"),
        ("env", "env_", "invalid_id"),
        ("unheard", 1, "unknown_field"),
    ],
)
def test_a_wrong_value_is_422_naming_its_field(api: Api, field: str, value: Any, code: str) -> None:
    body = json.dumps({"name": "x"} | {field: value}).encode()
    answer = api.post("/v1/test/things", token="good", body=body)
    assert answer.status == 422
    assert answer.fields == {field: code}


def test_every_wrong_field_is_named_at_once(api: Api) -> None:
    answer = api.post("/v1/test/things", token="good", json={"size": "1", "on": 1, "tags": ["a", 1], "x": 1, "y": 2})
    assert answer.fields == {
        "name": "required", "size": "invalid", "on": "invalid", "tags.1": "invalid", "x": "unknown_field", "y": "unknown_field",
    }  # fmt: skip


def test_a_member_may_be_called_nothing_and_is_refused_all_the_same(api: Api) -> None:
    answer = api.post("/v1/test/things", token="good", json={"name": "x", "": 1, "y" * 1000: 1})
    assert answer.fields == {"(empty)": "unknown_field", "y" * 100: "unknown_field"}


def test_right_values_arrive_as_they_are(api: Api) -> None:
    sent = {
        "name": " 😀é ",
        "size": 2**63 - 1,
        "on": False,
        "kind": "b",
        "at": "2026-01-01T02:00:00+02:00",
        "tags": [],
        "data": {"a": {"b": [None, 1.5, -(2**63)]}},
        "price": 3,
    }
    answer = api.post("/v1/test/things", token="good", json=sent)
    assert answer.status == 201
    assert answer.headers["Location"] == "/v1/test/things/1"
    assert answer.json == sent | {
        "name": "😀é",
        "at": "2026-01-01T00:00:00.000000Z",
        "price": 3.0,
    }


def test_an_integer_may_be_written_as_a_whole_float(api: Api) -> None:
    assert api.post("/v1/test/things", token="good", body=b'{"name": "x", "size": 5.0}').json["size"] == 5


class Inner(fields.Serializer):
    name = fields.CharField()


class Outer(fields.Serializer):
    name = fields.CharField()
    inner = Inner()
    inners = Inner(many=True)
    names = fields.ListField(child=fields.CharField())


def test_serializers_of_one_class_share_no_field() -> None:
    one, other = Outer(context={"of": "one"}), Outer(context={"of": "other"})
    for serializer, name in ((one, "one"), (other, "other")):
        found = serializer.fields
        children = [found["inner"].fields["name"], found["inners"].child.fields["name"], found["names"].child]
        for field in (*found.values(), *children):
            assert (field.root, field.context) == (serializer, {"of": name})
    assert all(field is not other.fields[name] for name, field in one.fields.items())
    assert all(field.parent is None for field in Outer._declared_fields.values())
