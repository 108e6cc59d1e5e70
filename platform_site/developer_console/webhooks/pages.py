from typing import Any, Final

from django.http import HttpResponse
from django.utils.http import urlencode

from platform_site.developer_console import forms
from platform_site.developer_console.api_calls import path_to
from platform_site.developer_console.forms import Field
from platform_site.developer_console.frame import Change, Console, go_to, page
from platform_site.developer_console.staff import grants as staff
from platform_site.developer_console.tables.pages import schema_tables
from platform_site.http.errors import ApiError
from webhooks.subscriptions import service as webhook_service

_NEW: Final = (
    Field("url", "URL", "url", required=True, placeholder="https://example.com/hooks"),
    Field(
        "events",
        "Events, one per line",
        "textarea",
        required=True,
        help="Such as tasks.insert, tasks.*, *.delete, auth.user.created or function.run.failed; * is everything.",
    ),
    Field("description", "Description"),
)
_ALL: Final = (
    Field("name", "Name", help="Optional. Configurations use it instead of the id."),
    *_NEW,
    Field("filter", "Filter (JSON)", "code", placeholder='{"done": true}', help="Empty: all rows."),
    Field(
        "columns",
        "Columns to send (JSON)",
        "code",
        placeholder='{"tasks": ["title"]}',
        help="Empty: all columns that server keys may read.",
    ),
    Field(
        "ordering",
        "Ordering",
        "select",
        choices=(("none", "Off: faster"), ("row", "Events of one row arrive in order")),
    ),
)
TABS: Final = {"webhook": "Settings", "deliveries": "Deliveries"}


def path_of(webhook_id: str, *more: str) -> str:
    return path_to("webhooks", webhook_id, *more)


def render(console: Console, template: str, webhook: dict[str, Any], context: dict[str, Any]) -> HttpResponse:
    return console.render(template, {"webhook": webhook, "tabs": console.tabs(TABS, webhook["id"]), **context})


def _example(console: Console) -> str:
    try:
        first = next(iter(schema_tables(console)), None)
    except ApiError:
        first = None
    return f"{first}.*" if first else "*"


def _edit(console: Console, webhook_id: str) -> dict[str, Any]:
    body = forms.read(_ALL, console.request.POST)
    body["name"] = body["name"] or None
    forms.refuse_stale(console, console.api("GET", path_of(webhook_id))["updated_at"])
    console.api("PATCH", path_of(webhook_id), body)
    return {"notice": "The webhook is saved."}


def _disable(console: Console, webhook_id: str) -> dict[str, Any]:
    if not staff.stop(console.client, webhook_service.change_webhook, webhook_id, {"enabled": False}):
        console.api("PATCH", path_of(webhook_id), {"enabled": False})
    return {"notice": "The webhook is disabled. Its events are held for 7 days."}


def _enable(console: Console, webhook_id: str) -> dict[str, Any]:
    held = "drop" if console.request.POST.get("held") == "drop" else "release"
    console.api("PATCH", path_of(webhook_id), {"enabled": True, "held": held})
    done = "dropped" if held == "drop" else "delivered now"
    return {"notice": f"The webhook is enabled. Events that were held are {done}."}


def _test(console: Console, webhook_id: str) -> HttpResponse:
    event_id = console.api("POST", path_of(webhook_id, "test"))["event_id"]
    query = urlencode({"event_id": event_id, "sent": "1"})
    return go_to(console.request, f"{console.url('deliveries', webhook_id)}?{query}")


def _rotate(console: Console, webhook_id: str) -> dict[str, Any]:
    secret = console.api("POST", path_of(webhook_id, "rotate-secret"))["secret"]
    return {"secret": secret, "notice": "The secret is rotated. The old one also signs for 24 hours."}


def _recover(console: Console, webhook_id: str) -> dict[str, Any]:
    since = forms.moment_of(console.request.POST.get("since", ""))
    done = console.api("POST", path_of(webhook_id, "recover"), {"since": since})
    more = " The others follow." if done["more"] else ""
    return {"notice": f"Queued for redelivery: {done['deliveries']}.{more}"}


def _delete(console: Console, webhook_id: str) -> HttpResponse:
    console.api("DELETE", path_of(webhook_id))
    return go_to(console.request, console.url("webhooks"))


def _create(console: Console) -> HttpResponse:
    made = console.api("POST", "/v1/webhooks", forms.read(_NEW, console.request.POST))
    console.done = {"secret": made["secret"], "notice": "The webhook is created."}
    response = _show(console, made)
    response["HX-Push-Url"] = console.url("webhook", made["id"])
    return response


@page("webhooks", {"new": _create})
def webhooks(console: Console) -> HttpResponse:
    context = {
        "webhooks": console.listed("/v1/webhooks"),
        "form": forms.form_of(console, "new", _NEW, {"events": [_example(console)]}),
    }
    return console.render("console/webhooks.html", context)


_CHANGES: Final[dict[str, Change]] = {
    "edit": _edit,
    "disable": _disable,
    "enable": _enable,
    "test": _test,
    "rotate": _rotate,
    "recover": _recover,
    "delete": _delete,
}


@page("webhooks", _CHANGES)
def webhook(console: Console, webhook_id: str) -> HttpResponse:
    return _show(console, console.api("GET", path_of(webhook_id)))


def _show(console: Console, found: dict[str, Any]) -> HttpResponse:
    form = forms.form_of(console, "edit", _ALL, found, seen=found["updated_at"])
    return render(console, "console/webhook.html", found, {"form": form, "here": console.url("webhook", found["id"])})
