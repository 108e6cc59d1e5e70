"""The outbox: an event for each row write that somebody wants to hear of, in the transaction of the write.

`rows.write.statements` puts the insert into the very statement that writes the row; system events (`schema.migrated`,
`function.run.failed`) come through `record`. `rows.outbox.subscriptions` keeps `EventInterest` filled; `webhooks`
relays what is here, and purges. An event whose insert fails takes the write with it.
"""

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from django.db import models
from django.db.models.functions import Now

from platform_site.http.requests import current_request_id
from platform_site.identity import ids

ANY = "*"


class OutboxEvent(models.Model):
    """One fact that was committed. Written once; only `relayed_at` changes."""

    sequence = models.BigAutoField(primary_key=True)
    """Grows in the order of writing: for one row the order of its commits, since the writer holds the row's lock.
    Across rows a lower number may commit later than a higher one, so a relay claims by `relayed_at`, never by the last
    number it saw."""
    event_id = models.CharField(max_length=30)
    """`evt_…`, the `webhook-id` of every delivery."""
    environment_id = models.CharField(max_length=30)
    type = models.CharField(max_length=120)
    """`tasks.insert`, or a system event such as `schema.migrated`."""
    subject = models.CharField(max_length=120, null=True)
    """`tasks/tsk_…`: what deliveries may be ordered by; null for system events."""
    data = models.TextField()
    """The payload's `data` as JSON text: for a row `{"table", "id", "record", "old_record", "changed"}`, the records
    whole (the relay cuts them down to what a webhook may carry), `record` null on delete and `old_record` null on
    insert."""
    schema_version = models.PositiveIntegerField(null=True)
    request_id = models.CharField(max_length=64, null=True)
    depth = models.SmallIntegerField(default=0)
    """How many webhooks and functions in a row led to this write; a chain is cut at 8."""
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    relayed_at = models.DateTimeField(null=True)
    """When every delivery of it existed; null is due."""

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["event_id"], name="outbox_event_once")]
        indexes: ClassVar = [
            models.Index(fields=["sequence"], condition=models.Q(relayed_at__isnull=True), name="outbox_due"),
            # For the relay, past what waits of environments whose events take long (`webhooks.delivery.relay`).
            models.Index(
                fields=["environment_id", "sequence"],
                condition=models.Q(relayed_at__isnull=True),
                name="outbox_due_by_environment",
            ),
            models.Index(fields=["environment_id", "-sequence"], name="outbox_of_environment"),
            models.Index(fields=["relayed_at"], condition=models.Q(relayed_at__isnull=False), name="outbox_done"),
            # For the console: what a request changed, and what happened to a row.
            models.Index(fields=["request_id"], condition=models.Q(request_id__isnull=False), name="outbox_of_request"),
            models.Index(
                fields=["environment_id", "subject"], condition=models.Q(subject__isnull=False), name="outbox_of_row"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.type} {self.event_id}"


class EventInterest(models.Model):
    """Somebody in this environment wants these events. `table_name` and `action` may be `*`.

    Row writes test it inside their statement; no row here, no event. `rows.outbox.subscriptions` keeps it equal to the
    subscriptions, in the transaction that changes them; a disabled webhook whose events are held is interested, too.
    """

    environment_id = models.CharField(max_length=30)
    table_name = models.CharField(max_length=48)
    action = models.CharField(max_length=10)
    """`insert`, `update`, `delete` or `*`."""

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["environment_id", "table_name", "action"], name="event_interest_once"),
            models.CheckConstraint(
                condition=models.Q(action__in=["insert", "update", "delete", ANY]), name="event_interest_action"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.table_name}.{self.action} of {self.environment_id}"


def record(
    event_type: str,
    data: Mapping[str, Any],
    *,
    using: str,
    environment_id: str,
    schema_version: int | None = None,
    depth: int = 0,
) -> str:
    """Write a system event into the outbox of the region `using`, in the transaction at hand. Returns its `evt_…`.

    Row events are not made here: they come out of the statement that writes the row.
    """
    event_id = ids.new("evt")
    OutboxEvent.objects.using(using).create(
        event_id=event_id,
        environment_id=environment_id,
        type=event_type,
        data=json.dumps(data, ensure_ascii=False, separators=(",", ":")),
        schema_version=schema_version,
        request_id=current_request_id(),
        depth=depth,
    )
    return event_id
