"""Any schema can become any other, and back: what a change leaves is what a fresh start would have made."""

from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from rows.schema.model import EMPTY, InvalidDocument, Schema
from rows.schema.parser import parse
from tests.support import catalog

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(databases="__all__")]

TABLES = ("order", "b", "c")
COLUMNS = ("select", "y", "z", "w")

_PLAIN: tuple[dict[str, Any], ...] = (
    {"type": "text"},
    {"type": "text", "max_length": 5},
    {"type": "text", "max_length": 50, "default": "100% 'so'"},
    {"type": "integer", "default": -1},
    {"type": "integer"},
    {"type": "decimal", "precision": 8, "scale": 2},
    {"type": "decimal", "precision": 4, "scale": 0, "default": "12"},
    {"type": "float"},
    {"type": "float", "min": 0},
    {"type": "integer", "min": 0},
    {"type": "integer", "min": -5, "max": 99, "default": 7},
    {"type": "decimal", "precision": 8, "scale": 2, "max": "99.50"},
    {"type": "timestamp", "min": "2026-01-01T00:00:00Z", "default": "$now"},
    {"type": "date", "max": "2999-12-31"},
    {"type": "text", "min_length": 2, "default": "100%"},
    {"type": "text", "format": "email"},
    {"type": "text", "format": "url", "default": "https://example.com/100%"},
    {"type": "text", "format": "slug", "min_length": 3, "max_length": 50},
    {"type": "text", "min_length": 1, "max_length": 50},
    {"type": "boolean", "default": True},
    {"type": "date", "default": "$now"},
    {"type": "timestamp"},
    {"type": "uuid", "default": "$uuid"},
    {"type": "enum", "values": ["a", "b%"], "default": "a"},
    {"type": "enum", "values": ["b%", "c"]},
    {"type": "user"},
)
_UNINDEXED: tuple[dict[str, Any], ...] = ({"type": "json", "default": {"%s": []}}, {"type": "text[]"})


@st.composite
def documents(draw: st.DrawFn, before: Schema = EMPTY) -> dict[str, Any]:
    """A valid document over few names, so that two of them collide often; with renames from `before`."""
    names = draw(st.lists(st.sampled_from(TABLES), unique=True, max_size=3))
    free = [name for name in before.tables]
    tables: dict[str, Any] = {}
    for name in names:
        source = draw(st.sampled_from([None, *free])) if free else None
        table: dict[str, Any] = {"columns": {}}
        if source:
            free.remove(source)
            table["renamed_from"] = source
        was = before.tables.get(source or name)
        free_columns = [column.key for column in was.columns.values()] if was else []
        for key in draw(st.lists(st.sampled_from(COLUMNS), unique=True, max_size=4)):
            if draw(st.integers(0, 3)) == 0:
                column: dict[str, Any] = {
                    "type": "reference",
                    "to": draw(st.sampled_from(names)),
                    "on_delete": draw(st.sampled_from(("cascade", "restrict"))),
                    "related_name": f"r_{name}_{key}",
                }
            else:
                column = dict(draw(st.sampled_from(_PLAIN + _UNINDEXED)))
            column["null"] = draw(st.booleans())
            if free_columns and (column_source := draw(st.sampled_from([None, *free_columns]))):
                free_columns.remove(column_source)
                column["renamed_from"] = column_source
            table["columns"][key] = column
        able = [key for key, c in table["columns"].items() if c["type"] not in ("json", "text[]")]
        if able:
            keys = st.lists(st.sampled_from(able), min_size=1, max_size=2, unique=True)
            table["unique"] = draw(st.lists(keys, max_size=2, unique_by=tuple))
            signs = draw(st.lists(st.tuples(keys, st.sampled_from(("", "-"))), max_size=2, unique_by=str))
            table["indexes"] = [[sign + key for key in chosen] for chosen, sign in signs]
        tables[name] = table
        table["checks"] = {}
        for key in draw(
            st.lists(st.sampled_from(sorted(table["columns"])), max_size=2, unique=True)
            if table["columns"]
            else st.just([])
        ):
            stored = f"{key}_id" if table["columns"][key]["type"] in ("reference", "user") else key
            check = {"$or": [{stored: {"$null": True}}, {stored: {"$null": False}, "id": {"$ne": "100%"}}]}
            table["checks"][draw(st.sampled_from(("c", "d")))] = check
    return {"tables": tables}


def _parsed(document: dict[str, Any]) -> Schema:
    try:
        return parse(document)
    except InvalidDocument as error:
        # `list` beside `list_id` and the like: not the subject here.
        assume(all(e.code in ("taken", "required") for e in error.errors))
        assume(False)
        raise


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_changed_schema_equals_a_fresh_one_and_goes_back(data: st.DataObject) -> None:
    first = _parsed(data.draw(documents()))
    second = _parsed(data.draw(documents(first)))
    with transaction.atomic(using=catalog.REGION):
        catalog.make("t_fresh_first", first)
        catalog.make("t_fresh_second", parse(second.document))
        catalog.make("t_changed", first)
        fresh_first, fresh_second = catalog.catalog("t_fresh_first"), catalog.catalog("t_fresh_second")
        assert catalog.catalog("t_changed") == fresh_first
        beforehand = data.draw(st.booleans(), "the indexes of new uniques are made beforehand")
        if _changes(first, second, beforehand):
            assert catalog.catalog("t_changed") == fresh_second
            if _changes(second, parse(first.document), beforehand):
                assert catalog.catalog("t_changed") == fresh_first
        transaction.set_rollback(True, using=catalog.REGION)


def _changes(old: Schema, new: Schema, beforehand: bool) -> bool:
    """Change `t_changed`; False where the document asks for what cannot be: a type that cannot become another, or a
    rename from a table that lives on under its own name."""
    try:
        catalog.change("t_changed", old, new, beforehand=beforehand)
    except InvalidDocument as error:
        refusals = {e.field.rpartition(".")[2] for e in error.errors}
    else:
        return True
    assert refusals <= {"type", "renamed_from"}
    event("refused")
    return False
