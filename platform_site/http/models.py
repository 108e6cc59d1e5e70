"""Idempotency records, which exist in every database so that each shares the transaction of its effect; and the primary
key of tables with public ids."""

from functools import partial
from typing import ClassVar

from django.db import models
from django.db.models.functions import Now

from platform_site.identity import ids
from platform_site.security import keyring

IDEMPOTENCY_PURPOSE = "api.idempotency"


def public_id(prefix: str) -> "models.CharField[str, str]":
    """The primary key of what has a public identifier (`ids`)."""
    return models.CharField(primary_key=True, max_length=30, default=partial(ids.new, prefix), editable=False)


class IdempotencyRecord(models.Model):
    """One request that was done under an Idempotency-Key, and its answer. Read and written by `idempotency` alone."""

    digest = models.BinaryField(primary_key=True, max_length=32)
    """SHA-256 of caller, environment, method, path and key. The key itself is not stored: it opens the answer."""
    fingerprint = models.BinaryField(max_length=32)
    """HMAC-SHA-256 of query string and body under that key: another request under it is refused."""
    sealed_answer = models.BinaryField(null=True)
    """Status, headers and body, under a key derived from the Idempotency-Key and under the platform's keys."""
    reference = models.CharField(max_length=64, null=True)
    """The id of what answers instead (a run), where the answer comes long after the effect was committed."""
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


keyring.register_sealed_field("api.IdempotencyRecord", "sealed_answer", purpose=IDEMPOTENCY_PURPOSE)
