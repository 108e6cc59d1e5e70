"""Tables of `rows` in the schema `platform` of each region: which schema version an environment has, and how it came.
The tenant's own tables are not here: they are made from documents (`rows.migrate.apply`) and read through models that
live outside Django's registry (`rows.query.tables.dynamic_models`)."""

import json
from typing import Any, ClassVar

from django.db import models
from django.db.models.functions import Now

from platform_site.http.models import public_id
from rows.outbox.models import EventInterest, OutboxEvent, WatchedTable

__all__ = [
    "CurrentVersion",
    "PendingUserReferences",
    "EventInterest",
    "PendingUserDeletion",
    "OutboxEvent",
    "SchemaVersion",
    "AuditOutboxEntry",
    "WatchedTable",
]


class CurrentVersion(models.Model):
    """The version each environment has now, moved in the transaction of its DDL. No row: version 0, no tables.
    Statements compiled for a version test it here, in the same round trip, so none answers from a stale schema or
    rule."""

    environment_id = models.CharField(primary_key=True, max_length=30)
    version = models.PositiveIntegerField()
    indexes_due = models.BooleanField(default=False)
    """Indexes of large tables are declared and not built yet; `rows.migrate.concurrent_indexes` builds them while rows
    are served."""

    class Meta:
        indexes: ClassVar = [
            models.Index(
                fields=["environment_id"],
                name="current_version_indexes_due",
                condition=models.Q(indexes_due=True),
            )
        ]

    def __str__(self) -> str:
        return f"{self.environment_id} at {self.version}"


class SchemaVersion(models.Model):
    """One applied document, for ever: a trigger refuses updates, and rows go only with their environment."""

    environment_id = models.CharField(max_length=30)
    version = models.PositiveIntegerField()
    document_text = models.TextField()
    """JSON as text: `jsonb` would forget the order in which the developer wrote the columns."""
    source_digest = models.CharField(max_length=64)
    """Of the document as sent, `renamed_from` and `backfill` included: sending it twice changes nothing twice."""
    renames = models.JSONField(default=dict)
    """`{"tables": {new: old}, "columns": {table: {new: old}}}`: what kept its rows, so that a revert keeps them too."""
    operations = models.JSONField(default=list)
    """`[{"operation", "sql": [...], "destructive"}]` as they ran."""
    author_kind = models.CharField(max_length=10)
    """`account`, `user`, `key`, `staff` or `system`, as in the audit log."""
    author_id = models.CharField(max_length=30, null=True)
    reverts_to = models.PositiveIntegerField(null=True)
    """The earlier version whose document this one brought back."""
    request_id = models.CharField(max_length=64, null=True)
    applied_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["environment_id", "version"], name="schema_version_once"),
            models.CheckConstraint(condition=models.Q(version__gte=1), name="schema_version_counts_from_one"),
        ]

    def __str__(self) -> str:
        return f"{self.environment_id} version {self.version}"

    @property
    def document(self) -> dict[str, Any]:
        """The document as applied, keys in the developer's order."""
        document: dict[str, Any] = json.loads(self.document_text)
        return document

    @property
    def applied_by(self) -> str:
        """The id of the author; `system` for commands and periodic jobs, which have none."""
        return self.author_id or self.author_kind


class PendingUserReferences(models.Model):
    """Imported rows were committed while users may have been deleted: their user columns must be checked
    (`rows.write.references.deleted_users`)."""

    environment_id = models.CharField(max_length=30)
    since = models.DateTimeField()
    """Who was deleted at this moment of the control database, or later, may still be named."""

    def __str__(self) -> str:
        return f"{self.environment_id} since {self.since:%Y-%m-%d %H:%M:%S}"


class PendingUserDeletion(models.Model):
    """A pending user deletion: the user's rows are deleted or detached, and the control database has not committed yet
    (`rows.write.references.user_deletion`). It has the actor and the request for the audit log."""

    user_id = models.CharField(primary_key=True, max_length=30)
    environment_id = models.CharField(max_length=30)
    """The pool."""
    actor_kind = models.CharField(max_length=10)
    actor_id = models.CharField(max_length=30, null=True)
    request_id = models.CharField(max_length=64, null=True)

    def __str__(self) -> str:
        return f"{self.user_id} leaves {self.environment_id}"


class AuditOutboxEntry(models.Model):
    """An audit entry on its way to the control database (`rows.outbox.audit`), with the columns of
    `accounts.AuditEntry`. It outlives its environment and is deleted when it has arrived."""

    id = public_id("aud")
    """Its id there, too."""
    at = models.DateTimeField(db_default=Now(), editable=False)
    actor_kind = models.CharField(max_length=10)
    actor_id = models.CharField(max_length=30, null=True)
    action = models.CharField(max_length=60)
    target_id = models.CharField(max_length=64)
    project_id = models.CharField(max_length=30, null=True)
    environment_id = models.CharField(max_length=30)
    detail = models.JSONField(default=dict)
    request_id = models.CharField(max_length=64, null=True)

    def __str__(self) -> str:
        return f"{self.action} {self.target_id}"
