"""JSON whose integers keep all their digits."""

import json
from datetime import date
from typing import Any

import pytest

from platform_site.http import exact_json

LONG = [2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**300]


@pytest.mark.parametrize("value", [*LONG, {"a": LONG, "b": "é\u2028", "c": 0.1}, [], {}, None, "1" * 30])
@pytest.mark.parametrize("indent", [False, True])
def test_what_is_written_is_read_as_it_was(value: Any, indent: bool) -> None:
    text = exact_json.dumps(value, indent=indent)
    assert exact_json.loads(text) == exact_json.loads(text.encode()) == value
    assert text == json.dumps(
        value, ensure_ascii=False, indent=2 if indent else None, separators=None if indent else (",", ":")
    )


@pytest.mark.parametrize(
    "text", ["", "nothing", "{'a': 1}", "NaN", "[1e999]", "[" * 5000 + "]" * 5000, f"[{'1' * 5000}]", '"\\ud800"']
)
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="."):
        exact_json.loads(text)


def test_what_json_does_not_have_is_left_to_the_caller() -> None:
    assert json.loads(exact_json.dumps([2**64, {1}], default=str)) == [2**64, "{1}"]
    assert exact_json.dumps(date(2026, 1, 2), default=str) == '"2026-01-02"'
    with pytest.raises(TypeError):
        exact_json.dumps({1})
