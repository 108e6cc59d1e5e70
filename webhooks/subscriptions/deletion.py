"""Deletes an environment's webhooks, events and deliveries, in batches. Idempotent. Webhooks are marked first; deleting
events waits for relays that read them; deliveries are locked before their attempts, as when recording."""

from typing import Any, Final

from django.db.models.functions import Now

from platform_site.background import dispatch
from platform_site.postgres import statements
from platform_site.postgres.transaction_settings import by_index
from rows.outbox.models import EventInterest
from webhooks.delivery.queue import wait_for_claims
from webhooks.models import Webhook

BATCH: Final = 1000

# In the order of an index by environment: otherwise the planner scans the table for each batch.
_DELETE_EVENTS: Final = """
DELETE FROM platform.rows_outboxevent
 WHERE sequence = ANY (ARRAY (SELECT sequence FROM platform.rows_outboxevent WHERE environment_id = %(env)s
                           ORDER BY sequence DESC LIMIT %(batch)s))
"""
_LOCK_DELIVERIES: Final = """
SELECT id FROM platform.webhooks_delivery WHERE environment_id = %(env)s ORDER BY event_id LIMIT %(batch)s FOR UPDATE
"""
_DELETE_ATTEMPTS: Final = "DELETE FROM platform.webhooks_attempt WHERE delivery_id = ANY (%(ids)s)"
_DELETE_DELIVERIES: Final = "DELETE FROM platform.webhooks_delivery WHERE id = ANY (%(ids)s)"
_DELETE_WEBHOOKS: Final = "DELETE FROM platform.webhooks_webhook WHERE environment_id = %(env)s"


def close(environment_id: str, cluster: str) -> None:
    """Nothing is sent after this returns."""
    EventInterest.objects.using(cluster).filter(environment_id=environment_id).delete()
    wait_for_claims(cluster, *mark_deleted(environment_id, cluster))


def mark_deleted(environment_id: str, using: str) -> list[str]:
    """Returns the ids of the environment's webhooks."""
    webhooks = Webhook.objects.using(using).filter(environment_id=environment_id)
    webhooks.filter(deleted_at=None).update(deleted_at=Now())
    return list(webhooks.values_list("pk", flat=True))


def start(environment_id: str, cluster: str) -> None:
    """Delete a first batch; a worker deletes the others."""
    mark_deleted(environment_id, cluster)
    EventInterest.objects.using(cluster).filter(environment_id=environment_id).delete()
    task = "webhooks.tasks.delete_environment"
    if not _delete_batch(environment_id, cluster) and not dispatch.send_now(task, environment_id, cluster):
        finish(environment_id, cluster)


def finish(environment_id: str, cluster: str) -> None:
    """If interrupted, `retention.remove_deleted` continues, and events are found as orphaned rows."""
    while not _delete_batch(environment_id, cluster):
        pass


def _delete_batch(environment_id: str, cluster: str) -> bool:
    """Returns whether that was all."""
    parameters: dict[str, Any] = {"env": environment_id, "batch": BATCH}
    if statements.execute(cluster, _DELETE_EVENTS, parameters) >= BATCH:
        return False
    with by_index(cluster):
        found = statements.column(cluster, _LOCK_DELIVERIES, parameters)
        statements.execute(cluster, _DELETE_ATTEMPTS, {"ids": found})
        statements.execute(cluster, _DELETE_DELIVERIES, {"ids": found})
    if len(found) >= BATCH:
        return False
    statements.execute(cluster, _DELETE_WEBHOOKS, parameters)
    return True
