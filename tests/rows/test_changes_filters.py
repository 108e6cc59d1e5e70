"""The `where` of a subscription means what the same filter means in a list."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.live_changes import DOCUMENT, READY, App
from tests.support.service import Up

ITEMS: dict[str, Any] = {
    "title": {"type": "text", "null": True},
    "note": {"type": "text", "null": True},
    "n": {"type": "integer", "null": True},
    "j": {"type": "json", "null": True},
    "tags": {"type": "text[]", "null": True},
    "day": {"type": "date", "null": True},
}
ROWS: list[dict[str, Any]] = [
    {"title": "$$x", "tags": [], "n": 1, "j": {"a": "$$x"}},
    {"title": "$x", "tags": ["a"], "n": 2, "j": []},
    {"title": "$old.title", "tags": ["a", "$$x"], "n": 2, "j": {"a": "$x"}, "note": "$old.title"},
    {"title": "$user.id", "tags": ["$x"], "j": ["$$x"], "day": "2026-01-02"},
    {"title": "", "n": 3, "j": {}, "note": "Ab_c%"},
    {"title": None},
]
FILTERS: list[dict[str, Any]] = [
    {},
    {"title": "$$x"}, {"title": "$x"}, {"title": "$user.id"}, {"title": "$now"},
    {"title": "$old.title"}, {"title": {"$ne": "$old.title"}}, {"title": "$old.nothing"},
    {"title": {"$in": ["$$x"]}}, {"title": {"$nin": ["$x", None]}}, {"title": {"$in": ["$old.note", "$x"]}},
    {"title": {"$in": []}}, {"title": {"$nin": []}}, {"$not": {"title": {"$in": []}}},
    {"title": {"$iin": []}}, {"title": {"$not": {"$iin": []}}}, {"title": {"$ieq": "$$X"}},
    {"title": {"$gt": "$$"}}, {"title": {"$between": ["$", "$$z"]}},
    {"title": {"$contains": ""}}, {"title": {"$startsWith": "$$"}}, {"title": {"$like": "%"}}, {"title": {"$search": " "}},
    {"$search": "$$x"}, {"$search": ""}, {"title": {"$eq": {"$column": "note"}}}, {"note": {"$icontains": "B_C%"}},
    {"note": {"$search": ""}},
    {"id": {"$nin": []}}, {"id": {"$in": []}}, {"n": {"$nin": []}}, {"n": {"$in": [2, None]}}, {"n": {"$not": {"$gt": 1}}},
    {"tags": []}, {"tags": {"$eq": []}}, {"tags": {"$ne": []}}, {"tags": {"$hasAll": []}}, {"tags": {"$hasAny": []}},
    {"$not": {"tags": {"$hasAll": []}}}, {"tags": {"$has": "$$x"}}, {"tags": {"$hasAny": ["$x"]}}, {"tags": ["a", "$$x"]},
    {"j": {"$eq": {"a": "$$x"}}}, {"j": {"a": "$x"}}, {"j": {"$eq": []}}, {"j": {}}, {"j": {"$hasAll": []}},
    {"j": {"$hasAny": []}}, {"j": {"$has": "$$x"}}, {"j": {"$contains": "$$x"}}, {"j": {"$contains": {}}},
    {"day": {"$lte": "2026-01-02"}}, {"$or": [{"title": {"$nin": []}}, {"n": 1}]}, {"$not": {"$or": [{}, {"n": 1}]}},
    {"$is": "unmarked"}, {"$not": {"$is": "unmarked"}},
]  # fmt: skip


@pytest.fixture(scope="module")
def app(served: Up) -> Iterator[App]:
    app = App(served)
    items = {"columns": ITEMS, "conditions": {"unmarked": {"title": {"$ne": "$$x"}, "tags": {"$ne": []}}}, "rules": {}}
    document = {"tables": DOCUMENT["tables"] | {"items": items, "ends": {"columns": {"n": {"type": "integer"}}}}}
    app.ok("owner", "PUT", "/schema", document=document)
    yield app
    app.close()


def test_changes_show_the_rows_that_a_list_shows(app: App) -> None:
    for start in range(0, len(FILTERS), 19):
        filters = FILTERS[start : start + 19]  # and one subscription to a last row
        asked: dict[str, Any] = {f"s{at}": {"table": "items", "where": where} for at, where in enumerate(filters)}
        shown: dict[str, set[str]] = {name: set() for name in asked}
        with app.live("server", asked | {"end": {"table": "ends"}}) as stream:
            assert stream.next() == READY
            made = {app.put("items", **values)["id"] for values in ROWS}
            app.put("ends", n=1)
            while (message := stream.next()) and message[1]["subscription"] != "end":
                assert message[0] == "row"
                shown[message[1]["subscription"]].add(message[1]["id"])
        for name, one in asked.items():
            listed = app.ok("server", "POST", "/rows/items/query", where=one["where"], limit=100)["data"]
            assert shown[name] == made & {row["id"] for row in listed}, one["where"]
