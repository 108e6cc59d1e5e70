"""Disables a webhook whose receiver is gone or has only failed for days."""

from django.db import transaction
from django.db.models.functions import Now

from rows.outbox import audit as audit_outbox
from rows.outbox.models import record as record_event
from webhooks.models import Webhook


def disable(using: str, webhook_id: str, reason: str, *, depth: int = 0) -> bool:
    """Disable a webhook and record a `webhook.disabled` event with this call depth. A periodic job updates its
    deliveries, because the caller serves a whole region. False if it was disabled or deleted before."""
    with transaction.atomic(using=using):
        webhook = Webhook.objects.using(using).select_for_update().filter(pk=webhook_id).first()
        if webhook is None or not webhook.enabled or webhook.deleted_at is not None:
            return False
        webhook.enabled = False
        webhook.disabled_reason = reason
        webhook.updated_at = Now()
        webhook.save(using=using, update_fields=["enabled", "disabled_reason", "updated_at"])
        record_event(
            "webhook.disabled",
            {"webhook_id": webhook.pk, "url": webhook.url, "reason": reason},
            using=using,
            environment_id=webhook.environment_id,
            depth=depth,
        )
        audit_outbox.record_system(
            using, "webhook.disabled", target_id=webhook_id, environment_id=webhook.environment_id, reason=reason
        )
    return True
