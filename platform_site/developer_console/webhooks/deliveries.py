from typing import Any, Final

from django.http import HttpResponse
from django.utils.http import urlencode

from platform_site.developer_console.api_calls import Refused
from platform_site.developer_console.frame import Console, page
from platform_site.developer_console.webhooks.pages import path_of, render

STATUSES: Final = ("pending", "delivered", "exhausted", "held", "filtered", "dropped")


@page("webhooks")
def deliveries(console: Console, webhook_id: str) -> HttpResponse:
    request = console.request
    context: dict[str, Any] = {}
    status = 200
    webhook = console.api("GET", path_of(webhook_id)).data
    if request.method == "POST":
        delivery = request.POST.get("delivery", "")
        try:
            console.api("POST", path_of(webhook_id, "deliveries", delivery, "redeliver"))
            context["notice"] = "Delivery queued for redelivery."
        except Refused as refusal:
            context["refusal"], status = refusal, refusal.status
    elif "sent" in request.GET:
        context["notice"] = "Test event sent. Status below."
    asked = {key: request.GET[key].strip() for key in ("status", "event_id", "cursor") if request.GET.get(key)}
    try:
        found = console.api("GET", path_of(webhook_id, "deliveries"), query=asked | {"limit": "50"}).data
    except Refused as refusal:
        if refusal.status != 422:
            raise
        found = {"data": [], "next_cursor": None}
        context["refusal"], status = refusal, refusal.status
    following = asked | {"cursor": found["next_cursor"]} if found["next_cursor"] else None
    context |= {
        "asked": asked,
        "statuses": STATUSES,
        "deliveries": found["data"],
        "next": f"?{urlencode(following)}" if following else None,
        "is_open": _is_open(found["data"], asked),
    }
    return render(console, "console/deliveries.html", webhook, context, status)


def _is_open(found: list[dict[str, Any]], asked: dict[str, str]) -> bool:
    """Whether to reload: an attempt is pending, or the URL's event has no delivery yet."""
    if "cursor" in asked:
        return False
    if not found:
        return "event_id" in asked
    return any(each["status"] == "pending" and not each["attempts"] for each in found)
