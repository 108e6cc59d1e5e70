from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from psycopg import sql

from platform_site.http import cursors
from platform_site.identity.callers import EnvironmentRef
from platform_site.identity.plans import plan_limits
from platform_site.postgres import statements
from platform_site.postgres.transaction_settings import by_index
from platform_site.request_log.models import ERROR, LogEntry

MAX_SCANNED: Final = 50_000
"""Entries that one page may read; it may return fewer, with a cursor."""

_KIND: Final = "logs"
_COLUMNS: Final = (
    "at", "id", "request_id", "method", "route", "table_name", "function_name", "status", "code", "field_codes",
    "duration_ms", "caller_kind", "caller_id",
)  # fmt: skip
# Each has an index that the scan runs along; the others are tested entry by entry.
_INDEXED: Final = {
    "request_id": "request_id = %(request_id)s",
    "errors": f"status >= {ERROR}",
    "until": "at < %(until)s",
    "after_at": "(at, id) < (%(after_at)s, %(after_id)s)",
}
_TESTED: Final = {
    "status": "status = %(status)s",
    "status_class": "status / 100 = %(status_class)s",
    "method": "method = %(method)s",
    "route": "route = %(route)s",
    "table": "table_name = %(table)s",
    "caller": "caller_id = %(caller)s",
    "function": "function_name = %(function)s",
}
_OMITTED: Final = """
SELECT coalesce(sum(requests), 0)::bigint FROM request_log_omitted
 WHERE environment_id = %(environment_id)s AND minute >= date_trunc('minute', %(since)s::timestamptz)
   AND minute < coalesce(%(until)s::timestamptz, 'infinity')
"""


def page(environment: EnvironmentRef, wanted: Mapping[str, Any], limit: int, cursor: str | None) -> dict[str, Any]:
    """The entries (`data`), `next_cursor`, and how many requests of the period have no entry (`omitted`). `wanted` has
    conditions of _TESTED, `request_id`, `since` (inclusive) and `until` (exclusive). Up to five indexed statements.
    Raises ValidationFailed on `cursor`."""
    bound = [environment.environment_id, *(f"{name}={_text(value)}" for name, value in sorted(wanted.items()))]
    oldest = datetime.now(UTC) - timedelta(days=plan_limits(environment.plan).request_log_days)
    values = {
        "until": None,
        **wanted,
        "environment_id": environment.environment_id,
        "since": max(wanted.get("since", oldest), oldest),
        "limit": limit + 1,
        "scanned": MAX_SCANNED,
    }
    if cursor is not None:
        values["after_at"], values["after_id"] = cursors.decode(_KIND, bound, cursor)
    if wanted.get("status", 0) >= ERROR or wanted.get("status_class", 0) * 100 >= ERROR:
        values["errors"] = True
    scan, tests = _scan(values), [test for name, test in _TESTED.items() if name in wanted]
    using = environment.cluster
    with by_index(using):
        entries = statements.dicts(using, _statement(scan, tests).as_string(None), values)
        last = entries[limit - 1] if len(entries) > limit else None
        if last is None and tests:  # others may match behind the last one that was scanned
            last_scanned = sql.SQL("{} OFFSET %(scanned)s - 1 LIMIT 1").format(scan)
            last = next(iter(statements.dicts(using, last_scanned.as_string(None), values)), None)
        omitted: int = statements.value(using, _OMITTED, values)
    next_cursor = cursors.encode(_KIND, bound, [last["at"], last["id"]]) if last else None
    return {"data": entries[:limit], "next_cursor": next_cursor, "omitted": omitted}


def _scan(values: Mapping[str, Any]) -> sql.Composed:
    conditions = ["environment_id = %(environment_id)s", "at >= %(since)s"]
    conditions += [text for name, text in _INDEXED.items() if values.get(name) is not None]
    return sql.SQL("SELECT {} FROM request_log_entry WHERE {} ORDER BY at DESC, id DESC").format(
        sql.SQL(", ").join(map(sql.Identifier, _COLUMNS)), sql.SQL(" AND ").join(map(sql.SQL, conditions))
    )


def _statement(scan: sql.Composed, tests: list[str]) -> sql.Composed:
    if not tests:
        return sql.SQL("{} LIMIT %(limit)s").format(scan)
    return sql.SQL(
        "SELECT * FROM ({} LIMIT %(scanned)s) scanned WHERE {} ORDER BY at DESC, id DESC LIMIT %(limit)s"
    ).format(scan, sql.SQL(" AND ").join(map(sql.SQL, tests)))


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def of_requests(
    using: str, request_ids: list[str], most: int, environment_id: str | None = None
) -> list[dict[str, Any]]:
    entries = LogEntry.objects.using(using).filter(request_id__in=request_ids)
    if environment_id is not None:
        entries = entries.filter(environment_id=environment_id)
    return list(entries.order_by("-at", "-id").values("environment_id", *_COLUMNS)[:most])
