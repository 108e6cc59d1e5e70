"""The API page of a table: its code has values that the table accepts, and nothing that changes the code around them."""

import json
import shlex
from ast import literal_eval
from collections.abc import Callable
from html import unescape
from typing import Any
from urllib.parse import quote

import pytest

from platform_site.developer_console.tables.snippets import LANGUAGES, sample_of
from tests.developer_console.conftest import Desk, desk_at
from tests.rows.conftest import Tracker

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(transaction=True, databases="__all__")]

HARD = 'it\'s "one"; \\ $x `y` </code>\u202e\n{{ é'
COLUMNS: dict[str, dict[str, Any]] = {
    "short": {"type": "text", "max_length": 3},
    "long": {"type": "text", "min_length": 12},
    "email": {"type": "text", "format": "email"},
    "site": {"type": "text", "format": "url"},
    "slug": {"type": "text", "format": "slug"},
    "short_email": {"type": "text", "format": "email", "max_length": 10},
    "long_email": {"type": "text", "format": "email", "min_length": 30, "max_length": 30},
    "short_site": {"type": "text", "format": "url", "max_length": 8},
    "long_site": {"type": "text", "format": "url", "min_length": 100},
    "short_slug": {"type": "text", "format": "slug", "max_length": 2},
    "long_slug": {"type": "text", "format": "slug", "min_length": 50},
    "essay": {"type": "text", "min_length": 100},
    "book": {"type": "text", "min_length": 5_000, "null": True},
    "tiny_email": {"type": "text", "format": "email", "max_length": 4, "null": True},
    "wide": {"type": "integer", "min": -(2**60), "max": 2**60},
    "huge": {"type": "integer", "min": 2**60, "null": True},
    "part": {"type": "float", "max": 0.5},
    "size": {"type": "integer", "min": 7},
    "low": {"type": "integer", "max": -1},
    "price": {"type": "decimal", "precision": 6, "scale": 2, "min": "2.50"},
    "share": {"type": "decimal", "precision": 2, "scale": 2},
    "whole": {"type": "decimal", "precision": 3, "scale": 0},
    "ratio": {"type": "float"},
    "done": {"type": "boolean"},
    "day": {"type": "date", "min": "2030-01-01"},
    "at": {"type": "timestamp"},
    "key": {"type": "uuid"},
    "data": {"type": "json"},
    "tags": {"type": "text[]"},
    "kind": {"type": "enum", "values": [HARD, "b"]},
    "other": {"type": "reference", "to": "things", "null": True},
    "owner": {"type": "user", "null": True},
}
UNFIT = {"other", "owner", "book", "tiny_email", "huge"}
"""No short sample fits: they are left out, or a placeholder if required."""


@pytest.fixture
def things(make_tracker: Callable[..., Tracker]) -> Tracker:
    tables: dict[str, Any] = {f"only_{name}": {"columns": {name: column}} for name, column in COLUMNS.items()}
    tables |= {"things": {"columns": COLUMNS}, "empty": {"columns": {}}}
    return make_tracker({"tables": tables})


def test_every_value_fits_its_column(things: Tracker) -> None:
    tables = things.get("owner", "/schema").json["document"]["tables"]
    for name, table in tables.items():
        sample = sample_of(name, table)
        made = things.post("owner", f"/rows/{name}", sample.inserted)
        assert made.status == 201, (name, sample, made.json)
        found = things.get("owner", f"/rows/{name}?where={quote(json.dumps(sample.where))}")
        assert found.status == 200, (name, sample, found.json)
        if not sample.updated.keys() & {*UNFIT, "other_id", "owner_id"}:
            changed = things.call("owner", "PATCH", f"/rows/{name}/{made.json['id']}", json=sample.updated)
            assert changed.status == 200, (name, sample, changed.json)
    assert sample_of("things", tables["things"]).inserted.keys() == COLUMNS.keys() - UNFIT
    assert sample_of("only_done", tables["only_done"]).where == {"done": True}


def test_a_required_value_without_a_sample_is_a_placeholder() -> None:
    huge = {"columns": {"huge": {"type": "integer", "min": 2**60}, "book": {"type": "text", "min_length": 5_000}}}
    sample = sample_of("things", huge)
    assert sample.inserted == {"huge": "HUGE", "book": "BOOK"}
    assert list(sample.where) == ["created_at"]


def test_hard_texts_are_one_value_in_every_language(things: Tracker) -> None:
    desk = desk_at(things)
    texts = {
        language: unescape(desk.get(f"tables/only_kind/api?language={language}").content.decode())
        for language in LANGUAGES
    }
    for text in texts.values():
        assert "\u202e" not in text
    command = texts["curl"].partition('id="snippet-insert">')[2].partition("</code></pre>")[0]
    assert json.loads(shlex.split(command)[-1]) == {"kind": HARD}
    call = texts["python"].partition('id="snippet-insert">')[2].partition("json=")[2].partition(")\n")[0]
    assert literal_eval(call) == {"kind": HARD}
    call = texts["javascript"].partition('id="snippet-insert">')[2].partition("kind: ")[2].partition(" })")[0]
    assert json.loads(call) == HARD


def test_a_table_that_is_not_there_is_not_found(desk: Desk) -> None:
    assert desk.get("tables/none/api").status_code == 404
    assert 'aria-current="page">curl' in desk.get("tables/tasks/api?language=none").content.decode()


def test_a_viewer_reads_the_code_of_a_table(desk_of: Callable[[str], Desk]) -> None:
    assert "/v1/rows/tasks/ROW_ID" in desk_of("viewer").get("tables/tasks/api").content.decode()
