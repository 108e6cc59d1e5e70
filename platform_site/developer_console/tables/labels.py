"""What cells show in place of the id of a referenced row: the first text of it that the member may read."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from platform_site.developer_console.api_calls import Refused
from platform_site.developer_console.frame import Console
from platform_site.developer_console.tables.columns import Column, columns_of
from platform_site.http import exact_json

LONGEST: Final = 100
_AT_ONCE: Final = 100


def text_keys(table: Mapping[str, Any]) -> list[str]:
    """The columns whose text may stand for a row, in the order of the document."""
    return [column.key for column in columns_of(table) if column.type in ("text", "enum") and column.key != "id"]


def labels_of(
    console: Console, tables: Mapping[str, Any], columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]
) -> dict[tuple[str, str], str]:
    """By table and id, what the rows of a page refer to: one call of the API for each referenced table. Raises
    Refused."""
    wanted: dict[str, set[str]] = {}
    for column in columns:
        if column.target is not None:
            wanted.setdefault(column.target, set()).update(row[column.key] for row in rows if row.get(column.key))
    found: dict[tuple[str, str], str] = {}
    for target, ids in wanted.items():
        keys, ordered = text_keys(tables[target]), sorted(ids)
        for at in range(0, len(ordered), _AT_ONCE):
            found |= {
                (target, row_id): text for row_id, text in _texts(console, target, keys, ordered[at : at + _AT_ONCE])
            }
    return found


def _texts(console: Console, table: str, keys: Sequence[str], ids: Sequence[str]) -> list[tuple[str, str]]:
    """Ids and texts of those rows that the member may read."""
    query = {"where": exact_json.dumps({"id": {"$in": ids}}), "limit": str(_AT_ONCE)}
    for key in keys:
        try:
            rows = console.api("GET", f"/v1/rows/{table}", query=query | {"columns": key}).data["data"]
        except Refused as refusal:
            if refusal.status == 422:  # a hidden column
                continue
            if refusal.status in (403, 404):
                return []
            raise
        return [(row["id"], row[key][:LONGEST]) for row in rows if row[key]]
    return []
