"""Tables of `rows` in the schema `platform` of each region. Tenants' tables are made from documents
(`rows.migrate.apply`), with models outside Django's registry (`rows.query.tables.dynamic_models`)."""

import json
from typing import Any, ClassVar

from django.db import models
from django.db.models.functions import Now

from platform_site.http.models import public_id
from rows.outbox.models import EventInterest as EventInterest
from rows.outbox.models import OutboxEvent as OutboxEvent
from rows.outbox.models import WatchedTable as WatchedTable


class CurrentVersion(models.Model):
    """The current version of an environment, changed in the transaction of its DDL; no row: version 0. Compiled
    statements test it in their round trip."""

    environment_id = models.CharField(primary_key=True, max_length=30)
    version = models.PositiveIntegerField()
    indexes_due = models.BooleanField(default=False)
    """Declared indexes of large tables are not built yet (`rows.migrate.concurrent_indexes`)."""

    class Meta:
        indexes: ClassVar = [
            models.Index(
                fields=["environment_id"], name="current_version_indexes_due", condition=models.Q(indexes_due=True)
            )
        ]

    def __str__(self) -> str:
        return f"{self.environment_id} at {self.version}"


class SchemaVersion(models.Model):
    """One applied document; immutable by a trigger."""

    environment_id = models.CharField(max_length=30)
    version = models.PositiveIntegerField()
    document_text = models.TextField()
    """Text, because `jsonb` loses the order of columns."""
    source_digest = models.CharField(max_length=64)
    """Of the sent document, `renamed_from` and `backfill` included: a repetition changes nothing."""
    renames = models.JSONField(default=dict)
    """`{"tables": {new: old}, "columns": {table: {new: old}}}`, for reverts."""
    operations = models.JSONField(default=list)
    author_kind = models.CharField(max_length=10)
    author_id = models.CharField(max_length=30, null=True)
    reverts_to = models.PositiveIntegerField(null=True)
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
        """With keys in the author's order."""
        document: dict[str, Any] = json.loads(self.document_text)
        return document

    @property
    def operation_names(self) -> list[str]:
        return [operation["operation"] for operation in self.operations]

    @property
    def applied_by(self) -> str:
        return self.author_id or self.author_kind


class PendingUserReferences(models.Model):
    """Imported rows whose user columns must be checked for deleted users (`write.references.dangling_references`)."""

    environment_id = models.CharField(max_length=30)
    since = models.DateTimeField()
    """Users deleted since (by the control database) may be named."""

    def __str__(self) -> str:
        return f"{self.environment_id} since {self.since:%Y-%m-%d %H:%M:%S}"


class PendingUserDeletion(models.Model):
    """The user's rows are gone, the control database has yet to commit (`write.references.pending_user_deletions`)."""

    user_id = models.CharField(primary_key=True, max_length=30)
    environment_id = models.CharField(max_length=30)
    actor_kind = models.CharField(max_length=10)
    actor_id = models.CharField(max_length=30, null=True)
    request_id = models.CharField(max_length=64, null=True)

    def __str__(self) -> str:
        return f"{self.user_id} leaves {self.environment_id}"


class AuditOutboxEntry(models.Model):
    """Moved to the control database by `rows.outbox.audit`, with the columns of `accounts.AuditEntry`."""

    id = public_id("aud")
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
