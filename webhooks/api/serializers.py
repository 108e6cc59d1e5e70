from collections.abc import Iterator, Sequence
from typing import Any

from django.core.validators import RegexValidator
from rest_framework.exceptions import ValidationError

from platform_site import outbound
from platform_site.http import fields
from platform_site.http.errors import FieldError
from platform_site.http.fields import Serializer
from platform_site.identity.callers import EnvironmentRef
from rows.outbox import event_types
from rows.outbox.fields import EventsField
from rows.query import schema_cache
from rows.rules.principal import SERVER
from rows.rules.rules import InvalidRule
from rows.schema.identifiers import did_you_mean
from rows.schema.model import InvalidDocument
from webhooks.models import Delivery, Webhook
from webhooks.subscriptions import schema_check
from webhooks.subscriptions.schema_check import Selection

NAME = r"(?!wh_)[a-z][a-z0-9_-]{0,47}"


class UrlField(fields.CharField):
    """The URL for deliveries. The view checks the host, which may wait for a name server."""

    def __init__(self, **options: Any) -> None:
        super().__init__(max_length=2000, **options)

    def to_internal_value(self, data: Any) -> str:
        url: str = super().to_internal_value(data)
        try:
            return outbound.parse_url(url).url
        except outbound.BadUrl as error:
            raise ValidationError(str(error), error.code) from None


_VALID_NAME = RegexValidator(
    rf"\A{NAME}\Z", "Must be 1 to 48 of a-z, 0-9, _ and -, beginning with a letter, and not an id.", "invalid_name"
)


class NewWebhook(Serializer):
    name = fields.CharField(max_length=48, required=False, allow_null=True, validators=[_VALID_NAME])
    url = UrlField()
    events = EventsField()
    filter = fields.ObjectField(required=False, allow_null=True)
    columns = fields.ObjectField(required=False, allow_null=True)
    ordering = fields.ChoiceField(choices=Webhook.Ordering.values, required=False)
    description = fields.CharField(max_length=500, allow_blank=True, required=False)
    enabled = fields.BooleanField(required=False)


class WebhookChanges(NewWebhook):
    url = UrlField(required=False)
    events = EventsField(required=False)
    held = fields.ChoiceField(
        choices=["release", "drop"],
        required=False,
        help_text="With `enabled: true`: what to do with the events held while it was disabled.",
    )


class Recovery(Serializer):
    since = fields.DateTimeField(help_text="Deliveries of events since then that did not arrive are sent again.")


def event_warnings(
    environment: EnvironmentRef, patterns: Sequence[str], *, may_read_schema: bool
) -> Iterator[FieldError]:
    """One for each unknown table. To callers without `schema:read`, tables that role `server` cannot read are unknown,
    and no name is suggested."""
    if not any(map(event_types.table_of, patterns)):
        return
    compiled = schema_cache.current(environment)
    resolver = compiled.rules.resolver(SERVER)
    tables = [table for table in compiled.schema.tables if may_read_schema or resolver.columns(table)]
    for table in event_types.unknown_tables(patterns, tables):
        suggestion = did_you_mean(table, tables) if may_read_schema else ""
        yield FieldError("events", "no_such_table", f"There is no table {table}{suggestion or '.'}")


class ListedWebhook(Serializer):
    id = fields.CharField()
    name = fields.CharField(allow_null=True)
    url = fields.CharField()
    events = fields.ListField(child=fields.CharField())
    success_rate = fields.FloatField()
    enabled = fields.BooleanField()

    def to_representation(self, webhook: Webhook) -> dict[str, Any]:
        shown: dict[str, Any] = super().to_representation(webhook)
        if self.context["view"].caller.kind == "staff":
            shown["url"] = webhook.origin
        return shown


class WarningsField(fields.ListField):
    child = fields.WarningResponse()

    def get_attribute(self, webhook: Webhook) -> list[FieldError]:
        view = self.context["view"]
        may_read_schema = view.caller.may("schema:read")
        try:
            found = [*event_warnings(view.environment, webhook.events, may_read_schema=may_read_schema)]
            if webhook.filter or webhook.columns:
                compiled = schema_cache.current(view.environment)
                wrong = schema_check.errors(compiled, Selection(webhook.events, webhook.filter, webhook.columns))
                # Messages suggest names, which are for callers who may read the schema.
                hidden = "This is not valid for the schema."
                found += wrong if may_read_schema else [FieldError(it.field, it.code, hidden) for it in wrong]
        except (InvalidDocument, InvalidRule):  # stored by an earlier version: it keeps no webhook from being read
            return []
        return found


class WebhookDetail(ListedWebhook):
    filter = fields.ObjectField(allow_null=True)
    columns = fields.ObjectField(allow_null=True)
    ordering = fields.ChoiceField(choices=Webhook.Ordering.values)
    description = fields.CharField()
    disabled_reason = fields.CharField(allow_null=True)
    failing_since = fields.DateTimeField(allow_null=True)
    created_at = fields.DateTimeField()
    updated_at = fields.DateTimeField()
    warnings = WarningsField(
        help_text="Events of tables that are not there (misspelled, or not created yet), and what of `filter` and "
        "`columns` is not valid for the schema."
    )


class WebhookWithSecret(WebhookDetail):
    secret = fields.CharField(help_text="The signing secret. Shown only once.")


class AttemptShape(Serializer):
    at = fields.DateTimeField()
    duration_ms = fields.IntegerField()
    response_status = fields.IntegerField(allow_null=True)
    error = fields.CharField(allow_null=True)


class DeliveryShape(Serializer):
    id = fields.CharField()
    event_id = fields.CharField()
    event_type = fields.CharField()
    status = fields.ChoiceField(choices=Delivery.Status.values)
    outcome = fields.CharField(allow_null=True)
    attempts = fields.ListField(child=AttemptShape(), source="last_tries")  # the latest first
    next_attempt_at = fields.DateTimeField(allow_null=True)
    created_at = fields.DateTimeField()

    def to_representation(self, delivery: Delivery) -> dict[str, Any]:
        shown: dict[str, Any] = super().to_representation(delivery)
        shown["attempts"].reverse()
        if delivery.status != Delivery.Status.PENDING:
            shown["next_attempt_at"] = None
        return shown


class TestSent(Serializer):
    event_id = fields.CharField()


class Recovered(Serializer):
    deliveries = fields.IntegerField()
    more = fields.BooleanField()
