"""The webhooks' part of a backup, without secrets. Restored ones are disabled and get a new secret."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from platform_site.identity.callers import EnvironmentRef
from rows.outbox import subscriptions
from webhooks.models import Webhook
from webhooks.subscriptions import service as webhook_service


class Subscriptions:
    def dump(self, place: EnvironmentRef) -> Mapping[str, Iterator[Mapping[str, Any]]]:
        return {"webhooks": self._records(place)}

    def load(self, place: EnvironmentRef, records: Callable[[str], Iterator[Mapping[str, Any]]]) -> int:
        made = [webhook_service.new_copy(place, record, disabled_reason="restored") for record in records("webhooks")]
        webhook_service.check_webhook_quota(place, len(made))
        Webhook.objects.using(place.cluster).bulk_create(made)
        subscriptions.refresh(place.environment_id, place.cluster)
        return len(made)

    def is_empty(self, place: EnvironmentRef) -> bool:
        return not self._live(place).exists()

    def _records(self, place: EnvironmentRef) -> Iterator[Mapping[str, Any]]:
        for webhook in self._live(place).order_by("created_at", "id"):
            yield {field: getattr(webhook, field) for field in webhook_service.COPIED_FIELDS}

    def _live(self, place: EnvironmentRef) -> Any:
        return Webhook.objects.using(place.cluster).live(place.environment_id).filter(listens_until=None)
