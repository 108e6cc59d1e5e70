"""The transactional outbox: `rows.write.statements` inserts an event in the statement that writes a row with
subscribers; system events use `record`. `webhooks` relays and purges events."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from django.db import models
from django.db.models.functions import Now

from platform_site.http.requests import current_request_id
from platform_site.identity import call_depth, ids

ANY = "*"


class TransactionIdField(models.Field):  # type: ignore[type-arg]
    """PostgreSQL's `xid8`. After a crash, ids of uncommitted transactions are reused."""

    def db_type(self, connection: Any) -> str:
        return "xid8"


class CurrentTransaction(models.Func):
    function = "pg_current_xact_id"
    output_field = TransactionIdField()


class OutboxEvent(models.Model):
    """Only `relayed_at` changes."""

    sequence = models.BigAutoField(primary_key=True)
    """In commit order for one row; across rows a lower number may commit later, so relays use `relayed_at`."""
    event_id = models.CharField(max_length=30)
    environment_id = models.CharField(max_length=30)
    type = models.CharField(max_length=120)
    subject = models.CharField(max_length=120, null=True)
    """`tasks/tsk_…`, for ordered deliveries; null for system events."""
    data = models.TextField()
    """The payload's `data` as JSON: for a row `{"table", "id", "record", "old_record", "changed"}` with whole records,
    which the relay trims; `record` null on delete, `old_record` on insert."""
    schema_version = models.IntegerField(null=True)
    request_id = models.CharField(max_length=64, null=True)
    depth = models.SmallIntegerField(default=0)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    relayed_at = models.DateTimeField(null=True)
    """When all deliveries existed; null is due."""
    transaction = TransactionIdField(null=True, db_default=CurrentTransaction(), editable=False)
    """Compared with a snapshot, it shows which events a reader has not seen (`rows.changes`)."""

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["event_id"], name="outbox_event_once")]
        indexes: ClassVar = [
            models.Index(fields=["sequence"], condition=models.Q(relayed_at__isnull=True), name="outbox_due"),
            # For the relay, to skip the backlog of environments with expensive events (`webhooks.delivery.relay`).
            models.Index(
                fields=["environment_id", "sequence"],
                condition=models.Q(relayed_at__isnull=True),
                name="outbox_due_by_environment",
            ),
            models.Index(fields=["environment_id", "-sequence"], name="outbox_of_environment"),
            models.Index(fields=["relayed_at"], condition=models.Q(relayed_at__isnull=False), name="outbox_done"),
            # For live changes: the events after a snapshot. With the environment first, and without statistics, the
            # relay's queries for one environment would use this index and read all of its events.
            models.Index(fields=["transaction", "environment_id"], name="outbox_of_transaction"),
            # For the console: what a request changed, and what happened to a row.
            models.Index(fields=["request_id"], condition=models.Q(request_id__isnull=False), name="outbox_of_request"),
            models.Index(
                fields=["environment_id", "subject"], condition=models.Q(subject__isnull=False), name="outbox_of_row"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.type} {self.event_id}"


class EventInterest(models.Model):
    """Events that subscribers want; `table_name` and `action` may be `*`. Row writes test it in their statement.
    `rows.outbox.subscriptions` maintains it in the transaction of each change."""

    environment_id = models.CharField(max_length=30)
    table_name = models.CharField(max_length=48)
    action = models.CharField(max_length=10)
    is_for_relay = models.BooleanField(db_default=True)
    """For a webhook or event trigger. Events for live changes only are inserted as relayed."""

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["environment_id", "table_name", "action"], name="event_interest_once"),
            models.CheckConstraint(
                condition=models.Q(action__in=["insert", "update", "delete", ANY]), name="event_interest_action"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.table_name}.{self.action} of {self.environment_id}"


class WatchedTable(models.Model):
    """A table with live changes (`rows.changes`), now or recently. Unlogged: a crash of PostgreSQL empties it and each
    stream sends a reset, because ids of aborted transactions are reused."""

    environment_id = models.CharField(max_length=30)
    table_name = models.CharField(max_length=48)
    generation = models.CharField(max_length=32)
    """Random. A stream that resumes with another one may have missed events."""
    transaction = TransactionIdField(db_default=CurrentTransaction(), editable=False)
    """The transaction that registered it: writes that do not see it record no events."""
    expires_at = models.DateTimeField()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["environment_id", "table_name"], name="watched_table_once")
        ]
        indexes: ClassVar = [models.Index(fields=["expires_at"], name="watched_table_expiry")]

    def __str__(self) -> str:
        return f"{self.table_name} of {self.environment_id}"


def record(
    event_type: str,
    data: Mapping[str, Any],
    *,
    using: str,
    environment_id: str,
    schema_version: int | None = None,
    depth: int | None = None,
) -> str:
    """A system event, in the current transaction. `depth` is that of the request by default. Returns the `evt_…`."""
    event_id = ids.new("evt")
    OutboxEvent.objects.using(using).create(
        event_id=event_id,
        environment_id=environment_id,
        type=event_type,
        data=json.dumps(data, ensure_ascii=False, separators=(",", ":")),
        schema_version=schema_version,
        request_id=current_request_id(),
        depth=call_depth.depth_here(environment_id) if depth is None else depth,
    )
    return event_id
