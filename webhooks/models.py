"""Tables of `webhooks`, in each region's schema `platform`. No foreign key leads out of the region."""

from typing import ClassVar
from urllib.parse import urlsplit

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import BrinIndex
from django.db import models
from django.db.models.functions import Greatest, Now

from platform_site.http.models import JSONField, public_id
from webhooks.managers import WebhookQuerySet


class Webhook(models.Model):
    class Ordering(models.TextChoices):
        NONE = "none"
        ROW = "row"

    id = public_id("wh")
    environment_id = models.CharField(max_length=30)
    name = models.CharField(max_length=48, null=True)
    url = models.CharField(max_length=2000)
    host = models.CharField(max_length=260)
    """`host:port`, the receiver of this environment for the circuit breaker."""
    events = ArrayField(models.CharField(max_length=120))
    """`tasks.insert`, `tasks.*`, `*.insert`, `*`, or a system event."""
    filter = JSONField(null=True)
    """Over `record` and `old_record`; null: all."""
    columns = models.JSONField(null=True)
    """`{"tasks": ["title"]}`; null: all."""
    ordering = models.CharField(max_length=10, choices=Ordering.choices, default=Ordering.NONE)
    description = models.CharField(max_length=500, blank=True, default="")
    enabled = models.BooleanField(default=True)
    disabled_reason = models.CharField(max_length=60, null=True)
    """`by_request`, `gone` (410), `failing` (five days of failures), `branched`, `restored`."""
    failing_since = models.DateTimeField(null=True)
    sealed_secret = models.BinaryField()
    sealed_previous_secret = models.BinaryField(null=True)
    previous_secret_until = models.DateTimeField(null=True)
    listens_until = models.DateTimeField(null=True)
    """Set for the subscription of a `webhooks.cli_listener`, which makes its attempts and renews it."""
    drop_before = models.DateTimeField(null=True)
    """Waiting deliveries from before are to be dropped; nothing is sent until then (`webhooks.delivery.reconciler`)."""
    recover_from = models.DateTimeField(null=True)
    """Failed deliveries since then are to be resent; advances meanwhile."""
    recover_until = models.DateTimeField(null=True)
    """… if their last attempt was before this time."""
    deleted_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now())

    objects = WebhookQuerySet.as_manager()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["environment_id", "name"],
                condition=models.Q(deleted_at__isnull=True, name__isnull=False),
                name="webhook_name_unique_in_environment",
            )
        ]
        indexes: ClassVar = [
            models.Index(
                fields=["environment_id", "-created_at", "-id"],
                condition=models.Q(deleted_at__isnull=True),
                name="webhook_of_environment",
            ),
            models.Index(
                fields=["id"],
                condition=models.Q(drop_before__isnull=False) | models.Q(recover_from__isnull=False),
                name="webhook_to_reconcile",
            ),
        ]

    def __str__(self) -> str:
        return self.url

    @property
    def origin(self) -> str:
        """For the audit log and staff: the rest of a URL is often a credential."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"


class Delivery(models.Model):
    class Status(models.TextChoices):
        PENDING = "pending"
        DELIVERED = "delivered"
        EXHAUSTED = "exhausted"
        HELD = "held"
        """The webhook is disabled: waits up to 7 days."""
        FILTERED = "filtered"
        DROPPED = "dropped"
        """Dropped on request or expired; `outcome` says which."""

    id = public_id("dlv")
    environment_id = models.CharField(max_length=30)
    webhook = models.ForeignKey(Webhook, on_delete=models.CASCADE, related_name="deliveries", db_index=False)
    event_id = models.CharField(max_length=30)
    event_type = models.CharField(max_length=120)
    subject = models.CharField(max_length=120, null=True)
    """`table/row id` for `ordering: "row"`; null for system events."""
    sequence = models.BigIntegerField()
    depth = models.SmallIntegerField(default=0)
    """Call depth of the event; sent along, so that loops end."""
    body = models.TextField()
    """The exact text sent; empty if filtered."""
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.PENDING)
    outcome = models.CharField(max_length=200, null=True)
    """The last attempt in a phrase: `200`, `timeout`, `refused: private IP`, …"""
    attempts = models.SmallIntegerField(default=0)
    schedule_from = models.SmallIntegerField(default=0)
    """Attempts of earlier schedules: a redelivery starts a new one."""
    next_attempt_at = models.DateTimeField(null=True)
    """If held: when it was due; its seven days start there or at its creation."""
    last_attempt_at = models.DateTimeField(null=True)
    """Start of the latest attempt with a known outcome (`has_succeeded`)."""
    has_succeeded = models.BooleanField(null=True)
    claimed_until = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        verbose_name_plural = "deliveries"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["webhook", "event_id"], name="delivery_once_per_event")
        ]
        indexes: ClassVar = [
            models.Index(
                fields=["webhook", "next_attempt_at"], condition=models.Q(status="pending"), name="delivery_waiting"
            ),
            models.Index(fields=["webhook", "-created_at", "-id"], name="delivery_of_webhook"),
            # A page of the list by status, which may be rare in a long history, or all of a long backlog.
            models.Index(fields=["webhook", "status", "-created_at", "-id"], name="delivery_by_status"),
            # Failed deliveries are rare in a long history and searched for most: listed, counted, resent.
            models.Index(
                fields=["webhook", "-created_at", "-id"],
                condition=models.Q(status__in=["exhausted", "dropped"]),
                name="delivery_failed",
            ),
            models.Index(
                fields=["webhook", "-last_attempt_at"],
                include=["has_succeeded"],
                condition=models.Q(last_attempt_at__isnull=False),
                name="delivery_health",
            ),
            models.Index(
                fields=["webhook", "subject", "sequence"],
                # Not usable for queries that `delivery_waiting` serves, or the planner would use it for them.
                condition=models.Q(status__in=["pending", "held"], subject__isnull=False),
                name="delivery_subject_order",
            ),
            models.Index(fields=["environment_id", "event_id"], name="delivery_of_event"),
            # For their release (`webhooks.delivery.reconciler`), and for their expiry.
            models.Index(fields=["webhook", "sequence"], condition=models.Q(status="held"), name="delivery_held_order"),
            models.Index(
                "webhook",
                Greatest("created_at", "next_attempt_at"),
                condition=models.Q(status="held"),
                name="delivery_held_since",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.event_type} to {self.webhook_id}"


class Attempt(models.Model):
    id = models.BigAutoField(primary_key=True)
    delivery = models.ForeignKey(Delivery, on_delete=models.CASCADE, related_name="tries")
    number = models.SmallIntegerField()
    at = models.DateTimeField()
    duration_ms = models.IntegerField()
    response_status = models.SmallIntegerField(null=True)
    response_headers = models.JSONField(default=dict)
    response_body = models.TextField(blank=True, default="")
    error = models.CharField(max_length=200, null=True)

    class Meta:
        ordering: ClassVar = ["number"]
        constraints: ClassVar = [models.UniqueConstraint(fields=["delivery", "number"], name="attempt_once")]
        # The attempts of the last minutes: rows are stored in the order of time, so a few bytes a page are enough.
        indexes: ClassVar = [BrinIndex(fields=["at"], pages_per_range=16, autosummarize=True, name="attempt_by_time")]

    def __str__(self) -> str:
        return f"attempt {self.number} of {self.delivery_id}"
