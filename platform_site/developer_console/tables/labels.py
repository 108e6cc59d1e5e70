"""Labels for ids in cells: the referenced row's first readable text, or a user's email."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from platform_site.developer_console.frame import Console
from platform_site.developer_console.tables.columns import Column, columns_of
from platform_site.http import exact_json
from platform_site.http.errors import Forbidden, NotFound, ProjectSuspended, ValidationFailed
from rows.query import schema_cache

MAX_LABEL_LENGTH: Final = 100
_AT_ONCE: Final = 100

Labels = Mapping[tuple[str | None, str], str]
"""By table (None for users) and id."""


def text_key(console: Console, name: str, table: Mapping[str, Any]) -> str | None:
    rules = schema_cache.compiled_schema(console.ref).rules
    readable = rules.resolver(rules.role_key(console.principal)).columns(name)
    texts = (column.key for column in columns_of(table) if column.type in ("text", "enum") and column.key != "id")
    return next((key for key in texts if key in readable), None)


def label_of_user(user: Mapping[str, Any]) -> str:
    return str(user["email"] or user["name"] or "")[:MAX_LABEL_LENGTH]


def labels_of(
    console: Console, tables: Mapping[str, Any], columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]
) -> Labels:
    wanted: dict[str | None, set[str]] = {}
    for column in columns:
        if column.is_link:
            wanted.setdefault(column.target, set()).update(row[column.key] for row in rows if row.get(column.key))
    found: dict[tuple[str | None, str], str] = {}
    for target, ids in wanted.items():
        ordered = sorted(ids)
        for at in range(0, len(ordered), _AT_ONCE):
            part = ordered[at : at + _AT_ONCE]
            texts = _emails(console, part) if target is None else _texts(console, target, tables[target], part)
            found |= {(target, each): text for each, text in texts if text}
    return found


def _emails(console: Console, ids: Sequence[str]) -> list[tuple[str, str]]:
    query = {"ids": ",".join(ids), "limit": str(_AT_ONCE)}
    return [(user["id"], label_of_user(user)) for user in _listed(console, "/v1/users", query)]


def _texts(console: Console, name: str, table: Mapping[str, Any], ids: Sequence[str]) -> list[tuple[str, str]]:
    key = text_key(console, name, table)
    if key is None:
        return []
    query = {"where": exact_json.dumps({"id": {"$in": ids}}), "limit": str(_AT_ONCE), "columns": key}
    return [(row["id"], (row[key] or "")[:MAX_LABEL_LENGTH]) for row in _listed(console, f"/v1/rows/{name}", query)]


def _listed(console: Console, path: str, query: Mapping[str, str]) -> list[dict[str, Any]]:
    try:
        return console.listed(path, query)
    except (Forbidden, ProjectSuspended, NotFound, ValidationFailed):
        return []
