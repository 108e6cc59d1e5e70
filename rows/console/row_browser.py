"""Console row browser: the rows of an environment as a given caller sees them, and the reasons.

Read-only, through the row manager. Staff see what a *member* of the project, a key, an anonymous caller, a role or one
app user sees. Operators also see all rows, and next to a user's rows those that are hidden from it. Each view writes
`rows.viewed` to the audit log, with what was viewed and as whom, without cells. Registered by `rows.console.admin`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.http import urlencode

from accounts.console.base import refuse_nul, url_of
from accounts.models import User
from platform_site.http import exact_json
from platform_site.http.errors import ApiError, NotFound, ValidationFailed
from platform_site.identity.callers import EnvironmentRef
from projects.console.base import RegionAdmin, list_url, query_with
from projects.directory.environments import place_of
from rows import services
from rows.models import CurrentVersion
from rows.query import schema_cache
from rows.query.schema_cache import CompiledSchema
from rows.query.service import ListQuery
from rows.rules.principal import ANONYMOUS, MEMBER, SERVER, USER, Principal
from rows.schema.column_values import ROW_ID
from rows.schema.model import Column, Table
from rows.transfer import exporter

ROWS: Final = 25
LONGEST_CELL: Final = 120
"""Characters of a cell in a list; a row's own page shows all of it."""
ALL: Final = "all"
_OPERATOR: Final = Principal("account", bypass=True)
_MEMBER: Final = Principal("account")
_ANONYMOUS: Final = "an anonymous caller"


@dataclass(frozen=True, slots=True)
class ViewAs:
    """The caller whose view is shown. `key` is the URL parameter: `member`, `role:editor`, `usr_…`."""

    key: str
    label: str
    principal: Principal


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell as a page shows it. `href` leads to the row or user it names; `is_hidden` from the view_as at hand."""

    column: str
    text: str
    is_null: bool = False
    is_hidden: bool = False
    href: str | None = None


class UnknownViewAs(Exception):
    """Nobody is called so."""


@admin.register(CurrentVersion)
class RowBrowserAdmin(RegionAdmin):
    """At the URL of the current version: it shows the current rows."""

    title = "Rows"
    list_template = "admin/rows/browse.html"
    thing_template = "admin/rows/row.html"

    # ── A table ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def list_response(self, request: HttpRequest, place: EnvironmentRef) -> HttpResponse | dict[str, Any]:
        """Without `?table=` the tables; with it a page of its rows."""
        environment = schema_cache.current(place)
        view_as, problem = self._view_as(request, place, environment)
        name = request.GET.get("table", "")
        context = self._frame_of(request, environment, view_as) | {"problems": [problem] if problem else []}
        if not name:
            return context | {"tables": _tables(place, environment)}
        table = environment.schema.tables.get(name)
        if table is None:
            raise Http404("The schema has no such table.")
        context["table"] = table
        if problem:
            return context
        asked = {key: request.GET.get(key, "").strip() for key in ("where", "order", "cursor", "count", "hidden")}
        context["asked"] = asked
        shows_hidden = bool(asked["hidden"]) and view_as.key != ALL
        asker = self._asker(request) if shows_hidden else view_as.principal
        query = ListQuery(
            where=asked["where"] or None,
            order=asked["order"] or None,
            limit=ROWS,
            cursor=asked["cursor"] or None,
            count="estimated" if asked["count"] else None,
        )
        try:
            page = exact_json.loads(services.list_rows(place, asker, name, query).body)
        except NotFound:
            return context | {"is_not_there": True}
        except ValidationFailed as error:
            return context | {"invalid": [f"{field.field}: {field.message}" for field in error.fields]}
        visible = _visible(place, view_as.principal, name, page["data"]) if shows_hidden else None
        self.leave_trail(
            request, place, "rows.viewed", name, seen_as=view_as.key, rows=len(page["data"]), with_hidden=shows_hidden
        )
        columns = list(environment.rules.resolver(environment.rules.role_key(asker)).columns(name).values())
        following = page["next_cursor"]
        return context | {
            "columns": columns,
            "rows": [_listed(place, table, columns, row, view_as, visible) for row in page["data"]],
            "shows_hidden": shows_hidden,
            "count": page.get("count"),
            "count_is": page.get("count_is"),
            "count_query": query_with(request, count="1"),
            "first_query": query_with(request),
            "is_first": not asked["cursor"],
            "next_query": None if following is None else query_with(request, cursor=following),
        }

    # ── A row ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """One row of `?environment=` and `?table=`, as `?as=` sees it; with `?explain=1` why."""
        if object_id is None or not self.has_view_permission(request) or request.method != "GET":
            raise PermissionDenied
        refuse_nul(request)
        place = place_of(request.GET.get("environment", ""))
        row_id = unquote(object_id)
        if place is None or not ROW_ID.fullmatch(row_id):
            raise Http404("There is no such row.")
        return self.shown(
            request, place, self.thing_template, lambda: self._row(request, place, row_id), f"Row {row_id}"
        )

    def _row(self, request: HttpRequest, place: EnvironmentRef, row_id: str) -> dict[str, Any]:
        environment = schema_cache.current(place)
        table = environment.schema.tables.get(request.GET.get("table", ""))
        if table is None:
            raise Http404("The schema has no such table.")
        view_as, problem = self._view_as(request, place, environment)
        asker = self._asker(request)
        context = self._frame_of(request, environment, view_as) | {
            "table": table,
            "row_id": row_id,
            "problems": [problem] if problem else [],
            "back": list_url(
                "rows.CurrentVersion", environment=place.environment_id, table=table.name, **{"as": view_as.key}
            ),
        }
        seen = _one(place, view_as.principal, table.name, row_id)
        whole = seen if view_as.principal == asker else _one(place, asker, table.name, row_id)
        if whole is None:
            raise Http404("There is no such row, or it is hidden from members of the project.")
        self.leave_trail(request, place, "rows.viewed", row_id, table=table.name, seen_as=view_as.key)
        columns = list(environment.rules.resolver(environment.rules.role_key(asker)).columns(table.name).values())
        context |= {
            "is_visible": seen is not None,
            "cells": [_cell(place, column, whole, view_as, seen, longest=None) for column in columns],
            "children": _children(place, environment, table, row_id, view_as),
            "explain_query": query_with(request, explain="1"),
        }
        if seen is None or request.GET.get("explain"):
            context["explanation"] = services.explain_row(
                place, asker, table.name, row_id, view_as.principal, knows_users=True
            )
        return context

    # ── Through whose view_as
    # ──────────────────────────────────────────────────────────────────────────────────────────

    def _asker(self, request: HttpRequest) -> Principal:
        """The default view of staff: operators see everything, support sees what members see."""
        return _OPERATOR if self.has_operate_permission(request) else _MEMBER

    def _view_as(
        self, request: HttpRequest, place: EnvironmentRef, environment: CompiledSchema
    ) -> tuple[ViewAs, str | None]:
        asked = request.GET.get("user", "").strip() or request.GET.get("as", "").strip() or MEMBER
        try:
            return _view_as_named(asked, place, environment, may_see_all=self.has_operate_permission(request)), None
        except UnknownViewAs as error:
            return ViewAs(MEMBER, "a member of the project", _MEMBER), str(error)

    def _frame_of(self, request: HttpRequest, environment: CompiledSchema, view_as: ViewAs) -> dict[str, Any]:
        choices = [(MEMBER, "a member of the project"), (SERVER, "a server key"), (ANONYMOUS, _ANONYMOUS)]
        if self.has_operate_permission(request):
            choices.insert(0, (ALL, "everything, rules aside"))
        choices += [(f"role:{role}", f"any user of role {role}") for role in _roles(environment)]
        if view_as.principal.user_id:
            choices.append((view_as.key, view_as.label))
        return {
            "view_as": view_as,
            "choices": choices,
            "version": environment.version,
            "schema_address": list_url("rows.SchemaVersion", environment=environment.id),
        }


def row_url(place: EnvironmentRef, table: str, row_id: str, view_as: str = MEMBER) -> str:
    """The page of one row, as `view_as` see it."""
    query = urlencode({"environment": place.environment_id, "table": table, "as": view_as})
    return f"{url_of('rows_currentversion', row_id)}?{query}"


def _roles(environment: CompiledSchema) -> list[str]:
    """The roles of users that some table names, `user` first."""
    named = {role for table in environment.schema.tables.values() for role in table.rules}
    return [USER, *sorted(named - {USER, MEMBER, SERVER, ANONYMOUS})]


def _view_as_named(asked: str, place: EnvironmentRef, environment: CompiledSchema, *, may_see_all: bool) -> ViewAs:
    """Raises UnknownEyes, with the sentence to say."""
    match asked:
        case "all" if may_see_all:
            return ViewAs(ALL, "everything, rules aside", _OPERATOR)
        case "member":
            return ViewAs(MEMBER, "a member of the project", _MEMBER)
        case "server":
            return ViewAs(SERVER, "a server key", Principal("key"))
        case "anonymous":
            return ViewAs(ANONYMOUS, _ANONYMOUS, Principal("anonymous"))
    role = asked.removeprefix("role:")
    if asked.startswith("role:") and role in _roles(environment):
        return ViewAs(asked, f"any user of role {role}", Principal("user", role=None if role == USER else role))
    user = User.objects.in_pool(place.pool_id).filter(pk=asked).first()
    if user is None and "@" in asked:
        user = User.objects.with_email(place.pool_id, asked).first()
    if user is None:
        raise UnknownViewAs(f"Nobody in this environment is called {asked[:100]}. Give a user's id or e-mail.")
    label = f"{user.email}, role {user.role}" if user.role else user.email
    return ViewAs(user.pk, label, Principal.of_user(user))


# ── Content ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _tables(place: EnvironmentRef, environment: CompiledSchema) -> list[dict[str, Any]]:
    """The tables with PostgreSQL's estimate of their rows."""
    estimates = exporter.estimates(place)
    return [
        {
            "name": table.name,
            "rows": estimates.get(table.name, 0),
            "columns": len(table.all_columns),
            "roles": list(table.rules),
            "href": list_url("rows.CurrentVersion", environment=environment.id, table=table.name),
        }
        for table in environment.schema.tables.values()
    ]


def _visible(
    place: EnvironmentRef, principal: Principal, table: str, rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Of these rows, those that `principal` sees, as it sees them. One statement."""
    if not rows:
        return {}
    query = ListQuery(where={"id": {"$in": [row["id"] for row in rows]}}, limit=100)
    try:
        page = exact_json.loads(services.list_rows(place, principal, table, query).body)
    except NotFound:
        return {}
    return {row["id"]: row for row in page["data"]}


def _one(place: EnvironmentRef, principal: Principal, table: str, row_id: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = exact_json.loads(services.retrieve_row(place, principal, table, row_id).body)
    except ApiError:
        return None
    return found


def _listed(
    place: EnvironmentRef,
    table: Table,
    columns: Sequence[Column],
    row: Mapping[str, Any],
    view_as: ViewAs,
    visible: Mapping[str, Any] | None,
) -> dict[str, Any]:
    seen = row if visible is None else visible.get(row["id"])
    return {
        "id": row["id"],
        "href": row_url(place, table.name, row["id"], view_as.key),
        "is_hidden": seen is None,
        "cells": [
            _cell(place, column, row, view_as, row if seen is None else seen)
            for column in columns
            if column.name != "id"
        ],
    }


def _cell(
    place: EnvironmentRef,
    column: Column,
    row: Mapping[str, Any],
    view_as: ViewAs,
    seen: Mapping[str, Any] | None,
    *,
    longest: int | None = LONGEST_CELL,
) -> Cell:
    value = row.get(column.name)
    is_hidden = seen is not None and column.name not in seen
    href = None
    if isinstance(value, str):
        if column.is_user:
            href = url_of("accounts_user", value)
        elif column.references:
            href = row_url(place, column.references, value, view_as.key)
    text = value if isinstance(value, str) else exact_json.dumps(value)
    if longest is not None and len(text) > longest:
        text = text[:longest] + "…"
    return Cell(column.name, text, is_null=value is None, is_hidden=is_hidden, href=href)


def _children(
    place: EnvironmentRef, environment: CompiledSchema, table: Table, row_id: str, view_as: ViewAs
) -> list[tuple[str, str]]:
    """The relations that lead to many rows, each with the list of those that belong to this one."""
    found = []
    for relation in environment.schema.tables[table.name].relations.values():
        if relation.many:
            where = exact_json.dumps({relation.column: row_id})
            asked = {"environment": place.environment_id, "table": relation.target, "where": where, "as": view_as.key}
            found.append((relation.name, list_url("rows.CurrentVersion", **asked) or ""))
    return found
