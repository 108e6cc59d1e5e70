"""Idempotency records, in every database, to share the effect's transaction; and public primary keys."""

from functools import partial
from typing import ClassVar

from django.db import models
from django.db.models.functions import Now

from platform_site.identity import ids

IDEMPOTENCY_PURPOSE = "api.idempotency"


def public_id(prefix: str) -> "models.CharField[str, str]":
    return models.CharField(primary_key=True, max_length=30, default=partial(ids.new, prefix), editable=False)


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
