"""Querysets of the tables of `webhooks`. A queryset names its region with `using`."""

from typing import TYPE_CHECKING

from django.db import models
from django.db.models.expressions import RawSQL

if TYPE_CHECKING:
    from webhooks.models import Webhook  # noqa: F401

HEALTH_WINDOW = 100
"""Deliveries that the success rate looks at. Contract section 8."""

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


_WAS_TRIED = """
EXISTS (SELECT FROM platform.webhooks_delivery d
         WHERE d.webhook_id = webhooks_webhook.id AND d.last_attempt_at IS NOT NULL)
"""


class WebhookQuerySet(models.QuerySet["Webhook"]):
    def live(self, environment_id: str) -> "WebhookQuerySet":
        """The environment's webhooks that are not marked as deleted."""
        return self.filter(environment_id=environment_id, deleted_at__isnull=True)

    def with_health(self) -> "WebhookQuerySet":
        """Adds `success_rate`: of the last 100 attempted deliveries, each by its latest attempt; 1.0 before the first.
        A hundred entries of one index for each webhook, however many deliveries there are. Contract section 2."""
        rate = RawSQL(_SUCCESS_RATE, [HEALTH_WINDOW], models.FloatField())  # noqa: S611 - a constant
        return self.annotate(success_rate=rate)

    def with_tries(self) -> "WebhookQuerySet":
        """Adds `was_tried`: whether any delivery was attempted. Before, a `success_rate` of 1.0 says nothing."""
        return self.annotate(was_tried=RawSQL(_WAS_TRIED, [], models.BooleanField()))  # noqa: S611 - a constant
