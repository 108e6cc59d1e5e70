import json
from typing import Any, Final

from django.conf import settings
from django.http import HttpResponse
from django.shortcuts import redirect
from django.utils.html import escape
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.views.decorators.http import require_http_methods

from platform_site.developer_console.api_calls import data_of
from platform_site.developer_console.frame import Console, page
from platform_site.developer_console.tables import snippets
from platform_site.developer_console.tables.columns import Column, columns_of, shown_text, text_of
from platform_site.developer_console.tables.labels import Labels, labels_of
from platform_site.http import exact_json
from platform_site.http.errors import ApiError, Forbidden, InvalidRequest, NotFound, ValidationFailed
from rows import services
from rows.api.named_principals import principal_named
from rows.query.service import ListQuery, etag_of

ROWS: Final = 50
_DECODER: Final = json.JSONDecoder()
_EDITED: Final = ("PATCH", "DELETE", "GET")


def schema_tables(console: Console) -> dict[str, Any]:
    return dict(console.api("GET", "/v1/schema")["document"]["tables"])


@page("tables")
def tables(console: Console) -> HttpResponse:
    found = schema_tables(console)
    if found:
        caller, table = (console.request.GET.get(name, "") for name in ("as", "table"))
        chosen = table if table in found else next(iter(found))
        return redirect(console.url("table", chosen) + (f"?{urlencode({'as': caller})}" if caller else ""))
    return console.render("console/tables_empty.html", {})


def chosen_table(console: Console, table: str) -> tuple[dict[str, Any], list[Column]]:
    found = schema_tables(console)
    if table not in found:
        raise NotFound("The schema has no such table.")
    return found, columns_of(found[table])


@page("tables")
def table(console: Console, table: str) -> HttpResponse:
    found, columns = chosen_table(console, table)
    return console.render("console/table.html", grid(console, table, found, columns))


@page("tables")
def api(console: Console, table: str) -> HttpResponse:
    found, _ = chosen_table(console, table)
    wanted = console.request.GET.get("language", "")
    language = wanted if wanted in snippets.LANGUAGES else next(iter(snippets.LANGUAGES))
    context = {
        "table": table,
        "tables": found,
        "query": f"?language={language}",
        "language": language,
        "languages": snippets.LANGUAGES,
        "url": f"{settings.BASE_URL}/v1/rows/{table}",
        "codes": snippets.codes(language, console, snippets.sample_of(table, found[table])),
    }
    return console.render("console/table_api.html", context)


def grid(console: Console, table: str, found: dict[str, Any], columns: list[Column]) -> dict[str, Any]:
    filters = console.filters("where", "order", "cursor", "as")
    caller, order = filters.get("as"), filters.get("order", "")
    context: dict[str, Any] = {"table": table, "tables": found, "columns": columns, "filters": filters, "rows": []}
    context["query"] = f"?{urlencode({'as': caller})}" if caller else ""
    query = {"limit": str(ROWS), "count": "estimated"}
    query |= console.filters("where", "order", "cursor")
    try:
        response = console.respond("GET", f"/v1/rows/{table}", b"", query=query)
        answer = data_of(response)
        rows: list[dict[str, Any]] = [
            {"etag": etag, "values": row} for row, etag in _with_etags(response.content.decode())
        ]
        visible = _rows_visible_to(console, caller, table, [row["values"]["id"] for row in rows]) if caller else None
    except (InvalidRequest, ValidationFailed) as refusal:
        console.refusal = refusal
        is_caller_refused = any(each.field == "as" for each in refusal.fields)
        return context | {"headers": _headers(columns, order), "is_caller_refused": is_caller_refused}
    if rows:
        columns = [column for column in columns if column.key in rows[0]["values"]]
    labels = labels_of(console, found, columns, [row["values"] for row in rows])
    return context | {
        "columns": columns,
        "rows": [_grid_row(console, row, columns, labels, visible) for row in rows],
        "count": answer.get("count"),
        "headers": _headers(columns, order),
        "next_cursor": answer["next_cursor"],
        "hidden": sum(row["values"]["id"] not in visible for row in rows) if visible is not None else 0,
    }


def _with_etags(text: str) -> list[tuple[dict[str, Any], str]]:
    """A page's rows with entity tags, which depend on the row's exact text."""
    at, found = text.index("[") + 1, []
    while text[at] != "]":
        if text[at] in ", ":
            at += 1
            continue
        _, end = _DECODER.raw_decode(text, at)
        row = text[at:end]
        found.append((exact_json.loads(row), etag_of(row.encode())))
        at = end
    return found


def _rows_visible_to(console: Console, caller: str, table: str, row_ids: list[str]) -> dict[str, Any]:
    if "schema:read" not in console.me["scopes"]:
        raise Forbidden("This needs the scope schema:read.")
    ref = console.ref
    principal = principal_named(ref.pool_id, _with_user_id(console, caller))
    try:
        answer = services.list_rows(ref, principal, table, ListQuery(where={"id": {"$in": row_ids}}, limit=100))
    except NotFound:
        return {}  # no rule lets this caller read the table
    return {row["id"]: row for row in exact_json.loads(answer.body)["data"]}


def _with_user_id(console: Console, name: str) -> str:
    if "@" not in name:
        return name
    users = console.api("GET", "/v1/users", query={"email": name})["data"]
    return str(users[0]["id"]) if users else name


def _grid_row(
    console: Console, row: dict[str, Any], columns: list[Column], labels: Labels, visible: dict[str, Any] | None
) -> dict[str, Any]:
    values = row["values"]
    visible_values = values if visible is None else visible.get(values["id"])
    cells = []
    for column in columns:
        value = values.get(column.key)
        label = labels.get((column.target, value)) if column.is_link and value else None
        cells.append(
            {
                "attributes": _attributes(console, column, value, visible_values),
                "text": label or shown_text(value, column.type),
                "is_null": value is None,
                "href": _target(console, column, value),
                "names": "Row" if column.target else "User",
            }
        )
    return {"id": values["id"], "etag": row["etag"], "is_hidden": visible_values is None, "cells": cells}


def _attributes(console: Console, column: Column, value: Any, visible_values: dict[str, Any] | None) -> SafeString:
    """A cell's attributes for scripts: few, because a page has hundreds of cells."""
    is_hidden = visible_values is not None and column.key not in visible_values
    found: dict[str, Any] = {
        "class": "unseen" if is_hidden else False,
        "data-key": column.key,
        "data-type": column.type,
        "data-value": text_of(value, column.type),
        "data-null": value is None,
        "data-nullable": column.null,
        "data-read-only": column.is_read_only,
    }
    found |= {"data-values": ",".join(column.values)} if column.values else {}
    found |= {"title": value} if value and (column.is_link or column.type == "timestamp") else {}
    found |= {"aria-readonly": "true"} if column.is_read_only else {}
    found |= {"tabindex": "-1"} if console.may_write else {}
    # Django's flatatt takes five times as long, half of the time of a page.
    given = ((name, value) for name, value in found.items() if value is not False)
    return SafeString("".join(f" {name}" if value is True else f' {name}="{escape(value)}"' for name, value in given))


def _target(console: Console, column: Column, value: Any) -> str | None:
    if not column.is_link or not isinstance(value, str):
        return None
    if column.target is None:
        return console.url("user", value) if "users:manage" in console.me["scopes"] else None
    return f"{console.url('table', column.target)}?{urlencode({'where': exact_json.dumps({'id': value})})}"


def _headers(columns: list[Column], order: str) -> list[tuple[Column, str | None, str]]:
    """Each column, with the order after a click on it, and its current one (`aria-sort`)."""
    found = []
    for column in columns:
        orders = {column.key: (f"{column.key}.desc", "ascending"), f"{column.key}.desc": (None, "descending")}
        found.append((column, *orders.get(order, (column.key, "none"))))
    return found


def row_endpoint(method_names: tuple[str, ...]) -> Any:
    """A view that forwards requests of the grid's script to the API."""

    @require_http_methods(list(method_names))
    @page("tables")
    def view(console: Console, table: str, row_id: str | None = None) -> HttpResponse:
        request = console.request
        path = f"/v1/rows/{table}" + (f"/{row_id}" if row_id else "")
        headers = {"If-Match": request.headers["If-Match"]} if "If-Match" in request.headers else {}
        return console.respond(request.method or "", path, request.body, headers=headers)

    return view


row = row_endpoint(_EDITED)
new_row = row_endpoint(("POST",))


@page("tables")
def why(console: Console, table: str, row_id: str) -> HttpResponse:
    caller = console.request.GET.get("as", "")
    body = {"id": row_id, "as": _with_user_id(console, caller)}
    context: dict[str, Any] = {"table": table, "row_id": row_id, "caller": caller}
    try:
        context["explanation"] = console.api("POST", f"/v1/rows/{table}/explain", body)
        principal = principal_named(console.ref.pool_id, body["as"])
        context["role"] = caller if principal.user_id is None else "user"
        if principal.role and "users:manage" in console.me["scopes"]:
            context["role"] = principal.role
    except ApiError as refusal:
        console.refusal = refusal
    return console.render("console/why.html", context)
