import re
from contextlib import suppress
from dataclasses import replace
from itertools import chain, count
from typing import Any, Final
from urllib.parse import urlsplit

from django.db.models import Exists, OuterRef
from django.http import HttpResponse
from django.utils.http import urlencode

from platform_site.developer_console import forms
from platform_site.developer_console.api_calls import path_to
from platform_site.developer_console.forms import Field
from platform_site.developer_console.frame import Action, Console, go_to, operation, page
from platform_site.developer_console.staff import grants as staff
from platform_site.developer_console.tables.pages import schema_tables
from platform_site.developer_console.webhooks.payloads import payload_of
from platform_site.http.errors import ApiError, NotFound
from webhooks.models import Delivery, Webhook
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
    Field("name", "Name", help="Merges match webhooks by name. Empty: the host of the URL."),
    Field("description", "Description"),
)
_ALL: Final = (
    *(replace(each, help="Merges match webhooks by name.") if each.name == "name" else each for each in _NEW),
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
_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9_-]+")
_HOST_LENGTH: Final = 38  # of a name's 48 characters
_TABS: Final = {"webhook": "Settings", "deliveries": "Deliveries"}


def _render(console: Console, template: str, webhook: dict[str, Any], context: dict[str, Any]) -> HttpResponse:
    return console.render(template, {"webhook": webhook, "tabs": console.tabs(_TABS, webhook["id"]), **context})


def _example(console: Console) -> str:
    with suppress(ApiError):
        for table in schema_tables(console):
            return f"{table}.*"
    return "*"


def _edit(console: Console, webhook_id: str) -> dict[str, Any]:
    body = forms.read(_ALL, console.request.POST)
    body["name"] = body["name"] or None
    forms.refuse_stale(console, _ALL, console.api("GET", path_to("webhooks", webhook_id)))
    console.api("PATCH", path_to("webhooks", webhook_id), body)
    return {"notice": "The webhook is saved."}


def _disable(console: Console, webhook_id: str) -> dict[str, Any]:
    if not staff.stop(console.client, webhook_service.change_webhook, webhook_id, {"enabled": False}):
        console.api("PATCH", path_to("webhooks", webhook_id), {"enabled": False})
    return {"notice": "The webhook is disabled. Its events are held for 7 days."}


def _enable(console: Console, webhook_id: str) -> dict[str, Any]:
    held = "drop" if console.request.POST.get("held") == "drop" else "release"
    console.api("PATCH", path_to("webhooks", webhook_id), {"enabled": True, "held": held})
    done = "dropped" if held == "drop" else "delivered now"
    return {"notice": f"The webhook is enabled. Events that were held are {done}."}


def _test(console: Console, webhook_id: str) -> HttpResponse:
    event_id = console.api("POST", path_to("webhooks", webhook_id, "test"))["event_id"]
    query = urlencode({"event_id": event_id, "sent": "1"})
    return go_to(console.request, f"{console.url('deliveries', webhook_id)}?{query}")


def _rotate(console: Console, webhook_id: str) -> dict[str, Any]:
    secret = console.api("POST", path_to("webhooks", webhook_id, "rotate-secret"))["secret"]
    return {"secret": secret, "notice": "The secret is rotated. The old one also signs for 24 hours."}


def _recover(console: Console, webhook_id: str) -> dict[str, Any]:
    since = forms.moment_of(console.request.POST.get("since", ""))
    done = console.api("POST", path_to("webhooks", webhook_id, "recover"), {"since": since})
    more = " The others follow." if done["more"] else ""
    return {"notice": f"Queued for redelivery: {done['deliveries']}.{more}"}


def _create(console: Console) -> HttpResponse:
    body = forms.read(_NEW, console.request.POST)
    body["name"] = body["name"] or _free_name(console, body["url"])
    made = console.api("POST", "/v1/webhooks", body)
    console.done = {"secret": made["secret"], "notice": "The webhook is created."}
    response = _show(console, made)
    response["HX-Push-Url"] = console.url("webhook", made["id"])
    return response


def _free_name(console: Console, url: str) -> str | None:
    """From the host, with a number if another webhook has that name."""
    try:
        host = urlsplit(url).netloc.rpartition("@")[2].lower()
    except ValueError:
        return None
    name = _NOT_IN_NAMES.sub("-", host).strip("-")[:_HOST_LENGTH]
    if not name:
        return None
    name = name if name[0].isalpha() and not name.startswith("wh_") else f"host-{name}"
    taken = set(Webhook.objects.of(console.ref).filter(name__startswith=name).values_list("name", flat=True))
    return next(each for each in chain([name], (f"{name}-{number}" for number in count(2))) if each not in taken)


def _attempted(console: Console, found: list[dict[str, Any]]) -> set[str]:
    """The ids of those with an attempted delivery: before the first, the API's success rate is 1."""
    tried = Delivery.objects.filter(webhook=OuterRef("pk"), last_attempt_at__isnull=False)
    of_these = Webhook.objects.using(console.ref.cluster).filter(pk__in=[each["id"] for each in found])
    return set(of_these.filter(Exists(tried)).values_list("pk", flat=True))


@page("webhooks", {"new": _create})
def webhooks(console: Console) -> HttpResponse:
    found = console.listed("/v1/webhooks")
    context = {
        "webhooks": found,
        "attempted": _attempted(console, found),
        "form": forms.form_of(console, "new", _NEW, {"events": [_example(console)]}),
    }
    return console.render("console/webhooks.html", context)


_ACTIONS: Final[dict[str, Action]] = {
    "edit": _edit,
    "disable": _disable,
    "enable": _enable,
    "test": _test,
    "rotate": _rotate,
    "recover": _recover,
    "delete": operation("DELETE", "webhooks/:webhook_id", next_page="webhooks"),
}


@page("webhooks", _ACTIONS)
def webhook(console: Console, webhook_id: str) -> HttpResponse:
    return _show(console, console.api("GET", path_to("webhooks", webhook_id)))


def _show(console: Console, found: dict[str, Any]) -> HttpResponse:
    form = forms.edit_form_of(console, "edit", _ALL, found)
    context = {"form": form, "here": console.url("webhook", found["id"]), "attempted": _attempted(console, [found])}
    return _render(console, "console/webhook.html", found, context)


_REDELIVER: Final = operation(
    "POST", "webhooks/:webhook_id/deliveries/:delivery/redeliver", "Delivery queued for redelivery."
)


@page("webhooks", {"redeliver": _REDELIVER})
def deliveries(console: Console, webhook_id: str) -> HttpResponse:
    request = console.request
    webhook = console.api("GET", path_to("webhooks", webhook_id))
    if request.method == "GET" and "sent" in request.GET:
        console.done["notice"] = "Test event sent. Status below."
    filters = console.filters("status", "event_id")
    found = console.filtered_page(path_to("webhooks", webhook_id, "deliveries"), filters | {"limit": "50"})
    # Reload while an attempt is pending, or the URL's event has no delivery yet.
    is_pending = any(each["status"] == "pending" and not each["attempts"] for each in found["data"])
    context = {
        "filters": filters,
        "statuses": Delivery.Status.values,
        "deliveries": found["data"],
        "is_open": "cursor" not in request.GET and (is_pending if found["data"] else "event_id" in filters),
    }
    return _render(console, "console/deliveries.html", webhook, context)


@page("webhooks")
def delivery(console: Console, webhook_id: str, delivery_id: str) -> HttpResponse:
    webhook = console.api("GET", path_to("webhooks", webhook_id))
    stored = Delivery.objects.using(console.ref.cluster).filter(pk=delivery_id, webhook_id=webhook["id"]).first()
    found = (
        console.listed(path_to("webhooks", webhook_id, "deliveries"), {"event_id": stored.event_id}) if stored else []
    )
    if stored is None or not found:  # perhaps deleted in between
        raise NotFound("There is no such delivery of this webhook.")
    text, missing = payload_of(console, stored)
    context = {"delivery": found[0], "payload": {"text": text, "missing": missing}}
    return _render(console, "console/delivery.html", webhook, context)
