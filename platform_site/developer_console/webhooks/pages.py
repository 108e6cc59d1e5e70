from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

from django.http import HttpResponse
from django.utils.http import urlencode

from platform_site.developer_console import forms
from platform_site.developer_console.api_calls import Refused
from platform_site.developer_console.forms import Field, Form
from platform_site.developer_console.frame import Console, go_to, page
from platform_site.developer_console.staff import grants as staff
from platform_site.developer_console.tables.pages import schema_tables
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
TABS: Final = (("webhook", "Settings"), ("deliveries", "Deliveries"))


def path_of(webhook_id: str, *rest: str) -> str:
    return "/".join(["/v1/webhooks", *(quote(part, safe="") for part in (webhook_id, *rest))])


def render(
    console: Console, template: str, webhook: dict[str, Any], context: dict[str, Any], status: int = 200
) -> HttpResponse:
    tabs = [(console.url(url, webhook["id"]), title) for url, title in TABS]
    return console.render(template, {"webhook": webhook, "tabs": tabs, **context}, status)


@page("webhooks")
def webhooks(console: Console) -> HttpResponse:
    asked, refusal, status = console.request.POST, None, 200
    if console.request.method == "POST":
        try:
            made = console.api("POST", "/v1/webhooks", _values(asked, ("url", "events", "description"))).data
            response = _show(console, made, {"secret": made["secret"], "notice": "The webhook is created."})
            response["HX-Push-Url"] = console.url("webhook", made["id"])
            return response
        except Refused as error:
            refusal, status = error, error.status
    found = console.api("GET", "/v1/webhooks").data["data"]
    form = Form("new", _NEW, {"events": _example(console)}, refusal, asked if refusal else None)
    return console.render("console/webhooks.html", {"webhooks": found, "form": form}, status)


def _example(console: Console) -> str:
    try:
        first = next(iter(schema_tables(console)), None)
    except Refused:
        first = None
    return f"{first}.*" if first else "*"


def _values(asked: Any, names: tuple[str, ...]) -> dict[str, Any]:
    body: dict[str, Any] = {}
    for name in names:
        text = asked.get(name, "")
        if name == "events":
            body[name] = forms.lines_of(text)
        elif name in ("filter", "columns"):
            body[name] = forms.json_of(text, name)
        else:
            body[name] = text.strip()
    if "name" in body:
        body["name"] = body["name"] or None
    return body


def _shown_values(webhook: dict[str, Any]) -> dict[str, Any]:
    return webhook | {
        "name": webhook["name"] or "",
        "events": "\n".join(webhook["events"]),
        "filter": forms.json_text(webhook["filter"]),
        "columns": forms.json_text(webhook["columns"]),
    }


@page("webhooks")
def webhook(console: Console, webhook_id: str) -> HttpResponse:
    context: dict[str, Any] = {}
    status = 200
    what = console.request.POST.get("what", "")
    if console.request.method == "POST":
        try:
            context = _CHANGES.get(what, forms.unknown)(console, webhook_id)
        except Refused as refusal:
            if refusal.status == 404:
                raise
            context, status = {"refusal": refusal, "failed": what}, refusal.status
        if "go" in context:
            return go_to(console.request, context["go"])
    return _show(console, console.api("GET", path_of(webhook_id)).data, context, status)


def _show(console: Console, found: dict[str, Any], context: dict[str, Any], status: int = 200) -> HttpResponse:
    failed = context.get("failed") == "edit"
    form = Form(
        "edit",
        _ALL,
        _shown_values(found),
        context.get("refusal") if failed else None,
        console.request.POST if failed else None,
    )
    here = console.url("webhook", found["id"])
    return render(console, "console/webhook.html", found, {"form": form, "here": here, **context}, status)


def _edit(console: Console, webhook_id: str) -> dict[str, Any]:
    asked = console.request.POST
    body = _values(asked, tuple(each.name for each in _ALL))
    forms.refuse_stale(console, asked.get("seen"), console.api("GET", path_of(webhook_id)).data["updated_at"])
    console.api("PATCH", path_of(webhook_id), body)
    return {"notice": "The webhook is saved."}


def _disable(console: Console, webhook_id: str) -> dict[str, Any]:
    if staff.may_stop(console.client):
        staff.stop(console.client, webhook_service.change_webhook, webhook_id, {"enabled": False})
    else:
        console.api("PATCH", path_of(webhook_id), {"enabled": False})
    return {"notice": "The webhook is disabled. Its events are held for 7 days."}


def _enable(console: Console, webhook_id: str) -> dict[str, Any]:
    held = "drop" if console.request.POST.get("held") == "drop" else "release"
    console.api("PATCH", path_of(webhook_id), {"enabled": True, "held": held})
    done = "dropped" if held == "drop" else "delivered now"
    return {"notice": f"The webhook is enabled. Events that were held are {done}."}


def _test(console: Console, webhook_id: str) -> dict[str, Any]:
    event_id = console.api("POST", path_of(webhook_id, "test")).data["event_id"]
    query = urlencode({"event_id": event_id, "sent": "1"})
    return {"go": f"{console.url('deliveries', webhook_id)}?{query}"}


def _rotate(console: Console, webhook_id: str) -> dict[str, Any]:
    secret = console.api("POST", path_of(webhook_id, "rotate-secret")).data["secret"]
    return {"secret": secret, "notice": "The secret is rotated. The old one also signs for 24 hours."}


def _recover(console: Console, webhook_id: str) -> dict[str, Any]:
    since = forms.moment_of(console.request.POST.get("since", ""))
    done = console.api("POST", path_of(webhook_id, "recover"), {"since": since}).data
    more = " The others follow." if done["more"] else ""
    return {"notice": f"Queued for redelivery: {done['deliveries']}.{more}"}


def _delete(console: Console, webhook_id: str) -> dict[str, Any]:
    console.api("DELETE", path_of(webhook_id))
    return {"go": console.url("webhooks")}


_CHANGES: Final[dict[str, Callable[[Console, str], dict[str, Any]]]] = {
    "edit": _edit,
    "disable": _disable,
    "enable": _enable,
    "test": _test,
    "rotate": _rotate,
    "recover": _recover,
    "delete": _delete,
}
