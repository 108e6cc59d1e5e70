"""The console's row browser: the rows of an environment as somebody sees them, and why.

Read only, and through the row manager like everything (law 2): staff see what a *member* of the project sees, a key,
whoever has not signed in, a role or one user of the application; operators also see all rows, and beside a user's rows
those that are hidden from it. Every look leaves `rows.viewed` in the trail with what was looked at and as whom, without
a cell of it. Registered by `rows.console.admin`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.http import urlencode

from accounts.console.base import address, refuse_nul
from accounts.models import User
from platform_site.http import exact_json
from platform_site.http.errors import ApiError, NotFound, ValidationFailed
from platform_site.identity.callers import Place
from projects.console.base import RegionAdmin, list_address, query_with
from projects.directory.environments import place_of
from rows import services
from rows.models import CurrentVersion
from rows.query import schema_cache
from rows.query.schema_cache import Environment
from rows.query.service import ListQuery
from rows.rules.rules import ANONYMOUS, MEMBER, SERVER, USER, Principal
from rows.schema.model import Column, Table
from rows.schema.values import ROW_ID
from rows.transfer import exporter

ROWS: Final = 25
LONGEST_CELL: Final = 120
"""Characters of a cell in a list; a row's own page shows all of it."""
ALL: Final = "all"
_OPERATOR: Final = Principal("account", bypass=True)
_MEMBER: Final = Principal("account")
_ANONYMOUS: Final = "whoever has not signed in"


@dataclass(frozen=True, slots=True)
class Eyes:
    """Through whose eyes rows are looked at. `key` is what the address says: `member`, `role:editor`, `usr_…`."""

    key: str
    label: str
    principal: Principal


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell as a page shows it. `href` leads to the row or user it names; `is_hidden` from the eyes at hand."""

    column: str
    text: str
    is_null: bool = False
    is_hidden: bool = False
    href: str | None = None


class UnknownEyes(Exception):
    """Nobody is called so."""


@admin.register(CurrentVersion)
class RowBrowserAdmin(RegionAdmin):
    """At the address of the current version: its rows are those that are there now."""

    title = "Rows"
    list_template = "admin/rows/browse.html"
    thing_template = "admin/rows/row.html"

    # ── A table ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def list_response(self, request: HttpRequest, place: Place) -> HttpResponse | dict[str, Any]:
        """Without `?table=` the tables; with it a page of its rows."""
        environment = schema_cache.current(place)
        eyes, problem = self._eyes(request, place, environment)
        name = request.GET.get("table", "")
        context = self._frame_of(request, environment, eyes) | {"problems": [problem] if problem else []}
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
        shows_hidden = bool(asked["hidden"]) and eyes.key != ALL
        asker = self._asker(request) if shows_hidden else eyes.principal
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
        visible = _visible(place, eyes.principal, name, page["data"]) if shows_hidden else None
        self.leave_trail(
            request, place, "rows.viewed", name, seen_as=eyes.key, rows=len(page["data"]), with_hidden=shows_hidden
        )
        columns = list(environment.rules.sight(environment.rules.standing(asker)).columns(name).values())
        following = page["next_cursor"]
        return context | {
            "columns": columns,
            "rows": [_listed(place, table, columns, row, eyes, visible) for row in page["data"]],
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

    def _row(self, request: HttpRequest, place: Place, row_id: str) -> dict[str, Any]:
        environment = schema_cache.current(place)
        table = environment.schema.tables.get(request.GET.get("table", ""))
        if table is None:
            raise Http404("The schema has no such table.")
        eyes, problem = self._eyes(request, place, environment)
        asker = self._asker(request)
        context = self._frame_of(request, environment, eyes) | {
            "table": table,
            "row_id": row_id,
            "problems": [problem] if problem else [],
            "back": list_address(
                "rows.CurrentVersion", environment=place.environment_id, table=table.name, **{"as": eyes.key}
            ),
        }
        seen = _one(place, eyes.principal, table.name, row_id)
        whole = seen if eyes.principal == asker else _one(place, asker, table.name, row_id)
        if whole is None:
            raise Http404("There is no such row, or it is hidden from members of the project.")
        self.leave_trail(request, place, "rows.viewed", row_id, table=table.name, seen_as=eyes.key)
        columns = list(environment.rules.sight(environment.rules.standing(asker)).columns(table.name).values())
        context |= {
            "is_visible": seen is not None,
            "cells": [_cell(place, column, whole, eyes, seen, longest=None) for column in columns],
            "children": _children(place, environment, table, row_id, eyes),
            "explain_query": query_with(request, explain="1"),
        }
        if seen is None or request.GET.get("explain"):
            context["explanation"] = services.explain_row(
                place, asker, table.name, row_id, eyes.principal, knows_users=True
            )
        return context

    # ── Through whose eyes ──────────────────────────────────────────────────────────────────────────────────────────

    def _asker(self, request: HttpRequest) -> Principal:
        """As whom staff look when not through somebody's eyes: operators see all, support what members see."""
        return _OPERATOR if self.has_operate_permission(request) else _MEMBER

    def _eyes(self, request: HttpRequest, place: Place, environment: Environment) -> tuple[Eyes, str | None]:
        asked = request.GET.get("user", "").strip() or request.GET.get("as", "").strip() or MEMBER
        try:
            return _eyes_named(asked, place, environment, may_see_all=self.has_operate_permission(request)), None
        except UnknownEyes as error:
            return Eyes(MEMBER, "a member of the project", _MEMBER), str(error)

    def _frame_of(self, request: HttpRequest, environment: Environment, eyes: Eyes) -> dict[str, Any]:
        choices = [(MEMBER, "a member of the project"), (SERVER, "a server key"), (ANONYMOUS, _ANONYMOUS)]
        if self.has_operate_permission(request):
            choices.insert(0, (ALL, "everything, rules aside"))
        choices += [(f"role:{role}", f"any user of role {role}") for role in _roles(environment)]
        if eyes.principal.user_id:
            choices.append((eyes.key, eyes.label))
        return {
            "eyes": eyes,
            "choices": choices,
            "version": environment.version,
            "schema_address": list_address("rows.SchemaVersion", environment=environment.id),
        }


def row_address(place: Place, table: str, row_id: str, eyes: str = MEMBER) -> str:
    """The page of one row, as `eyes` see it."""
    query = urlencode({"environment": place.environment_id, "table": table, "as": eyes})
    return f"{address('rows_currentversion', row_id)}?{query}"


def _roles(environment: Environment) -> list[str]:
    """The roles of users that some table names, `user` first."""
    named = {role for table in environment.schema.tables.values() for role in table.rules}
    return [USER, *sorted(named - {USER, MEMBER, SERVER, ANONYMOUS})]


def _eyes_named(asked: str, place: Place, environment: Environment, *, may_see_all: bool) -> Eyes:
    """Raises UnknownEyes, with the sentence to say."""
    match asked:
        case "all" if may_see_all:
            return Eyes(ALL, "everything, rules aside", _OPERATOR)
        case "member":
            return Eyes(MEMBER, "a member of the project", _MEMBER)
        case "server":
            return Eyes(SERVER, "a server key", Principal("key"))
        case "anonymous":
            return Eyes(ANONYMOUS, _ANONYMOUS, Principal("anonymous"))
    role = asked.removeprefix("role:")
    if asked.startswith("role:") and role in _roles(environment):
        return Eyes(asked, f"any user of role {role}", Principal("user", role=None if role == USER else role))
    user = User.objects.in_pool(place.pool_id).filter(pk=asked).first()
    if user is None and "@" in asked:
        user = User.objects.with_email(place.pool_id, asked).first()
    if user is None:
        raise UnknownEyes(f"Nobody in this environment is called {asked[:100]}. Give a user's id or e-mail.")
    label = f"{user.email}, role {user.role}" if user.role else user.email
    return Eyes(user.pk, label, Principal.of_user(user))


# ── Content ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _tables(place: Place, environment: Environment) -> list[dict[str, Any]]:
    """The tables with PostgreSQL's estimate of their rows."""
    estimates = exporter.estimates(place)
    return [
        {
            "name": table.name,
            "rows": estimates.get(table.name, 0),
            "columns": len(table.all_columns),
            "roles": list(table.rules),
            "href": list_address("rows.CurrentVersion", environment=environment.id, table=table.name),
        }
        for table in environment.schema.tables.values()
    ]


def _visible(place: Place, principal: Principal, table: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of these rows, those that `principal` sees, as it sees them. One statement."""
    if not rows:
        return {}
    query = ListQuery(where={"id": {"$in": [row["id"] for row in rows]}}, limit=100)
    try:
        page = exact_json.loads(services.list_rows(place, principal, table, query).body)
    except NotFound:
        return {}
    return {row["id"]: row for row in page["data"]}


def _one(place: Place, principal: Principal, table: str, row_id: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = exact_json.loads(services.retrieve_row(place, principal, table, row_id).body)
    except ApiError:
        return None
    return found


def _listed(
    place: Place,
    table: Table,
    columns: Sequence[Column],
    row: Mapping[str, Any],
    eyes: Eyes,
    visible: Mapping[str, Any] | None,
) -> dict[str, Any]:
    seen = row if visible is None else visible.get(row["id"])
    return {
        "id": row["id"],
        "href": row_address(place, table.name, row["id"], eyes.key),
        "is_hidden": seen is None,
        "cells": [
            _cell(place, column, row, eyes, row if seen is None else seen) for column in columns if column.name != "id"
        ],
    }


def _cell(
    place: Place,
    column: Column,
    row: Mapping[str, Any],
    eyes: Eyes,
    seen: Mapping[str, Any] | None,
    *,
    longest: int | None = LONGEST_CELL,
) -> Cell:
    value = row.get(column.name)
    is_hidden = seen is not None and column.name not in seen
    href = None
    if isinstance(value, str):
        if column.is_user:
            href = address("accounts_user", value)
        elif column.references:
            href = row_address(place, column.references, value, eyes.key)
    text = value if isinstance(value, str) else exact_json.dumps(value)
    if longest is not None and len(text) > longest:
        text = text[:longest] + "…"
    return Cell(column.name, text, is_null=value is None, is_hidden=is_hidden, href=href)


def _children(place: Place, environment: Environment, table: Table, row_id: str, eyes: Eyes) -> list[tuple[str, str]]:
    """The relations that lead to many rows, each with the list of those that belong to this one."""
    found = []
    for relation in environment.schema.tables[table.name].relations.values():
        if relation.many:
            where = exact_json.dumps({relation.column: row_id})
            asked = {"environment": place.environment_id, "table": relation.target, "where": where, "as": eyes.key}
            found.append((relation.name, list_address("rows.CurrentVersion", **asked) or ""))
    return found
