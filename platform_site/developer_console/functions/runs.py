from typing import Any, Final

from django.http import HttpResponse

from accounts.audit import Actor
from functions.directory import function_of
from functions.errors import NoSuchRun
from functions.execution import calls
from functions.models import Run
from platform_site.developer_console.forms import integer_of
from platform_site.developer_console.frame import Console, page
from platform_site.developer_console.functions.pages import path_of, render, shown_run
from platform_site.developer_console.staff import grants as staff
from platform_site.http.errors import ValidationFailed
from platform_site.identity import ids
from platform_site.identity.callers import EnvironmentRef

STATUSES: Final = ("succeeded", "failed", "running")
TRIGGERS: Final = ("call", "schedule", "event", "inbound")


@page("functions")
def runs(console: Console, name: str) -> HttpResponse:
    asked = {key: console.request.GET[key] for key in ("status", "trigger") if console.request.GET.get(key)}
    detail = console.api("GET", path_of(name))
    context: dict[str, Any] = {"asked": asked, "statuses": STATUSES, "triggers": TRIGGERS, "function": detail}
    try:
        context["runs"] = console.listed(path_of(name, "runs"), asked | {"limit": "100"})
    except ValidationFailed as refusal:
        console.refusal = refusal
    return render(console, "console/function_runs.html", name, context)


def _cancel_run(environment: EnvironmentRef, name: str, run_id: str, *, actor: Actor) -> None:
    """Raises NoSuchFunction, NoSuchRun, RunEnded."""
    function = function_of(environment, name)
    runs_of_function = Run.objects.using(environment.cluster).filter(function=function)
    run = runs_of_function.filter(pk=run_id).first() if ids.matches("run", run_id) else None
    if run is None:
        raise NoSuchRun
    calls.cancel(environment, run, actor=actor)


def _cancel(console: Console, name: str, run_id: str) -> dict[str, Any]:
    if not staff.stop(console.client, _cancel_run, name, run_id):
        console.api("POST", path_of(name, "runs", run_id, "cancel"))
    return {"notice": "The run is cancelled."}


@page("functions", {"cancel": _cancel})
def run(console: Console, name: str, run_id: str) -> HttpResponse:
    """Reloads every second until the run has ended."""
    found = shown_run(console.api("GET", path_of(name, "runs", run_id)))
    return render(console, "console/function_run.html", name, {"run": found})


def _activate(console: Console, name: str) -> dict[str, Any]:
    number = integer_of(console.request.POST.get("version", ""))
    done = console.api("POST", path_of(name, "activate"), {"version": number})
    return {"notice": f"Version {done['active_version']} is active."}


@page("functions", {"activate": _activate})
def versions(console: Console, name: str) -> HttpResponse:
    found = console.page_of(path_of(name, "versions"), {"limit": "20"})
    return render(console, "console/function_versions.html", name, {"versions": found["data"]})
