"""The console's pages of functions and runs: what is deployed, what ran, and how it ended.

They live in the region of their environment (`projects.console.base`). Secrets are names, here as everywhere.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from django.contrib import admin, messages
from django.db.models import Q
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from accounts.console.base import link, staff
from functions.console import highlight
from functions.deploy import service as deploy_service
from functions.execution import calls
from functions.inbound import service as inbound
from functions.models import Function, Run, Secret, Version
from functions.runs import history
from functions.runs import retention as run_retention
from functions.runs.anonymous_retention import MAX_STORED_BYTES
from functions.triggers import event_subscriptions
from platform_site.http import cursors
from platform_site.http.errors import ValidationFailed
from platform_site.identity.callers import EnvironmentRef
from projects.console.base import (
    PAGE,
    AdminAction,
    Listed,
    RegionAdmin,
    list_url,
    listed,
    query_with,
)
from projects.console.counts import COUNTED, bounded_count
from projects.console.texts import difference, readable

_CALLERS: Final = {
    "key": "accounts_serverkey",
    "anonymous": "accounts_serverkey",
    "user": "accounts_user",
    "account": "accounts_user",
}

_ACTIVATE = AdminAction("Activate", "This version answers all calls that begin from now on.", has_form=True)
_DELETE = AdminAction(
    "Delete",
    "The function goes for good, with its versions, its secrets and its runs.",
    danger=True,
    typed=True,
)
_STOP_SCHEDULE = AdminAction(
    "Stop the schedule", "The function no longer runs by itself until its schedule is set again.", danger=True
)
_STOP_EVENTS = AdminAction(
    "Stop its events", "The function no longer runs on events until its events are set again.", danger=True
)
_REVOKE_ENDPOINT = AdminAction(
    "Revoke the inbound endpoint",
    "The provider that has it reaches the function no more; its owner has to make another one.",
    danger=True,
    has_form=True,
)
_CANCEL = AdminAction("Cancel the run", "The code is stopped at once; the run ends as failed.", danger=True)


@admin.register(Function)
class FunctionAdmin(RegionAdmin):
    title = "Functions"
    id_prefix = "fn"
    list_template = "admin/functions/functions.html"
    thing_template = "admin/functions/function.html"

    def is_there(self, thing: Function) -> bool:
        return thing.environment_id is not None

    def list_context(self, request: HttpRequest, place: EnvironmentRef) -> dict[str, Any]:
        found = Function.objects.using(place.cluster).filter(environment_id=place.environment_id)
        return {
            "page": listed(request, found, ["name", "id"], "functions", [place.environment_id]),
            "first_query": query_with(request),
        }

    def thing_context(self, request: HttpRequest, place: EnvironmentRef, thing: Function) -> dict[str, Any]:
        using = place.cluster
        versions = Version.objects.using(using).filter(function=thing)
        active = versions.filter(number=thing.active_version).first()
        chosen = versions.filter(number=_number(request.GET.get("version", ""), thing.active_version)).first() or active
        runs = Run.objects.using(using).filter(function=thing)
        source = chosen.source if chosen else ""
        is_other = chosen is not None and active is not None and chosen.number != active.number
        return {
            "function": thing,
            "chosen": chosen,
            "source": highlight.coloured(source),
            "scheduled_as": _named(thing.scheduled_kind, thing.scheduled_id),
            "addresses": [
                (each.address, each.is_stopped, _named(each.address.runs_as_kind, each.address.runs_as_id))
                for each in inbound.all_of(place, thing)
            ],
            "on_as": _named(thing.events_kind, thing.events_id),
            "lines": highlight.line_numbers(source),
            "difference": _changed(active, chosen) if is_other and active and chosen else None,
            "secrets": [
                (secret.name, secret.sealed_value is not None, secret.updated_at)
                for secret in Secret.objects.using(using).filter(function=thing).order_by("name")
            ],
            "page": listed(request, versions.defer("source"), ["-number"], "versions", [thing.pk], size=20),
            "first_query": query_with(request),
            "counts": [(status, bounded_count(_with(runs, status))) for status in Run.Status.values],
            "latest": _shortened(runs)[:10],
            "runs_since": run_retention.shortened_at(thing),
        }

    def verbs_of(self, thing: Function) -> dict[str, AdminAction]:
        stop = {"stop_schedule": _STOP_SCHEDULE} if thing.next_run_at is not None else {}
        if event_subscriptions.has_triggers(thing):
            stop["stop_events"] = _STOP_EVENTS
        return {"activate": _ACTIVATE, **stop, "revoke_address": _REVOKE_ENDPOINT, "delete": _DELETE}

    def act(self, request: HttpRequest, place: EnvironmentRef, thing: Function, verb: str) -> HttpResponse | str:
        if verb == "activate":
            number = _number(request.POST.get("version", ""), 0)
            deploy_service.activate(place, thing.name, number, actor=staff(request))
            return f"Version {number} answers from now on."
        if verb == "stop_schedule":
            deploy_service.stop_schedule(place, thing.name, actor=staff(request))
            return "The schedule is stopped."
        if verb == "stop_events":
            deploy_service.stop_events(place, thing.name, actor=staff(request))
            return "Its events are stopped."
        if verb == "revoke_address":
            inbound.revoke(place, thing.name, request.POST.get("address", "")[:64], actor=staff(request))
            return "The endpoint is revoked."
        deploy_service.delete_function(place, thing.name, actor=staff(request))
        self.message_user(request, f"{thing.name} is deleted.", messages.SUCCESS)
        return HttpResponseRedirect(self.list_address(environment=place.environment_id))


@admin.register(Run)
class RunAdmin(RegionAdmin):
    title = "Runs"
    id_prefix = "run"
    list_template = "admin/functions/runs.html"
    thing_template = "admin/functions/run.html"
    shows_tenants_data = "run.viewed"

    def is_there(self, thing: Run) -> bool:
        return thing.function.environment_id is not None

    def list_context(self, request: HttpRequest, place: EnvironmentRef) -> dict[str, Any]:
        using = place.cluster
        asked = {name: request.GET.get(name, "").strip()[:64] for name in ("function", "status", "trigger")}
        if asked["status"] not in Run.Status.values:
            asked["status"] = ""
        if asked["trigger"] not in Run.Trigger.values:
            asked["trigger"] = ""
        conditions = {name: asked[name] for name in ("status", "trigger") if asked[name]}
        functions = Function.objects.using(using).filter(environment_id=place.environment_id).order_by("name")
        facts = [place.environment_id, *asked.values()]
        return {
            "asked": asked,
            "statuses": Run.Status.values,
            "triggers": Run.Trigger.values,
            "functions": functions.only("name"),
            "page": _page_of(request, place, conditions, asked["function"], facts),
            "first_query": query_with(request),
        }

    def thing_context(self, request: HttpRequest, place: EnvironmentRef, thing: Run) -> dict[str, Any]:
        error = thing.error if isinstance(thing.error, dict) else None
        return {
            "run": thing,
            "function": thing.function,
            "not_stored": thing.not_stored or (),
            "kept_bytes": MAX_STORED_BYTES,
            "input": readable(thing.input),
            "output": None if thing.output is None else readable(thing.output),
            "error": error,
            "logs": [(_moment(line.get("at")), line.get("level", ""), line.get("text", "")) for line in thing.logs],
            "caller": _named(thing.caller_kind, thing.caller_id),
            "siblings": list_url("functions.Run", environment=place.environment_id, function=thing.function.name),
        }

    def verbs_of(self, thing: Run) -> dict[str, AdminAction]:
        return {} if thing.phase == Run.Phase.ENDED or thing.cancel_requested_at else {"cancel": _CANCEL}

    def act(self, request: HttpRequest, place: EnvironmentRef, thing: Run, verb: str) -> str:
        calls.cancel(place, thing.function.name, thing.pk, actor=staff(request))
        return "The run is being cancelled."


def _named(kind: str | None, caller_id: str | None) -> str:
    """Whom a run executes as, with a link to their page."""
    return link(_CALLERS[kind], caller_id) if kind in _CALLERS else "–"


def _page_of(
    request: HttpRequest, place: EnvironmentRef, conditions: Mapping[str, str], name: str, facts: list[Any]
) -> Listed:
    """A page of the runs that fit, of the function of that name or of all in the environment."""
    cursor, problem = request.GET.get("cursor") or None, None
    after: Any = None
    if cursor is not None:
        try:
            after = cursors.decode("console.runs", facts, cursor)
        except ValidationFailed:
            problem, cursor = "That page belongs to another list; here is the first one.", None
    runs = history.newest(place, conditions, name=name, after=after, limit=PAGE + 1)
    next_query = None
    if len(runs) > PAGE:
        del runs[PAGE:]
        next_query = query_with(
            request, cursor=cursors.encode("console.runs", facts, [runs[-1].created_at, runs[-1].pk])
        )
    return Listed(runs, next_query, cursor is None, problem)


def _with(runs: Any, status: str) -> Any:
    """Runs of one function with this status, as many as are counted, by an index: `functions.runs.history`."""
    if status == Run.Status.RUNNING:
        return runs.filter(Q(phase=Run.Phase.QUEUED) | Q(phase=Run.Phase.EXECUTING))
    return history.newest_of(runs, {"status": status}, COUNTED + 1)


def _shortened(runs: Any) -> Any:
    return runs.select_related("function").defer("input", "output", "logs").order_by("-created_at", "-id")


def _moment(at: Any) -> datetime | None:
    """The time of a log's line, which is kept as seconds since 1970."""
    return datetime.fromtimestamp(at, UTC) if isinstance(at, int | float) else None


def _number(text: str, otherwise: int) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else otherwise


def _changed(active: Version, chosen: Version) -> list[tuple[str, str]]:
    names = (f"version {active.number} (active)", f"version {chosen.number}")
    return difference(active.source, chosen.source, *names)
