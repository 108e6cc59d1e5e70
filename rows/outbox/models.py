"""The transactional outbox: one event for each row write that has subscribers, in the transaction of the write.
`rows.write.statements` puts the insert into the statement that writes the row; system events (`schema.migrated`,
`function.run.failed`) use `record`. `rows.outbox.subscriptions` maintains `EventInterest`. `webhooks` relays and purges
the events. If an event cannot be inserted, the write fails as well."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from django.db import models
from django.db.models.functions import Now

from platform_site.http.requests import current_request_id
from platform_site.identity import ids

ANY = "*"


class TransactionIdField(models.Field):  # type: ignore[type-arg]
    """PostgreSQL's `xid8`: a transaction's id. After a crash, ids of uncommitted transactions are used again."""

    def db_type(self, connection: Any) -> str:
        return "xid8"


class CurrentTransaction(models.Func):
    """The id of the transaction at hand."""

    function = "pg_current_xact_id"
    output_field = TransactionIdField()


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
    transaction = TransactionIdField(null=True, db_default=CurrentTransaction(), editable=False)
    """By which it was written. Sequences are not committed in their order; a snapshot tells by this which events a
    reader has not seen (`rows.changes`). Null in events of releases before this column."""

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
            # For live changes: what a snapshot has not seen. With the environment first, and without statistics, the
            # relay's questions about one environment would take this index and read all of its events.
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
    """Somebody in this environment wants these events. `table_name` and `action` may be `*`. Row writes test it inside
    their statement; no row here, no event. `rows.outbox.subscriptions` keeps it equal to the subscriptions, in the
    transaction that changes them; a disabled webhook whose events are held is interested, too."""

    environment_id = models.CharField(max_length=30)
    table_name = models.CharField(max_length=48)
    action = models.CharField(max_length=10)
    """`insert`, `update`, `delete` or `*`."""
    is_for_relay = models.BooleanField(db_default=True)
    """A webhook or an event trigger wants them. Otherwise only streams of live changes do, which read events by
    themselves: such an event is inserted as relayed, and no worker is notified of it."""

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
    """A table to which a stream of live changes subscribes (`rows.changes`), or did until recently. The table is
    unlogged, so a crash of PostgreSQL empties it and each stream sends a reset. After a crash, new transactions get the
    ids of those that were aborted just before: a position that has seen these would skip them."""

    environment_id = models.CharField(max_length=30)
    table_name = models.CharField(max_length=48)
    generation = models.CharField(max_length=32)
    """Random. A stream that resumes with another one may have missed events."""
    transaction = TransactionIdField(db_default=CurrentTransaction(), editable=False)
    """The one that registered it: writes that do not see it record no events."""
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
    depth: int = 0,
) -> str:
    """Write a system event into the outbox of the region `using`, in the transaction at hand. Returns its `evt_…`. Row
    events are not made here: they come out of the statement that writes the row."""
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
