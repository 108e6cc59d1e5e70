from collections.abc import Sequence
from typing import Any, Final

from django.db.models import Prefetch, QuerySet, prefetch_related_objects
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django_filters import FilterSet
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin

from platform_site import outbound
from platform_site.http import fields
from platform_site.http.errors import Forbidden, ValidationFailed
from platform_site.http.fields import Serializer
from platform_site.http.filters import Filter
from platform_site.http.generics import ResourceViewSet, UnpagedList
from platform_site.http.idempotency import idempotent, in_region
from platform_site.http.views import ApiViewSet, created, no_content, no_store, respond
from rows.outbox import event_types
from rows.query import schema_cache
from webhooks.api import serializers
from webhooks.errors import NoSuchWebhook
from webhooks.managers import WebhookQuerySet
from webhooks.models import Attempt, Delivery, Webhook
from webhooks.subscriptions import schema_check
from webhooks.subscriptions import service as webhook_service
from webhooks.subscriptions.schema_check import Selection

TRIES_SHOWN: Final = 20
"""A delivery may have up to a thousand attempts."""


def _resolve_url(view: ApiViewSet) -> None:
    """Outside of the transaction, since it may wait for a name server."""
    body = view.request.data
    url = body.get("url") if isinstance(body, dict) else None
    if isinstance(url, str):
        try:
            url = outbound.parse_url(url).url
        except outbound.BadUrl:
            return
        outbound.check_url(url)


@extend_schema_view(
    list=extend_schema(
        description="Every webhook of the environment with the success rate of its last 100 deliveries, the newest "
        "first."
    ),
    retrieve=extend_schema(description="One webhook."),
)
class WebhookViewSet(ListModelMixin, RetrieveModelMixin, ResourceViewSet):
    long_floats = "refused"
    required_scopes = {
        **dict.fromkeys(("list", "retrieve"), "webhooks:read"),
        **dict.fromkeys(("create", "partial_update"), ("webhooks:write", "rows:read")),
        **dict.fromkeys(("destroy", "test", "rotate_secret", "recover"), "webhooks:write"),
    }
    lookup_url_kwarg = "webhook_id"
    not_found = NoSuchWebhook
    pagination_class = UnpagedList

    def get_queryset(self) -> WebhookQuerySet:
        return Webhook.objects.of(self.environment).with_health().order_by("-created_at", "-id")

    def get_serializer_class(self) -> type[Serializer]:
        return serializers.ListedWebhook if self.action == "list" else serializers.WebhookDetail

    @idempotent(using=in_region, before=_resolve_url)
    @extend_schema(request=serializers.NewWebhook, responses={201: serializers.WebhookWithSecret})
    def create(self, request: HttpRequest) -> HttpResponseBase:
        """Subscribe a URL to events. The signing secret is in this answer and in no other.

        Events of function runs need `functions:read` too, `webhook.disabled` `webhooks:read`, and `*` both."""
        values = self.read(serializers.NewWebhook)
        self._require_access_to(values["events"])
        self._check(Selection(values["events"], values.get("filter"), values.get("columns")))
        webhook, secret = webhook_service.create_webhook(self.environment, values, actor=self.caller)
        shown = self.get_serializer(self.get_queryset().get(pk=webhook.pk)).data
        return no_store(created(f"/v1/webhooks/{webhook.pk}", shown | {"secret": secret}))

    @idempotent(using=in_region, before=_resolve_url)
    @extend_schema(request=serializers.WebhookChanges)
    def partial_update(self, request: HttpRequest, webhook_id: str) -> HttpResponseBase:
        """Change a webhook. Disabling it holds its events; enabling it sends what was held, unless `held` is `drop`.

        Events of function runs need `functions:read` too, `webhook.disabled` `webhooks:read`, and `*` both."""
        webhook = webhook_service.webhook_of(self.environment, webhook_id)
        values = self.read(serializers.WebhookChanges)
        held = values.pop("held", "release")
        # A new URL also redirects the deliveries that are already queued, so the caller needs the right to read those
        # events.
        self._require_access_to([*webhook.events, *values.get("events", [])])
        if {"events", "filter", "columns"} & values.keys():
            filter, columns = values.get("filter", webhook.filter), values.get("columns", webhook.columns)
            self._check(Selection(values.get("events", webhook.events), filter, columns))
        webhook_service.change_webhook(self.environment, webhook_id, values, held=held, actor=self.caller)
        return respond(self.get_serializer(self.get_object()).data)

    @extend_schema(responses={204: None})
    def destroy(self, request: HttpRequest, webhook_id: str) -> HttpResponseBase:
        """Stop deliveries and delete the webhook. Deliveries already in flight still complete."""
        webhook_service.delete_webhook(self.environment, webhook_id, actor=self.caller)
        return no_content()

    @idempotent(using=in_region)
    @extend_schema(request=None, responses={202: serializers.TestSent})
    def test(self, request: HttpRequest, webhook_id: str) -> HttpResponseBase:
        """Send a `webhook.test` event to this webhook alone."""
        return respond({"event_id": webhook_service.send_test(self.environment, webhook_id, actor=self.caller)}, 202)

    @idempotent(using=in_region)
    @extend_schema(operation_id="rotateWebhookSecret", request=None, responses=serializers.WebhookWithSecret)
    def rotate_secret(self, request: HttpRequest, webhook_id: str) -> HttpResponseBase:
        """Make a new signing secret. The old one signs beside it for 24 hours; 409 while four old ones
        still sign."""
        secret = webhook_service.rotate_secret(self.environment, webhook_id, actor=self.caller)
        return no_store(respond(self.get_serializer(self.get_object()).data | {"secret": secret}))

    @idempotent(using=in_region)
    @extend_schema(request=serializers.Recovery, responses={202: serializers.Recovered})
    def recover(self, request: HttpRequest, webhook_id: str) -> HttpResponseBase:
        """Send again the deliveries that failed since a moment. `deliveries` are on their way at once; where there are
        `more`, they follow."""
        webhook_service.webhook_of(self.environment, webhook_id)
        since = self.read(serializers.Recovery)["since"]
        recovery = webhook_service.recover(self.environment, webhook_id, since, actor=self.caller)
        return respond({"deliveries": recovery.count, "more": not recovery.is_all}, 202)

    def _require_access_to(self, patterns: Sequence[str]) -> None:
        for scope, events in event_types.scopes_of(patterns).items():
            if not self.caller.may(scope):
                named = " and ".join(events)
                raise Forbidden(f"This needs the scope {scope} besides webhooks:write, for {named} (* is every event).")

    def _check(self, selection: Selection) -> None:
        if wrong := schema_check.errors(schema_cache.current(self.environment), selection):
            raise ValidationFailed(fields=wrong)


class DeliveryFilter(FilterSet):  # type: ignore[misc]  # the library is not typed
    event_id = Filter(fields.CharField(allow_blank=True, trim_whitespace=False))
    status = Filter(
        fields.ChoiceField(
            choices=Delivery.Status.values, error_messages={"invalid_choice": "status must be one of {choices}."}
        )
    )


@extend_schema_view(
    list=extend_schema(
        operation_id="listDeliveries",
        description="What became of this webhook's events, the newest first: delivered, pending with the time of the "
        "next attempt, held, filtered, dropped or exhausted.",
    )
)
class DeliveryViewSet(ListModelMixin, ResourceViewSet):
    required_scopes = {"list": "webhooks:read", "redeliver": "webhooks:write"}
    serializer_class = serializers.DeliveryShape
    filterset_class = DeliveryFilter
    cursor_kind, ordering = "deliveries", ("-created_at", "-id")

    def get_queryset(self) -> QuerySet[Delivery]:
        webhook = webhook_service.webhook_of(self.environment, self.kwargs["webhook_id"])
        deliveries = Delivery.objects.using(self.environment.cluster).filter(webhook=webhook).defer("body")
        return deliveries.prefetch_related(self._last_tries())

    @idempotent(using=in_region)
    @extend_schema(request=None, responses={202: serializers.DeliveryShape})
    def redeliver(self, request: HttpRequest, webhook_id: str, delivery_id: str) -> HttpResponseBase:
        """Send one delivery again, with the same id and body."""
        delivery = webhook_service.redeliver(self.environment, webhook_id, delivery_id, actor=self.caller)
        prefetch_related_objects([delivery], self._last_tries())
        return respond(self.get_serializer(delivery).data, 202)

    def _last_tries(self) -> "Prefetch[Any]":
        tries = Attempt.objects.using(self.environment.cluster).defer("response_headers", "response_body")
        return Prefetch("tries", tries.order_by("-number")[:TRIES_SHOWN], to_attr="last_tries")
