"""The console's pages of webhooks and deliveries: what became of every event, and the buttons to do something about it.

Webhooks live in the region of their environment (`projects.console.base`). Secrets are on no page but the one that
answers a rotation.
"""

from datetime import UTC, datetime
from typing import Any

import orjson
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse

from accounts.console.base import staff, url_of
from platform_site.http import exact_json
from platform_site.http.errors import ValidationFailed
from platform_site.identity import call_depth, ids
from platform_site.identity.callers import EnvironmentRef
from projects.console.base import (
    AdminAction,
    RegionAdmin,
    RegionUnavailable,
    console_url,
    found_anywhere,
    list_url,
    listed,
    query_with,
)
from projects.console.counts import bounded_count
from projects.console.texts import readable
from rows.outbox.models import OutboxEvent
from webhooks.delivery.attempts import USER_AGENT
from webhooks.managers import HEALTH_WINDOW
from webhooks.models import Attempt, Delivery, Webhook
from webhooks.subscriptions import health
from webhooks.subscriptions import service as webhook_service

ATTEMPTS_SHOWN = 100
"""The latest of a delivery, with what the receiver said each time."""
_TEST = AdminAction("Send a test event")
_ROTATE = AdminAction(
    "Rotate the secret",
    "The new signing secret is shown once. For 24 hours deliveries are signed with the old one as well.",
)
_RECOVER = AdminAction(
    "Send again", "Every delivery of events since then that did not arrive is sent again, now.", has_form=True
)
_DISABLE = AdminAction(
    "Disable", "Nothing is sent any more. Events are held for up to 7 days and sent when it is enabled.", danger=True
)
_ENABLE = AdminAction("Enable", "What was held is sent now, in its order.")
_ENABLE_DROPPING = AdminAction(
    "Enable, drop what is held", "The events that were held are dropped for good: they show up as dropped.", danger=True
)
_DELETE = AdminAction(
    "Delete", "No attempt starts any more. The webhook and its deliveries are gone for good.", danger=True, typed=True
)


@admin.register(Webhook)
class WebhookAdmin(RegionAdmin):
    title = "Webhooks"
    id_prefix = "wh"
    list_template = "admin/webhooks/webhooks.html"
    thing_template = "admin/webhooks/webhook.html"

    def is_there(self, thing: Webhook) -> bool:
        return thing.deleted_at is None

    def name_of(self, thing: Webhook) -> str:
        return thing.pk

    def list_context(self, request: HttpRequest, place: EnvironmentRef) -> dict[str, Any]:
        found = Webhook.objects.using(place.cluster).live(place.environment_id).with_health().with_tries()
        return {
            "page": listed(request, found, ["-created_at", "-id"], "webhooks", [place.environment_id]),
            "first_query": query_with(request),
        }

    def thing_context(self, request: HttpRequest, place: EnvironmentRef, thing: Webhook) -> dict[str, Any]:
        using = place.cluster
        webhook = Webhook.objects.using(using).with_health().get(pk=thing.pk)
        deliveries = Delivery.objects.using(using).filter(webhook=webhook)
        tried = _tried(deliveries)
        times = sorted(each.duration_ms for each in tried if each.duration_ms is not None)
        return {
            "webhook": webhook,
            "filter": None if webhook.filter is None else exact_json.dumps(webhook.filter, indent=True),
            "columns": None if webhook.columns is None else exact_json.dumps(webhook.columns, indent=True),
            "bars": health.bars(tried, HEALTH_WINDOW),
            "grid": health.grid(),
            "picture": {"width": health.WIDTH, "height": health.HEIGHT},
            "median_ms": times[len(times) // 2] if times else None,
            "slow_ms": times[min(len(times) - 1, len(times) * 95 // 100)] if times else None,
            "counts": [
                (status, bounded_count(deliveries.filter(status=status)))
                for status in ("pending", "held", "exhausted", "dropped", "filtered")
            ],
            "latest": deliveries.defer("body").order_by("-created_at", "-id")[:10],
        }

    def verbs_of(self, thing: Webhook) -> dict[str, AdminAction]:
        if thing.enabled:
            return {
                "test": _TEST, "rotate": _ROTATE, "recover": _RECOVER, "disable": _DISABLE, "delete": _DELETE,
            }  # fmt: skip
        return {"enable": _ENABLE, "enable_dropping": _ENABLE_DROPPING, "rotate": _ROTATE, "delete": _DELETE}

    def act(self, request: HttpRequest, place: EnvironmentRef, thing: Webhook, verb: str) -> HttpResponse | str:
        actor = staff(request)
        match verb:
            case "test":
                event_id = webhook_service.send_test(place, thing.pk, actor=actor)
                self.message_user(request, "A test event is on its way. This is what becomes of it.", messages.SUCCESS)
                return HttpResponseRedirect(_event_url(place, event_id))
            case "rotate":
                _, secret = webhook_service.rotate_secret(place, thing.pk, actor=actor)
                return self._secret_once(request, place, thing, secret)
            case "recover":
                since = _moment(request.POST.get("since", ""))
                recovery = webhook_service.recover(place, thing.pk, since, actor=actor)
                if recovery.count == 0 and recovery.is_all:
                    return "Nothing was lost since then."
                return f"{recovery.count} deliveries are sent again{'' if recovery.is_all else ', and more follow'}."
            case "disable":
                webhook_service.change_webhook(place, thing.pk, {"enabled": False}, actor=actor)
                return "The webhook is disabled. Its events are held."
            case "enable":
                webhook_service.change_webhook(place, thing.pk, {"enabled": True}, actor=actor)
                return "The webhook is enabled. What was held is being sent."
            case "enable_dropping":
                webhook_service.change_webhook(place, thing.pk, {"enabled": True}, held="drop", actor=actor)
                return "The webhook is enabled. What was held is dropped, and nothing of it sent."
            case _:
                webhook_service.delete_webhook(place, thing.pk, actor=actor)
                self.message_user(request, f"{thing.pk} is deleted.", messages.SUCCESS)
                return HttpResponseRedirect(self.list_address(environment=place.environment_id))

    def _secret_once(self, request: HttpRequest, place: EnvironmentRef, thing: Webhook, secret: str) -> HttpResponse:
        context = self.frame(request, place, "The new signing secret") | {
            "webhook": thing,
            "secret": secret,
            "back": url_of("webhooks_webhook", thing.pk),
        }
        page = TemplateResponse(request, "admin/webhooks/secret.html", context)
        page.headers["Cache-Control"] = "no-store"
        return page


@admin.register(Delivery)
class DeliveryAdmin(RegionAdmin):
    title = "Deliveries"
    id_prefix = "dlv"
    list_template = "admin/webhooks/deliveries.html"
    thing_template = "admin/webhooks/delivery.html"
    shows_tenants_data = "delivery.viewed"

    def name_of(self, thing: Delivery) -> str:
        return thing.pk

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """As for all lists; `?q=evt_…` leads to what became of that event, in whichever region it happened."""
        sought = request.GET.get("q", "").strip()
        if ids.matches("evt", sought):
            if not self.has_view_permission(request):
                raise PermissionDenied
            try:
                place = _place_of_event(sought)
            except RegionUnavailable as error:
                return self.away(request, error)
            if place is not None:
                return HttpResponseRedirect(self.list_address(environment=place, event=sought))
            self.message_user(
                request,
                "No outbox has this event any more. Choose its environment, and look among the deliveries.",
                messages.WARNING,
            )
            return HttpResponseRedirect(self.list_address())
        return super().changelist_view(request, extra_context)

    def list_context(self, request: HttpRequest, place: EnvironmentRef) -> dict[str, Any]:
        """The newest first: by the index on a webhook's deliveries, or the environment's by its events."""
        using = place.cluster
        asked = {name: request.GET.get(name, "").strip()[:64] for name in ("webhook", "status", "event")}
        found = Delivery.objects.using(using).filter(environment_id=place.environment_id).defer("body")
        order = ["-event_id", "-id"]
        if asked["webhook"]:
            found = found.filter(webhook_id=asked["webhook"])
            order = ["-created_at", "-id"]
        if asked["event"]:
            found = found.filter(event_id=asked["event"])
        if asked["status"] in Delivery.Status.values:
            found = found.filter(status=asked["status"])
        context: dict[str, Any] = {
            "asked": asked,
            "statuses": Delivery.Status.values,
            "webhooks": Webhook.objects.using(using).live(place.environment_id).order_by("-created_at", "-id"),
            "page": listed(
                request,
                found.select_related("webhook"),
                order,
                "deliveries",
                [place.environment_id, *asked.values()],
            ),
            "first_query": query_with(request),
        }
        if ids.matches("evt", asked["event"]):
            context["event"] = (
                OutboxEvent.objects.using(using)
                .filter(event_id=asked["event"], environment_id=place.environment_id)
                .defer("data")
                .first()
            )
            context["is_event"] = True
        return context

    def thing_context(self, request: HttpRequest, place: EnvironmentRef, thing: Delivery) -> dict[str, Any]:
        return {
            "delivery": thing,
            "webhook": thing.webhook,
            "payload": readable(thing.body),
            "filter": readable(orjson.dumps(thing.webhook.filter).decode() if thing.webhook.filter else ""),
            "sent_headers": [
                ("content-type", "application/json"),
                ("user-agent", USER_AGENT),
                ("webhook-id", thing.event_id),
                ("webhook-timestamp", "made for each attempt"),
                ("webhook-signature", "made for each attempt; not kept"),
                (call_depth.HEADER.lower(), f"{thing.depth + 1}, signed"),
            ],
            "attempts": [
                (each, sorted(each.response_headers.items()))
                for each in Attempt.objects.using(place.cluster)
                .filter(delivery=thing)
                .order_by("-number")[:ATTEMPTS_SHOWN]
            ],
            "event_address": _event_url(place, thing.event_id),
            "row_address": _row_url(place, thing.subject),
        }

    def verbs_of(self, thing: Delivery) -> dict[str, AdminAction]:
        can_be_sent = thing.body and thing.webhook.enabled and thing.webhook.deleted_at is None
        return {"redeliver": AdminAction("Redeliver")} if can_be_sent else {}

    def act(self, request: HttpRequest, place: EnvironmentRef, thing: Delivery, verb: str) -> str:
        webhook_service.redeliver(place, thing.webhook_id, thing.pk, actor=staff(request))
        return "It is sent again, with its old id and body."


def _tried(deliveries: "QuerySet[Delivery]") -> list[health.Tried]:
    """The last deliveries that were attempted, the oldest first: what `success_rate` looks at. One query."""
    latest = Attempt.objects.using(deliveries.db).filter(delivery=OuterRef("pk")).order_by("-number")
    found = (
        deliveries.filter(last_attempt_at__isnull=False)
        .annotate(took=Subquery(latest.values("duration_ms")[:1]))
        .order_by("-last_attempt_at")
        .values_list("pk", "last_attempt_at", "has_succeeded", "took", "outcome")[:HEALTH_WINDOW]
    )
    return [
        health.Tried(pk, at, bool(succeeded), took, outcome or "")
        for pk, at, succeeded, took, outcome in reversed(found)
        if at is not None
    ]


def _place_of_event(event_id: str) -> str | None:
    """The environment of an event that some region's outbox still has."""
    event = found_anywhere(OutboxEvent, event_id, "evt", field="event_id")
    return None if event is None else event.environment_id


def _event_url(place: EnvironmentRef, event_id: str) -> str:
    return list_url("webhooks.Delivery", environment=place.environment_id, event=event_id)


def _row_url(place: EnvironmentRef, subject: str | None) -> str | None:
    """The page of the table that an event is about."""
    table, _, row_id = (subject or "").partition("/")
    return console_url(place.project_id, place.environment_id, "table", table) if row_id else None


def _moment(text: str) -> datetime:
    """What an `<input type="datetime-local">` sends, read as UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValidationFailed("Say since when: a date and a time, in UTC.") from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
