"""CSV files of a table: download the rows of a filter, upload rows. Both go through the API and obey its rules."""

from dataclasses import dataclass, field
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_POST, require_safe

from platform_site.developer_console.api_calls import Refused
from platform_site.developer_console.frame import Console, page
from platform_site.developer_console.table_columns import Column, csv_cell, from_csv
from platform_site.developer_console.tables import chosen_table, grid
from rows.transfer import csv_reader
from rows.transfer.csv_reader import InvalidRecord

MOST_ROWS: Final = 10_000
_AT_ONCE: Final = 100
_SET_BY_PLATFORM: Final = frozenset({"created_at", "updated_at"})


@require_safe
@page("tables")
def export(console: Console, table: str) -> HttpResponse:
    """A CSV file of the rows that the filter of the grid finds."""
    _, columns = chosen_table(console, table)
    query = {key: console.request.GET[key] for key in ("where", "order") if console.request.GET.get(key)}
    rows: list[dict[str, Any]] = []
    cursor = ""
    while True:
        asked = query | {"limit": str(_AT_ONCE)} | ({"cursor": cursor} if cursor else {})
        answer = console.api("GET", f"/v1/rows/{table}", query=asked).data
        rows += answer["data"]
        cursor = answer["next_cursor"]
        if not cursor:
            break
        if len(rows) >= MOST_ROWS:
            message = f"More than {MOST_ROWS:,} rows. Narrow the filter, or list the pages with the API."
            raise Refused(422, {"code": "validation_failed", "message": message})
    keys = [column.key for column in columns if not rows or column.key in rows[0]]
    lines = [",".join(keys), *(",".join(csv_cell(row.get(key)) for key in keys) for row in rows)]
    name = f"{table}.csv"
    return HttpResponse(
        "\r\n".join(lines) + "\r\n",
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"', "X-Content-Type-Options": "nosniff"},
    )


@dataclass
class Report:
    """What became of an uploaded file."""

    inserted: int = 0
    rejected: list[tuple[int, str]] = field(default_factory=list)
    """Line numbers and reasons."""
    stopped: str | None = None
    """Why the rest of the file was not tried."""
    skipped: list[str] = field(default_factory=list)
    """Columns of the file that the platform sets itself."""


@require_POST
@page("tables")
def upload(console: Console, table: str) -> HttpResponse:
    """Insert the rows of a CSV file. Lines that the API refuses are reported, the others stay."""
    found, columns = chosen_table(console, table)
    report = _import(console, table, columns)
    context, _ = grid(console, table, found, columns)
    return console.render("console/table.html", context | {"report": report})


def _import(console: Console, table: str, columns: list[Column]) -> Report:
    report = Report()
    rows: list[tuple[int, dict[str, Any]]] = []
    try:
        records = csv_reader.read(_lines(console.request))
        _, header = next(records, (1, []))
        known = {column.key: column for column in columns}
        report.skipped = (
            [name for name in header if name and name in _SET_BY_PLATFORM] if isinstance(header, list) else []
        )
        unknown = [str(name) for name in header if name not in known] if isinstance(header, list) else ["?"]
        if not header or unknown or isinstance(header, InvalidRecord):
            report.stopped = f"The first line must name columns of the table. Unknown: {', '.join(unknown) or 'all'}."
            return report
        for number, record in records:
            if isinstance(record, InvalidRecord):
                report.rejected.append((number, record.message))
            elif len(record) != len(header):
                report.rejected.append((number, f"{len(record)} cells instead of {len(header)}"))
            else:
                cells = {str(key): text for key, text in zip(header, record, strict=True) if key not in report.skipped}
                rows.append((number, {key: from_csv(known[key], text) for key, text in cells.items()}))
    except InvalidRecord as error:
        report.stopped = f"Line {error.number}: {error.message}"
        return report
    for at in range(0, len(rows), _AT_ONCE):
        if not _insert(console, table, rows[at : at + _AT_ONCE], report):
            break
    report.rejected.sort()
    return report


def _lines(request: HttpRequest) -> list[bytes]:
    uploaded = request.FILES.get("file")
    return uploaded.read().splitlines(keepends=True) if uploaded else []


def _insert(console: Console, table: str, rows: list[tuple[int, dict[str, Any]]], report: Report) -> bool:
    """Insert rows in one call or, if the API refuses them, each by itself. False if there is no point in going on."""
    path = f"/v1/rows/{table}"
    try:
        console.api("POST", path, [_without_nulls(row) for _, row in rows])
        report.inserted += len(rows)
        return True
    except Refused as refusal:
        if refusal.status not in (409, 422):
            report.stopped = f"Stopped at line {rows[0][0]}: {refusal.message}"
            return False
    for number, row in rows:
        try:
            console.api("POST", path, _without_nulls(row))
            report.inserted += 1
        except Refused as refusal:
            if refusal.status not in (409, 422):
                report.stopped = f"Stopped at line {number}: {refusal.message}"
                return False
            reasons = [f"{each['field']}: {each['message']}" for each in refusal.fields]
            report.rejected.append((number, " ".join(reasons) or refusal.message))
    return True


def _without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    """An empty cell takes the column's default."""
    return {key: value for key, value in row.items() if value is not None}
