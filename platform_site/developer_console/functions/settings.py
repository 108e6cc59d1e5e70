from dataclasses import replace
from typing import Any, Final

from django.http import HttpResponse

from functions.deploy import service as deploy_service
from functions.triggers import event_subscriptions, schedules
from platform_site.developer_console import forms
from platform_site.developer_console.api_calls import path_to
from platform_site.developer_console.forms import Field, form_of
from platform_site.developer_console.frame import Action, Console, go_to, operation, page
from platform_site.developer_console.functions.pages import render
from platform_site.developer_console.staff import grants as staff
from platform_site.http.errors import ApiError

_LIMITS: Final = (
    Field("timeout_ms", "Timeout (ms)", "number"),
    Field("memory_mb", "Memory (MB)", "number"),
    Field("attempts", "Attempts of a queued run", "number", help="1 to 5."),
    Field(
        "invoke",
        "Who may invoke it",
        "select",
        choices=(
            ("", "App users, server keys and members"),
            ("user", "App users only"),
            ("key", "Server keys and members only"),
            ("public", "Everyone, including publishable keys"),
        ),
    ),
    Field(
        "allowed_hosts",
        "Hosts that ctx.fetch may call, one per line",
        "textarea",
        placeholder="api.example.com",
        help="Empty: the outbound network is blocked.",
    ),
)
_SCHEDULE: Final = (
    Field("schedule", "Cron expression (UTC)", placeholder="0 6 * * mon-fri", help="Empty: no schedule. Or @daily."),
)
_EVENTS: Final = (
    Field(
        "on",
        "Event patterns, one per line",
        "textarea",
        placeholder="tasks.insert",
        help="Such as tasks.insert, tasks.* or *.delete. Empty: no event triggers.",
    ),
)
_SECRET: Final = (
    Field("secret_name", "Name", required=True, placeholder="API_TOKEN"),
    Field("secret_value", "Value", "password", required=True, help="Stored encrypted and never shown again."),
)
_INBOUND: Final = (
    Field("label", "Label", placeholder="Stripe"),
    Field("async", "Answer at once and queue the run", "checkbox"),
)


def _configure(console: Console, name: str, body: dict[str, Any], notice: str) -> dict[str, Any]:
    console.api("PATCH", path_to("functions", name), body)
    return {"notice": notice}


def _change_limits(console: Console, name: str) -> dict[str, Any]:
    body = forms.read(_LIMITS, console.request.POST)
    body["invoke"] = body["invoke"] or None
    forms.refuse_stale(console, _LIMITS, console.api("GET", path_to("functions", name)))
    return _configure(console, name, body, "The limits are saved.")


def _change_schedule(console: Console, name: str) -> dict[str, Any]:
    schedule = console.request.POST.get("schedule", "").strip() or None
    if schedule is None and staff.stop(console.client, deploy_service.stop_trigger, name, schedules.stop):
        return {"notice": "The schedule is stopped until it is set again."}
    notice = "The schedule is saved." if schedule else "The function has no schedule now."
    return _configure(console, name, {"schedule": schedule}, notice)


def _change_events(console: Console, name: str) -> dict[str, Any]:
    patterns = forms.lines_of(console.request.POST.get("on", ""))
    if not patterns and staff.stop(console.client, deploy_service.stop_trigger, name, event_subscriptions.stop):
        return {"notice": "The event triggers are stopped until they are set again."}
    notice = "The event triggers are saved." if patterns else "The function has no event triggers now."
    return _configure(console, name, {"on": patterns or None}, notice)


def _set_secret(console: Console, name: str) -> dict[str, Any]:
    submitted = console.request.POST
    secret = submitted.get("secret_name", "").strip()
    try:
        return _configure(
            console, name, {"secrets": {secret: submitted.get("secret_value", "")}}, f"The secret {secret} is set."
        )
    except ApiError as refusal:
        for index, error in enumerate(refusal.fields):
            if error.field.split(".")[0] == "secrets":
                field = "secret_name" if error.code in ("invalid_name", "too_many") else "secret_value"
                refusal.fields[index] = replace(error, field=field)
        raise


def _delete_secret(console: Console, name: str) -> dict[str, Any]:
    secret = console.request.POST.get("secret", "")
    return _configure(console, name, {"secrets": {secret: None}}, f"The secret {secret} is deleted.")


def _create_endpoint(console: Console, name: str) -> dict[str, Any]:
    body = {name: value for name, value in forms.read(_INBOUND, console.request.POST).items() if value != ""}
    return {"new_endpoint": console.api("POST", path_to("functions", name, "inbound"), body)}


def _delete(console: Console, name: str) -> HttpResponse:
    if console.request.POST.get("confirm") != name:
        raise forms.invalid("confirm", "This is not the function's name. Nothing was deleted.")
    console.api("DELETE", path_to("functions", name))
    return go_to(console.request, console.url("functions"))


_ACTIONS: Final[dict[str, Action]] = {
    "limits": _change_limits,
    "schedule": _change_schedule,
    "events": _change_events,
    "secret": _set_secret,
    "delete-secret": _delete_secret,
    "inbound": _create_endpoint,
    "delete-endpoint": operation(
        "DELETE", "functions/:name/inbound/:endpoint", "The inbound endpoint is deleted: its URL no longer works."
    ),
    "delete": _delete,
}


@page("functions", _ACTIONS)
def settings(console: Console, name: str) -> HttpResponse:
    detail = console.api("GET", path_to("functions", name))
    emails = console.emails_of([detail["scheduled_as"], detail["on_as"]])
    context = {
        "function": detail,
        "limits": forms.edit_form_of(console, "limits", _LIMITS, detail),
        "schedule": form_of(console, "schedule", _SCHEDULE, detail),
        "events": form_of(console, "events", _EVENTS, detail),
        "secret": form_of(console, "secret", _SECRET, {}),
        "inbound": form_of(console, "inbound", _INBOUND, {"async": True}),
        "endpoints": console.listed(path_to("functions", name, "inbound")),
        "scheduled_as_email": emails.get(detail["scheduled_as"]),
        "on_as_email": emails.get(detail["on_as"]),
    }
    return render(console, "console/function_settings.html", name, context)
