"""Console page of an environment's schema: its document, its versions, and a change with its plan.

There is one page per environment, at the model's list URL with `?environment=env_…` (`projects.console.base`). Changes
use `rows.migrate.service` like all others: staff see the plan and its impact (`rows.migrate.rule_impact`), type the
name of each operation that may lose data, and are in the audit log. A document that was edited after its plan is
planned again. `rows.console.row_browser` shows the rows.
"""

import hashlib
import json
from typing import Any, Final

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect

from accounts.console.base import staff
from accounts.models import User
from platform_site.http import bodies
from platform_site.http.errors import InvalidRequest
from platform_site.identity.callers import EnvironmentRef
from platform_site.postgres import sqlstates
from projects.console.base import RegionAdmin, list_url, listed, query_with
from projects.console.texts import difference
from projects.errors import NoSuchEnvironment, SchemaLost
from rows.console import row_browser
from rows.migrate import rule_impact
from rows.migrate import service as schema_service
from rows.migrate.apply import TookTooLong
from rows.migrate.service import (
    NoSuchVersion,
    Outcome,
    SchemaError,
    TablesBusy,
    TablesQuotaReached,
    Unconfirmed,
    VersionMoved,
)
from rows.models import SchemaVersion
from rows.schema.model import InvalidDocument

__all__ = ["SchemaVersionAdmin", "row_browser"]

VERSIONS_SHOWN: Final = 25


@admin.register(SchemaVersion)
class SchemaVersionAdmin(RegionAdmin):
    title = "Schema"
    many = "Schemas"
    list_template = "admin/rows/schema.html"

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Versions have no pages of their own: the environment's page shows what each of them changed."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        raise Http404("Open the schema from its environment.")

    def list_response(self, request: HttpRequest, place: EnvironmentRef) -> HttpResponse | dict[str, Any]:
        context: dict[str, Any] = {}
        try:
            if request.method == "POST":
                if not self.has_operate_permission(request):
                    raise PermissionDenied
                context = self._change(request, place)
                if (outcome := context.get("applied")) is not None:
                    self.message_user(request, f"The schema is at version {outcome.version}.")
                    return HttpResponseRedirect(
                        self.list_address(environment=place.environment_id, version=str(outcome.version))
                    )
            return context | self._shown(request, place)
        except NoSuchVersion:
            raise Http404("The environment never had this version.") from None

    # ── A change ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _change(self, request: HttpRequest, place: EnvironmentRef) -> dict[str, Any]:
        """Plan or apply what was posted: what the page then shows of it."""
        text, expected = request.POST.get("document", ""), _number(request.POST.get("expected", ""))
        revert = _number(request.POST.get("revert", ""))
        shown: dict[str, Any] = {"text": text, "watched": request.POST.get("watched", "").strip()}
        if expected is None:
            return shown | {"problems": ["The page was incomplete. Load it again."]}
        if revert is not None:
            text = _pretty(schema_service.document_to_revert_to(place, revert))
            shown |= {"text": text, "reverts_to": revert}
        shown["planned"] = hashlib.sha256(text.replace("\r\n", "\n").encode()).hexdigest()
        try:
            raw = bodies.read(text.encode())
        except InvalidRequest as error:
            return shown | {"problems": [f"The document cannot be read. {error.text}"]}
        wants_to_apply = "apply" in request.POST
        if wants_to_apply and request.POST.get("planned") != shown["planned"]:
            wants_to_apply = False
            shown["notice"] = "The document changed since it was planned. This is its plan now."
        try:
            if wants_to_apply:
                confirmed = [name.strip() for name in request.POST.getlist("confirm")]
                applied: Outcome = schema_service.change(
                    place, raw, actor=staff(request), expected=expected, confirm=confirmed, reverts_to=revert
                )
                return shown | {"applied": applied}
            return shown | _plan(place, raw, expected, shown["watched"])
        except Unconfirmed as error:
            plan = _plan(place, raw, expected, shown["watched"])
            return shown | plan | {"problems": [f"Not confirmed: {name}" for name in error.operations]}
        except (InvalidDocument, SchemaError, SchemaLost, NoSuchEnvironment, TookTooLong) as error:
            return shown | {"problems": _problems(error)}

    # ── The page ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _shown(self, request: HttpRequest, place: EnvironmentRef) -> dict[str, Any]:
        """The current document and a page of versions; with `?version=`, what that version changed."""
        state = schema_service.current(place)
        current = _text(state.record)
        shown: dict[str, Any] = {
            "version": state.version,
            "applied": None,
            "current": current,
            "tables": [
                {
                    "name": table.name,
                    "columns": len(table.all_columns),
                    "roles": list(table.rules),
                    "address": list_url("rows.CurrentVersion", environment=place.environment_id, table=table.name),
                }
                for table in state.schema.tables.values()
            ],
            "indexes_due": state.indexes_due,
            "page": listed(
                request,
                schema_service.history(place).defer("document_text"),
                ["-version"],
                "schema-versions",
                [place.environment_id],
                size=VERSIONS_SHOWN,
            ),
            "first_query": query_with(request),
        }
        number = request.GET.get("version", "")
        if number:
            found = _number(number)
            if found is None:
                raise NoSuchVersion(number)
            chosen = schema_service.version(place, found)
            before = schema_service.version(place, chosen.version - 1) if chosen.version > 1 else None
            names = (f"version {chosen.version - 1}", f"version {chosen.version}")
            shown |= {"chosen": chosen, "difference": difference(_text(before), _text(chosen), *names)}
        return shown


def _plan(place: EnvironmentRef, raw: Any, expected: int, watched: str) -> dict[str, Any]:
    """The operations of a change, its diff, and its impact on visibility."""
    plan = schema_service.rehearse(place, raw, expected=expected)
    planned: dict[str, Any] = {"plan": plan}
    if not plan.changed:
        return planned
    user = User.objects.in_pool(place.pool_id).filter(pk=watched).first() if watched else None
    if watched and user is None:
        user = User.objects.with_email(place.pool_id, watched).first()
    if watched and user is None:
        planned["notice"] = f"No user of this environment is called {watched[:100]}."
    before = _text(schema_service.current(place).record)
    planned["changes"] = difference(before, _pretty(raw), "now", "then")
    try:
        planned["impacts"] = rule_impact.of_change(place, raw, users=[user] if user else [])
    except DatabaseError as error:
        if sqlstates.sqlstate(error) is None:
            raise
        planned["impact_problem"] = "What it shows and hides could not be counted."
    return planned


def _problems(error: Exception) -> list[str]:
    if isinstance(error, InvalidDocument):
        return [f"{each.field}: {each.message}" for each in error.errors]
    if isinstance(error, VersionMoved):
        return [f"The schema moved to version {error.version} meanwhile. Look at it, and plan again."]
    if isinstance(error, TablesBusy):
        return ["The tables were in use throughout. Nothing was changed; try again."]
    if isinstance(error, SchemaLost):
        return [str(error)]
    if isinstance(error, NoSuchEnvironment):
        return ["The environment was deleted meanwhile."]
    if isinstance(error, TablesQuotaReached):
        return [f"The plan allows {error.limit} tables. Nothing was changed."]
    return ["The change took too long and was given up. Nothing was changed."]


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None


def _pretty(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False)


def _text(record: SchemaVersion | None) -> str:
    return _pretty(record.document if record else {"tables": {}})
