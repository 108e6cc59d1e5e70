from typing import TYPE_CHECKING

from django.db import models
from django.db.models.expressions import RawSQL

from platform_site.identity.callers import EnvironmentRef

if TYPE_CHECKING:
    from webhooks.models import Webhook  # noqa: F401

HEALTH_WINDOW = 100
"""Deliveries of the success rate. Contract section 8."""

_SUCCESS_RATE = """
coalesce((
    SELECT avg(latest.has_succeeded::int)::float8
      FROM (SELECT d.has_succeeded
              FROM platform.webhooks_delivery d
             WHERE d.webhook_id = webhooks_webhook.id AND d.last_attempt_at IS NOT NULL
             ORDER BY d.last_attempt_at DESC
             LIMIT %s) latest
), 1.0)
"""


class WebhookQuerySet(models.QuerySet["Webhook"]):
    def of(self, environment: EnvironmentRef) -> "WebhookQuerySet":
        return self.using(environment.cluster).live(environment.environment_id)

    def live(self, environment_id: str) -> "WebhookQuerySet":
        return self.filter(environment_id=environment_id, deleted_at__isnull=True)

    def lasting(self) -> "WebhookQuerySet":
        """Without those of a `webhooks.cli_listener`."""
        return self.filter(listens_until=None)

    def with_health(self) -> "WebhookQuerySet":
        """Adds `success_rate` of the last attempted deliveries, by their latest attempt; 1.0 before the first."""
        rate = RawSQL(_SUCCESS_RATE, [HEALTH_WINDOW], models.FloatField())  # noqa: S611 - a constant
        return self.annotate(success_rate=rate)
