"""Code that reads and writes the rows of one table, with its own columns: for Home and the API page of a table."""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, NamedTuple

from django.conf import settings
from django.template.loader import render_to_string

from platform_site.developer_console.frame import Console
from platform_site.developer_console.tables.columns import Column, columns_of

LANGUAGES: Final = {"curl": "curl", "javascript": "JavaScript", "python": "Python"}
PLACEHOLDERS: Final = {"curl": "YOUR_SERVER_KEY", "javascript": "YOUR_BROWSER_KEY", "python": "YOUR_SERVER_KEY"}
_TITLES: Final = {
    "setup": "Client",
    "list": "List with a filter",
    "get": "Get one row",
    "insert": "Insert",
    "update": "Update",
    "delete": "Delete",
    "changes": "Live changes",
    "types": "Types of the tables, in TypeScript",
}
_SAMPLES: Final[Mapping[str, Any]] = {
    "integer": 1,
    "float": 1.5,
    "boolean": True,
    "date": "2026-01-31",
    "timestamp": "2026-01-31T12:00:00Z",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "json": {},
    "text[]": ["example"],
}
_TEXTS: Final[Mapping[str | None, tuple[tuple[str, str, str], ...]]] = {
    None: (("Example", ".", ""),),
    "email": (("ada", "a", "@example.com"), ("a", "a", "@b.co")),
    "url": (("https://example.com/", "a", ""), ("http://a", "a", "")),
    "slug": (("example", "e", ""),),
}
"""By format: a beginning, what makes it longer, and an end. The first that is short enough counts."""
_WITHOUT_FILTER: Final = frozenset({"json", "text[]", "reference", "user"})
_MAX_INSERTED: Final = 6
"""Columns of an insert, unless more are required."""
_LONGEST_TEXT: Final = 200
_LARGEST_IN_JAVASCRIPT: Final = 2**53 - 1
_LONGEST_LINE: Final = 60
_PART: Final = re.compile(r"^=== (\w+)\n", re.MULTILINE)


class Code(NamedTuple):
    id: str
    title: str
    text: str


@dataclass(frozen=True)
class Sample:
    table: str
    where: dict[str, Any] = field(default_factory=dict)
    inserted: dict[str, Any] = field(default_factory=dict)
    updated: dict[str, Any] = field(default_factory=dict)


def sample_of(name: str, table: Mapping[str, Any]) -> Sample:
    """Required columns are inserted, and plain others. A plain one is updated, one of few values filtered by."""
    columns = [column for column in columns_of(table) if not column.is_read_only]
    found = {
        column.key: _value(column, definition)
        for column, definition in zip(columns, table["columns"].values(), strict=True)
    }
    values = {key: key.upper() if value is None else value for key, value in found.items()}
    plain = [column for column in columns if column.type not in _WITHOUT_FILTER and found[column.key] is not None]
    required = [column.key for column in columns if column.is_required]
    optional = [column.key for column in plain if not column.is_required]
    chosen = {*required, *optional[: max(0, _MAX_INSERTED - len(required))]}
    few = (column for column in plain if column.type in ("boolean", "enum"))
    filtered = next(few, next(iter(plain), None))
    updated = plain[0].key if plain else next(iter(values), None)
    return Sample(
        name,
        {filtered.key: values[filtered.key]} if filtered else {"created_at": {"$gte": _SAMPLES["timestamp"]}},
        {key: value for key, value in values.items() if key in chosen},
        {updated: values[updated]} if updated else {},
    )


def _value(column: Column, definition: Mapping[str, Any]) -> Any:
    """One that the column accepts. None: a placeholder is better, as for references, users and very long texts."""
    if column.is_link:
        return None
    if column.values:
        return column.values[0]
    if column.type == "text":
        return _text(definition)
    if column.type in ("integer", "float"):
        value = max(min(_SAMPLES[column.type], definition.get("max", inf)), definition.get("min", -inf))
        return value if column.type == "float" or abs(value) <= _LARGEST_IN_JAVASCRIPT else None
    bound = definition.get("min", definition.get("max"))
    if bound is not None:
        return bound
    if column.type == "decimal":
        digit = 1 if definition["precision"] > definition["scale"] else 0
        return f"{digit:.{definition['scale']}f}"
    return _SAMPLES[column.type]


def _text(definition: Mapping[str, Any]) -> str | None:
    least, most = definition.get("min_length", 0), definition.get("max_length", inf)
    if least > _LONGEST_TEXT:
        return None
    format_ = definition.get("format")
    for start, filler, end in _TEXTS[format_]:
        text = start.ljust(least - len(end), filler) + end
        if len(text) <= most:
            return text
    return text[: int(most)] if format_ in (None, "slug") else None


def codes(language: str, console: Console, sample: Sample, key: str = "") -> list[Code]:
    """One for each operation, after `setup`, if any: the parts of `templates/console/code`."""
    notation = "json" if language == "curl" else language
    inserted, updated = _block(sample.inserted, notation), _block(sample.updated, notation)
    where = _inline(sample.where, "javascript" if language == "javascript" else "json")
    if language == "curl":
        where, inserted, updated = (shlex.quote(text) for text in (f"where={where}", inserted, updated))
    elif language == "python":
        where = repr(where)
    context = {
        "url": settings.BASE_URL,
        "key": key or PLACEHOLDERS[language],
        "environment": console.environment["id"],
        "table": sample.table,
        "where": where if sample.where else "",
        "inserted": inserted,
        "updated": updated,
    }
    _, *parts = _PART.split(render_to_string(f"console/code/{language}.txt", context))
    return [Code(id_, _TITLES[id_], text.strip()) for id_, text in zip(parts[::2], parts[1::2], strict=True)]


def first_lines(console: Console, table: str, new_keys: Mapping[str, str]) -> list[Code]:
    """For each language, the code that lists the table's first rows. `new_keys`: by placeholder."""
    found = []
    for language, title in LANGUAGES.items():
        key = new_keys.get(PLACEHOLDERS[language], "")
        parts = {code.id: code.text for code in codes(language, console, Sample(table), key)}
        found.append(Code(language, title, "\n\n".join(parts[id_] for id_ in ("setup", "list") if id_ in parts)))
    return found


def _block(value: dict[str, Any], language: str) -> str:
    """On one line, or a line for each key if that is too long."""
    inline = _inline(value, language)
    if len(inline) <= _LONGEST_LINE:
        return inline
    indent = " " * (4 if language == "python" else 2)
    lines = ",\n".join(f"{indent}{_pair(key, each, language)}" for key, each in value.items())
    return f"{{\n{lines}{'' if language == 'json' else ','}\n}}"


def _pair(key: str, value: Any, language: str) -> str:
    return f"{key if language == 'javascript' else _inline(key, language)}: {_inline(value, language)}"


def _inline(value: Any, language: str) -> str:
    """Keys of objects must be identifiers, as names of columns and operators are."""
    if isinstance(value, dict) and value:
        space = " " if language == "javascript" else ""
        pairs = ", ".join(_pair(key, each, language) for key, each in value.items())
        return f"{{{space}{pairs}{space}}}"
    if language == "python" and (isinstance(value, bool) or (isinstance(value, str) and not value.isprintable())):
        return repr(value)
    # What is not printable could change the direction of the text around it.
    return json.dumps(value, ensure_ascii=isinstance(value, str) and not value.isprintable())
