"""How a cell becomes JSON: one SQL fragment per column type, and the only renderer there is. Every row that leaves the
service, in an answer, a nested relation, an event or an `ETag`, is `row_to_json` over these fragments, so its bytes are
the same wherever it appears. PostgreSQL's own spelling is kept where it is exact and stable: integers with all digits,
floats in their shortest exact form, uuids in lower case, dates, arrays. Where it is not, the fragment decides."""

from typing import Final

from rows.schema.model import Column, ColumnType

_FRAGMENTS: Final[dict[ColumnType, tuple[str, str]]] = {
    # PostgreSQL trims the fraction and follows the session's zone; these are always UTC, Z and six digits.
    "timestamp": ("to_char(", " AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"),
}


def fragment(column: Column) -> tuple[str, str]:
    """The SQL before and after the reference to a cell of `column`, so that `row_to_json` renders it in the API's
    format."""
    if column.type == "decimal":
        # A JSON number would lose digits in every client that reads it as a float. Always the column's scale: "1.50".
        return "round(", f", {column.scale or 0:d})::text"
    return _FRAGMENTS.get(column.type, ("", ""))
