"""The one renderer of cells as JSON: an SQL fragment per column type. Every response, relation, event and `ETag` is
`row_to_json` over these, so bytes are the same everywhere. Exact and stable forms of PostgreSQL are kept."""

from typing import Final

from rows.schema.model import Column, ColumnType

_FRAGMENTS: Final[dict[ColumnType, tuple[str, str]]] = {
    # PostgreSQL trims the fraction and follows the session's zone; these are always UTC, Z and six digits.
    "timestamp": ("to_char(", " AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')")
}


def fragment(column: Column) -> tuple[str, str]:
    if column.type == "decimal":
        # A JSON number would lose digits in every client that reads it as a float. Always the column's scale: "1.50".
        return "round(", f", {column.scale or 0:d})::text"
    return _FRAGMENTS.get(column.type, ("", ""))
