"""For the grid's scripts: a stream of changed rows, and rows or users to choose from."""

from typing import Any, Final

from django.http import HttpResponse, JsonResponse
from django.views.decorators.http import require_POST, require_safe

from platform_site.developer_console.frame import Console, page
from platform_site.developer_console.tables.columns import Column
from platform_site.developer_console.tables.labels import MAX_LABEL_LENGTH, label_of_user, text_key
from platform_site.developer_console.tables.pages import chosen_table
from platform_site.http import exact_json
from platform_site.http.errors import Forbidden, NotFound, ProjectSuspended, ValidationFailed
from platform_site.http.views import encode
from platform_site.identity import ids
from rows.schema.column_values import ROW_ID

MAX_RESULTS: Final = 20
_MAX_USERS: Final = 100


@require_POST
@page("tables")
def live(console: Console, table: str) -> HttpResponse:
    request = console.request
    subscription: dict[str, Any] = {"table": table}
    if where := request.GET.get("where", "").strip():
        try:
            subscription["where"] = exact_json.loads(where)
        except ValueError:
            raise ValidationFailed("The filter is not JSON.") from None
    last_id = request.headers.get("Last-Event-ID")
    body = encode({"subscriptions": {"rows": subscription}})
    return console.respond("POST", "/v1/changes", body, headers={"Last-Event-ID": last_id} if last_id else {})


@require_safe
@page("tables")
def pick(console: Console, table: str, key: str) -> HttpResponse:
    """Rows or users for a column, by a part of their text or email: `{"data": [{id, label}]}`."""
    found, columns = chosen_table(console, table)
    column = next((each for each in columns if each.key == key and each.is_link), None)
    if column is None:
        raise NotFound("The table has no such reference.")
    text = console.request.GET.get("q", "").strip()[:200]
    try:
        data = _users(console, text) if column.type == "user" else _rows(console, column, found, text)
    except (Forbidden, ProjectSuspended):
        data = []
    return JsonResponse({"data": data[:MAX_RESULTS]})


def _users(console: Console, text: str) -> list[dict[str, str]]:
    if ids.matches("usr", text):
        users = console.listed("/v1/users", {"ids": text})
    else:
        newest, wanted = console.listed("/v1/users", {"limit": str(_MAX_USERS)}), text.casefold()
        keys = ("id", "email", "name")
        users = [user for user in newest if any(wanted in (user[key] or "").casefold() for key in keys)]
        if text:
            users = [*console.listed("/v1/users", {"search": text, "limit": str(MAX_RESULTS)}), *users]
        if "@" in text:
            users = [*console.listed("/v1/users", {"email": text}), *users]
    return [{"id": user["id"], "label": label_of_user(user)} for user in _once(users)]


def _rows(console: Console, column: Column, tables: dict[str, Any], text: str) -> list[dict[str, str]]:
    target = column.target or ""
    key = text_key(console, target, tables[target])
    path, query = f"/v1/rows/{target}", {"limit": str(MAX_RESULTS), "columns": key or "id"}
    rows = [] if text else console.listed(path, query)
    by_id: list[dict[str, Any]] = [{"id": text}] if ROW_ID.fullmatch(text) else []
    # Exact matches come first, because a picker takes the first.
    for wanted in (text, {"$icontains": text}) if text else ():
        conditions = [*([{key: wanted}] if key else []), *by_id]
        if conditions:
            rows += console.listed(path, query | {"where": exact_json.dumps({"$or": conditions})})
    return [{"id": row["id"], "label": (row[key] or "")[:MAX_LABEL_LENGTH] if key else ""} for row in _once(rows)]


def _once(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without duplicates; the first one stays."""
    return list({each["id"]: each for each in found}.values())
