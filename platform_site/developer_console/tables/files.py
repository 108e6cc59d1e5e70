"""Downloads and uploads rows as CSV or NDJSON, by the rules of the API, in parts."""

import time
from collections.abc import Collection, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from io import BytesIO
from itertools import islice
from typing import Any, Final

from django.db import transaction
from django.http import HttpResponse, JsonResponse
from django.views.decorators.http import require_POST, require_safe

from platform_site.developer_console.frame import Console, page
from platform_site.developer_console.tables.columns import Column, csv_cell
from platform_site.developer_console.tables.pages import chosen_table, grid
from platform_site.http import exact_json
from platform_site.http.errors import ApiError, Conflict, ValidationFailed
from rows.query import schema_cache
from rows.transfer.file_formats import Format, InvalidFile, RecordFile, format_of

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
    shown = [column for column in columns if not rows or column.key in rows[0]]
    lines = [",".join(column.key for column in shown)] if with_header else []
    lines += [",".join(csv_cell(row.get(column.key), column.type) for column in shown) for row in rows]
    return "".join(f"{line}\r\n" for line in lines)


@dataclass
class Report:
    inserted: int = 0
    """Of a check: that can be inserted."""
    rejected: list[tuple[int, str]] = field(default_factory=list)
    """Line numbers and reasons."""
    stopped: str | None = None
    skipped: list[str] = field(default_factory=list)
    retry_after: int = 0
    """Seconds until the rest can be sent; set if too many requests stopped it."""
    resume_at: int = 0
    """Line, from `_import` on the byte of the file, where the rest begins."""


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
    try:
        context = grid(console, table, found, columns) | {"report": report}
    except ApiError as refusal:
        if not report.inserted:
            raise
        # Without this, or with the advice to reload the page, rows would be imported twice.
        rest = f"{report.stopped} Send only the lines from there on." if report.stopped else "Do not send it again."
        raise Conflict(f"{report.inserted} rows of the file are imported. {rest} {refusal.text}") from refusal
    return console.render("console/table.html", context)


def _import(console: Console, table: str, columns: list[Column], *, is_check: bool) -> Report:
    report, file = Report(), console.request.FILES.get("file")
    if file is None:
        report.stopped = "Choose a file."
        return report
    file.seek(0)
    content = file.read()
    try:
        rows = list(_rows(console, table, content, format_of(file.name or "") or "csv", report))
    except InvalidFile as error:
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
    if report.retry_after:
        report.rejected = [each for each in report.rejected if each[0] < report.resume_at]
        report.resume_at = sum(len(line) for line in islice(BytesIO(content), report.resume_at - 1))
    return report


def _rows(
    console: Console, name: str, content: bytes, format_: Format, report: Report
) -> Iterator[tuple[int, dict[str, Any]]]:
    """By line number. Raises InvalidFile."""
    table = schema_cache.current(console.ref).schema.tables.get(name)
    if table is None:
        raise InvalidFile("The table was deleted meanwhile.")
    decimals = {column.name for column in table.columns.values() if column.type == "decimal"}
    for number, record in RecordFile(BytesIO(content), format_).records(table):
        if isinstance(record, str):
            report.rejected.append((number, record))
            continue
        report.skipped += sorted(_SET_BY_PLATFORM & (record.keys() - {*report.skipped}))
        yield (
            number,
            {
                # A text keeps the digits that JSON numbers lose.
                key: value.text if key in decimals and isinstance(value, exact_json.LongFloat) else value
                for key, value in record.items()
                if key not in _SET_BY_PLATFORM
            },
        )


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
        sent = rows[0][1] if len(rows) == 1 else [row for _, row in rows]
        console.api("POST", f"/v1/rows/{table}", exact_json.dumps(sent).encode())
    except ApiError as refusal:
        if refusal.status not in (409, 422):
            if refusal.status == 429:
                report.retry_after, report.resume_at = int(refusal.headers.get("Retry-After", 10)), rows[0][0]
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
