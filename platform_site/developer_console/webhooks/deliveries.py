from typing import Any, Final

from django.http import HttpResponse

from platform_site.developer_console.frame import Console, operation, page
from platform_site.developer_console.webhooks.pages import path_of, render
from platform_site.developer_console.webhooks.payloads import payload_of
from platform_site.http.errors import NotFound, ValidationFailed
from webhooks.models import Delivery

STATUSES: Final = ("pending", "delivered", "exhausted", "held", "filtered", "dropped")


_REDELIVER: Final = operation(
    "POST", "webhooks/:webhook_id/deliveries/:delivery/redeliver", "Delivery queued for redelivery."
)


@page("webhooks", {"redeliver": _REDELIVER})
def deliveries(console: Console, webhook_id: str) -> HttpResponse:
    request = console.request
    webhook = console.api("GET", path_of(webhook_id))
    if request.method == "GET" and "sent" in request.GET:
        console.done["notice"] = "Test event sent. Status below."
    asked = {key: request.GET[key].strip() for key in ("status", "event_id") if request.GET.get(key)}
    try:
        found = console.page_of(path_of(webhook_id, "deliveries"), asked | {"limit": "50"})
    except ValidationFailed as refusal:
        found, console.refusal = {"data": []}, refusal
    context = {
        "asked": asked,
        "statuses": STATUSES,
        "deliveries": found["data"],
        "is_open": "cursor" not in request.GET and _is_open(found["data"], asked),
    }
    return render(console, "console/deliveries.html", webhook, context)


@page("webhooks")
def delivery(console: Console, webhook_id: str, delivery_id: str) -> HttpResponse:
    webhook = console.api("GET", path_of(webhook_id))
    stored = Delivery.objects.using(console.ref.cluster).filter(pk=delivery_id, webhook_id=webhook["id"]).first()
    found = console.listed(path_of(webhook_id, "deliveries"), {"event_id": stored.event_id}) if stored else []
    if stored is None or not found:  # perhaps deleted in between
        raise NotFound("There is no such delivery of this webhook.")
    context = {"delivery": found[0], "payload": payload_of(console, stored)}
    return render(console, "console/delivery.html", webhook, context)


def _is_open(found: list[dict[str, Any]], asked: dict[str, str]) -> bool:
    """Whether to reload: an attempt is pending, or the URL's event has no delivery yet."""
    if not found:
        return "event_id" in asked
    return any(each["status"] == "pending" and not each["attempts"] for each in found)
