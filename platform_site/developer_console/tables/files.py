"""Downloads and uploads rows as CSV or NDJSON, by the rules of the API, in parts."""

import codecs
import time
from collections.abc import Collection, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from django.db import transaction
from django.http import HttpResponse, JsonResponse
from django.views.decorators.http import require_POST, require_safe

from platform_site.developer_console.frame import Console, page
from platform_site.developer_console.tables.columns import Column, csv_cell, from_csv
from platform_site.developer_console.tables.pages import chosen_table, grid
from platform_site.http import exact_json
from platform_site.http.errors import ApiError, ValidationFailed
from rows.transfer import csv_reader
from rows.transfer.csv_reader import EndlessRecord, InvalidRecord

MAX_ROWS: Final = 10_000
MAX_BYTES: Final = 16 * 2**20
MAX_SECONDS: Final = 30
"""Of a request, which holds a thread even if the browser is gone."""
_OF_A_PART: Final = 1_000
_BYTES_OF_A_PART: Final = 4 * 2**20
"""A part ends once it is larger, by at most a page."""
_AT_ONCE: Final = 100
_SET_BY_PLATFORM: Final = frozenset({"created_at", "updated_at"})
_TYPES: Final = {"csv": "text/csv", "ndjson": "application/x-ndjson"}


@require_safe
@page("tables")
def export(console: Console, table: str, format_: str) -> HttpResponse:
    """The filtered rows; with `part`, some of them and the next cursor."""
    _, columns = chosen_table(console, table)
    parameters, query = console.request.GET, console.filters("where", "order")
    is_part, cursor = "part" in parameters, parameters.get("cursor", "")
    pages: list[bytes] = []
    rows = size = 0
    deadline = time.monotonic() + MAX_SECONDS
    while True:
        one_page = query | {"limit": str(_AT_ONCE)} | ({"cursor": cursor} if cursor else {})
        answer = console.api("GET", f"/v1/rows/{table}", query=one_page)
        found, cursor = answer["data"], answer["next_cursor"]
        with_header = not pages and "cursor" not in parameters
        if format_ == "csv":
            text = _csv(columns, found, with_header=with_header)
        else:
            text = "".join(f"{exact_json.dumps(row)}\n" for row in found)
        pages.append(text.encode())
        rows += len(found)
        size += len(pages[-1])
        is_late = time.monotonic() >= deadline
        if not cursor or (is_part and (rows >= _OF_A_PART or size >= _BYTES_OF_A_PART or is_late)):
            break
        if rows >= MAX_ROWS or size >= MAX_BYTES or is_late:
            message = (
                f"More than {MAX_ROWS:,} rows, {MAX_BYTES >> 20} MB or {MAX_SECONDS} s. Narrow the filter, or list the "
                "pages with the API."
            )
            raise ValidationFailed(message)
    headers = {"Content-Disposition": f'attachment; filename="{table}.{format_}"', "X-Content-Type-Options": "nosniff"}
    if is_part:
        headers |= {"X-Rows": str(rows), "X-Next-Cursor": cursor or ""}
    return HttpResponse(b"".join(pages), content_type=f"{_TYPES[format_]}; charset=utf-8", headers=headers)


def _csv(columns: list[Column], rows: list[dict[str, Any]], *, with_header: bool) -> str:
    keys = [column.key for column in columns if not rows or column.key in rows[0]]
    lines = [",".join(keys)] if with_header else []
    lines += [",".join(csv_cell(row.get(key)) for key in keys) for row in rows]
    return "".join(f"{line}\r\n" for line in lines)


@dataclass
class Report:
    inserted: int = 0
    """Of a check: that can be inserted."""
    rejected: list[tuple[int, str]] = field(default_factory=list)
    """Line numbers and reasons."""
    stopped: str | None = None
    skipped: list[str] = field(default_factory=list)


@require_POST
@page("tables")
def upload(console: Console, table: str) -> HttpResponse:
    """Insert the rows of a file. Refused lines are reported. Scripts get JSON, with line numbers of the part; they ask
    for a check first, and then for the valid lines. Without scripts, a file with a refused line is not imported."""
    found, columns = chosen_table(console, table)
    is_by_script = console.request.headers.get("Accept") == "application/json"
    is_check = "check" in console.request.POST or not is_by_script
    report = _import(console, table, columns, is_check=is_check)
    if is_by_script:
        return JsonResponse(asdict(report))
    if report.rejected or report.stopped:
        report.inserted = 0
    else:
        report = _import(console, table, columns, is_check=False)
    context = grid(console, table, found, columns) | {"report": report}
    return console.render("console/table.html", context)


Rows = Iterator[tuple[int, dict[str, Any]]]


def _import(console: Console, table: str, columns: list[Column], *, is_check: bool) -> Report:
    report = Report()
    file = console.request.FILES.get("file")
    if file:
        file.seek(0)
    lines = file.read().removeprefix(codecs.BOM_UTF8).splitlines(keepends=True) if file else []
    is_ndjson = file is not None and (file.name or "").lower().endswith((".ndjson", ".jsonl"))
    try:
        rows = list(_of_ndjson(lines, report) if is_ndjson else _of_csv(lines, columns, report))
    except EndlessRecord as error:
        report.stopped = str(error)
        return report
    deadline = time.monotonic() + MAX_SECONDS
    # A check cannot see the rows of other transactions, to which these columns may refer.
    unchecked = {column.key for column in columns if is_check and column.target == table}
    for at in range(0, len(rows), _AT_ONCE):
        # Short transactions: others wait for the values that one of them has taken.
        with transaction.atomic(using=console.ref.cluster) if is_check else nullcontext():
            goes_on = _insert(console, table, rows[at : at + _AT_ONCE], report, deadline, unchecked)
            if is_check:
                transaction.set_rollback(True, using=console.ref.cluster)
        if not goes_on:
            break
    report.rejected.sort()
    return report


def _of_csv(lines: list[bytes], columns: list[Column], report: Report) -> Rows:
    records = csv_reader.records(lines)
    _, first = next(records, (1, b""))
    try:
        header = csv_reader.cells(first) if first else []
    except InvalidRecord:
        header = []
    known = {column.key: column for column in columns}
    by_name = known | {column.key.removesuffix("_id"): column for column in columns if column.is_link}
    names = [by_name[name].key if name in by_name else name for name in header]
    report.skipped = [name for name in names if name and name in _SET_BY_PLATFORM]
    unknown = [str(name) for name in names if name not in known]
    if not names or unknown:
        names_text = f"Unknown: {', '.join(unknown) or 'all'}. The table has: {', '.join(known)}."
        report.stopped = f"The first line must name columns of the table. {names_text}"
        return
    if len({*names}) != len(names):
        report.stopped = "The first line names a column twice."
        return
    for number, record in records:
        try:
            texts = csv_reader.cells(record)
        except InvalidRecord as error:
            report.rejected.append((number, str(error)))
            continue
        if len(texts) != len(names):
            report.rejected.append((number, f"{len(texts)} cells instead of {len(names)}"))
            continue
        cells = {str(key): text for key, text in zip(names, texts, strict=True) if key not in report.skipped}
        # An empty cell takes the column's default.
        yield number, {key: from_csv(known[key], text) for key, text in cells.items() if text is not None}


def _of_ndjson(lines: list[bytes], report: Report) -> Rows:
    skipped: set[str] = set()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = exact_json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            report.rejected.append((number, "is not a JSON object"))
            continue
        skipped |= row.keys() & _SET_BY_PLATFORM
        yield number, {key: value for key, value in row.items() if key not in _SET_BY_PLATFORM}
    report.skipped = sorted(skipped)


def _insert(
    console: Console,
    table: str,
    rows: list[tuple[int, dict[str, Any]]],
    report: Report,
    deadline: float,
    unchecked: Collection[str],
) -> bool:
    """Insert rows in one call or, if that is refused, one by one. False: stop."""
    if time.monotonic() >= deadline:
        report.stopped = f"Stopped at line {rows[0][0]}: the import takes longer than {MAX_SECONDS} s."
        return False
    try:
        console.api("POST", f"/v1/rows/{table}", rows[0][1] if len(rows) == 1 else [row for _, row in rows])
    except ApiError as refusal:
        if refusal.status not in (409, 422):
            report.stopped = f"Stopped at line {rows[0][0]}: {refusal.text}"
            return False
        if len(rows) > 1:
            return all(_insert(console, table, [each], report, deadline, unchecked) for each in rows)
        if refusal.fields and all(each.code == "no_such_row" and each.field in unchecked for each in refusal.fields):
            report.inserted += 1
            return True
        reasons = [f"{each.field}: {each.message}" for each in refusal.fields]
        report.rejected.append((rows[0][0], " ".join(reasons) or refusal.text))
        return True
    report.inserted += len(rows)
    return True
