"""Disables a webhook whose receiver is gone or has only failed for days. Called after an attempt was recorded."""

from django.db import transaction
from django.db.models.functions import Now

from rows.outbox import audit as audit_outbox
from rows.outbox.models import record as record_event
from webhooks.models import Webhook


def disable(using: str, webhook_id: str, reason: str, *, depth: int = 0) -> bool:
    """Disable a webhook whose receiver is gone (410) or has only failed for days, and tell of it by an event
    `webhook.disabled`; `depth` counts the webhooks and functions in a row that led to it. Its deliveries are left to
    the sweep, and its entry in the trail to a worker: the caller has a whole region's to send. False if it was disabled
    or deleted already."""
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
        audit_outbox.note(
            using, "webhook.disabled", target_id=webhook_id, environment_id=webhook.environment_id, reason=reason
        )
    return True
