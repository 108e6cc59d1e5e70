"""Idempotency records, in every database, to share the effect's transaction; public primary keys; and clients' JSON."""

from functools import partial
from typing import Any, ClassVar

import orjson
from django.db import models
from django.db.models.functions import Now

from platform_site.identity import ids

IDEMPOTENCY_PURPOSE = "api.idempotency"


def public_id(prefix: str) -> "models.CharField[str, str]":
    return models.CharField(primary_key=True, max_length=30, default=partial(ids.new, prefix), editable=False)


class JSONField(models.JSONField):
    """For JSON that clients send. PostgreSQL stores 1e20 as 21 digits. Django reads an integer, which orjson cannot
    write; orjson reads a float."""

    def deconstruct(self) -> Any:
        name, _, args, options = super().deconstruct()
        return name, "django.db.models.JSONField", args, options  # the same for migrations

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        return orjson.loads(value) if isinstance(value, str) else value


class IdempotencyRecord(models.Model):
    digest = models.BinaryField(primary_key=True, max_length=32)
    """Of caller, environment, method, path and key (`idempotency.read_ticket`)."""
    fingerprint = models.BinaryField(max_length=32)
    sealed_answer = models.BinaryField(null=True)
    """Status, headers and body, under keys of the Idempotency-Key and the platform."""
    reference = models.CharField(max_length=64, null=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    expires_at = models.DateTimeField()

    class Meta:
        indexes: ClassVar = [models.Index(fields=["expires_at"], name="idempotency_expiry")]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=models.Q(sealed_answer__isnull=True) | models.Q(reference__isnull=True),
                name="idempotency_answer_or_reference",
            )
        ]

    def __str__(self) -> str:
        return bytes(self.digest).hex()
