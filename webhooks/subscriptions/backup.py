"""The webhooks' part of a backup, without secrets. Restored ones are disabled and get a new secret."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from platform_site.identity.callers import EnvironmentRef
from rows.outbox import subscriptions
from webhooks.models import Webhook
from webhooks.subscriptions import service as webhook_service


class Subscriptions:
    def dump(self, environment: EnvironmentRef) -> Mapping[str, Iterator[Mapping[str, Any]]]:
        webhooks = Webhook.objects.of(environment).lasting().order_by("created_at", "id")
        return {"webhooks": iter(webhooks.values(*webhook_service.COPIED_FIELDS))}

    def load(self, environment: EnvironmentRef, records: Callable[[str], Iterator[Mapping[str, Any]]]) -> int:
        made = [
            webhook_service.new_copy(environment, record, disabled_reason="restored") for record in records("webhooks")
        ]
        webhook_service.check_webhook_quota(environment, len(made))
        Webhook.objects.using(environment.cluster).bulk_create(made)
        subscriptions.refresh(environment.environment_id, environment.cluster)
        return len(made)

    def is_empty(self, environment: EnvironmentRef) -> bool:
        return not Webhook.objects.of(environment).lasting().exists()
