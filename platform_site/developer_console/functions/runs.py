from typing import Any, Final

from django.http import HttpResponse

from functions.execution import calls
from platform_site.developer_console import forms
from platform_site.developer_console.api_calls import Refused
from platform_site.developer_console.frame import Console, page
from platform_site.developer_console.functions.common import path_of, render
from platform_site.developer_console.functions.pages import shown_run
from platform_site.developer_console.staff import grants as staff

STATUSES: Final = ("succeeded", "failed", "running")
TRIGGERS: Final = ("call", "schedule", "event", "inbound")


@page("functions")
def runs(console: Console, name: str) -> HttpResponse:
    asked = {key: console.request.GET[key] for key in ("status", "trigger") if console.request.GET.get(key)}
    detail = console.api("GET", path_of(name)).data
    context: dict[str, Any] = {"asked": asked, "statuses": STATUSES, "triggers": TRIGGERS, "function": detail}
    status = 200
    try:
        context["runs"] = console.api("GET", path_of(name, "runs"), query=asked | {"limit": "100"}).data["data"]
    except Refused as refusal:
        if refusal.status != 422:
            raise
        context["refusal"], status = refusal, refusal.status
    return render(console, "console/function_runs.html", name, context, status)


@page("functions")
def run(console: Console, name: str, run_id: str) -> HttpResponse:
    """Reloads every second until the run has ended."""
    context: dict[str, Any] = {}
    status = 200
    if console.request.method == "POST":
        try:
            if staff.may_stop(console.client):
                staff.stop(console.client, calls.cancel, name, run_id)
            else:
                console.api("POST", path_of(name, "runs", run_id, "cancel"))
            context["notice"] = "The run is cancelled."
        except Refused as refusal:
            if refusal.status == 404:
                raise
            context["refusal"], status = refusal, refusal.status
    found = shown_run(console.api("GET", path_of(name, "runs", run_id)).data)
    return render(console, "console/function_run.html", name, {"run": found, **context}, status)


@page("functions")
def versions(console: Console, name: str) -> HttpResponse:
    context: dict[str, Any] = {}
    status = 200
    if console.request.method == "POST":
        try:
            number = forms.integer_of(console.request.POST.get("version", ""))
            done = console.api("POST", path_of(name, "activate"), {"version": number}).data
            context["notice"] = f"Version {done['active_version']} is active."
        except Refused as refusal:
            context["refusal"], status = refusal, refusal.status
    query = {"limit": "20"}
    if console.request.GET.get("cursor"):
        query["cursor"] = console.request.GET["cursor"]
    found = console.api("GET", path_of(name, "versions"), query=query).data
    context["versions"] = found["data"]
    context["next_cursor"] = found["next_cursor"]
    return render(console, "console/function_versions.html", name, context, status)
