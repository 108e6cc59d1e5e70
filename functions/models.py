from datetime import datetime
from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Coalesce, Now
from django.utils import timezone

from platform_site.http.models import public_id
from platform_site.identity.callers import EnvironmentRef


class FunctionQuerySet(models.QuerySet["Function"]):
    def of(self, environment: EnvironmentRef) -> "FunctionQuerySet":
        return self.using(environment.cluster).filter(environment_id=environment.environment_id)


class Function(models.Model):
    class Stopped(models.TextChoices):
        CALLER_GONE = "caller_gone"
        COPIED = "copied"
        OPERATOR = "operator"
        UNREADABLE = "unreadable"

    id = public_id("fn")
    environment_id = models.CharField(max_length=30, null=True)
    """Null: deleted, its runs are being removed."""
    name = models.CharField(max_length=63)
    active_version = models.PositiveIntegerField()
    last_version = models.PositiveIntegerField()
    timeout_ms = models.PositiveIntegerField()
    memory_mb = models.PositiveIntegerField()
    allowed_hosts = ArrayField(models.CharField(max_length=260), default=list)
    invoke = models.CharField(max_length=10, null=True)
    """`user`: app users; `key`: server keys and members; null: all of these; `public`: anonymous callers as well."""
    attempts = models.PositiveSmallIntegerField(default=1)
    """Attempts of an async run that fails or times out. A lost worker is always retried."""
    schedule = models.CharField(max_length=200, null=True)
    next_run_at = models.DateTimeField(null=True)
    schedule_stopped = models.CharField(max_length=20, choices=Stopped.choices, null=True)
    scheduled_kind = models.CharField(max_length=10, null=True)
    scheduled_id = models.CharField(max_length=30, null=True)
    """The `account` or `key` that set the schedule or deployed last: its runs have these rights. So `events_id`."""
    scheduled_run_id = models.CharField(max_length=30, null=True)
    last_skipped_at = models.DateTimeField(null=True)
    """The last due time that was skipped, because a run had not ended."""
    events = ArrayField(models.CharField(max_length=120), null=True)
    events_stopped = models.CharField(max_length=20, choices=Stopped.choices, null=True)
    events_kind = models.CharField(max_length=10, null=True)
    events_id = models.CharField(max_length=30, null=True)
    runs_since = models.DateTimeField(null=True)
    """The start of its history, if runs were deleted early (`functions.runs.retention`)."""
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now())

    objects = FunctionQuerySet.as_manager()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["environment_id", "name"], name="function_name_unique_in_environment"),
            models.CheckConstraint(
                condition=models.Q(next_run_at=None)
                | models.Q(schedule__isnull=False, scheduled_kind__isnull=False, scheduled_id__isnull=False),
                name="function_schedule_has_run_as",
            ),
            models.CheckConstraint(
                condition=models.Q(events=None)
                | models.Q(events_stopped__isnull=False)
                | models.Q(events_kind__isnull=False, events_id__isnull=False),
                name="function_events_have_run_as",
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["next_run_at"], condition=models.Q(next_run_at__isnull=False), name="function_due"),
            models.Index(
                fields=["environment_id"],
                condition=models.Q(events__isnull=False, events_stopped=None),
                name="function_with_events",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def secret_names(self) -> list[str]:
        return sorted(secret.name for secret in self.secrets.all())

    @property
    def unset_secrets(self) -> list[str]:
        return sorted(secret.name for secret in self.secrets.all() if secret.sealed_value is None)

    @property
    def inbound_as(self) -> list[str]:
        return sorted(endpoint.runs_as_id for endpoint in self.inbound_endpoints.all())


class Version(models.Model):
    function = models.ForeignKey(Function, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    source = models.TextField()
    source_hash = models.CharField(max_length=64)
    """SHA-256 of the source."""
    author_kind = models.CharField(max_length=10)
    author_id = models.CharField(max_length=30, null=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["function", "number"], name="version_once")]

    def __str__(self) -> str:
        return f"{self.function_id} version {self.number}"

    @property
    def is_active(self) -> bool:
        return self.number == self.function.active_version


class Secret(models.Model):
    function = models.ForeignKey(Function, on_delete=models.CASCADE, related_name="secrets")
    name = models.CharField(max_length=64)
    sealed_value = models.BinaryField(null=True)
    updated_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["function", "name"], name="secret_once_per_function")]

    def __str__(self) -> str:
        return self.name


class InboundEndpoint(models.Model):
    id = public_id("inb")
    function = models.ForeignKey(
        Function, on_delete=models.CASCADE, related_name="inbound_endpoints", db_constraint=False
    )
    """A migration adds ON DELETE CASCADE: raw SQL deletes functions too."""
    token_hash = models.BinaryField(unique=True)
    label = models.CharField(max_length=100, blank=True)
    is_async = models.BooleanField()
    runs_as_kind = models.CharField(max_length=10)
    runs_as_id = models.CharField(max_length=30)
    """The `account` or `key` that made it or deployed since."""
    stopped: str | None = None
    """Not stored: why it returns 404 (`functions.inbound.service.all_of`)."""
    uses = models.BigIntegerField(db_default=0)
    last_used_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    def __str__(self) -> str:
        return self.label or self.id


class Run(models.Model):
    class Status(models.TextChoices):
        RUNNING = "running"
        SUCCEEDED = "succeeded"
        FAILED = "failed"

    class Phase(models.TextChoices):
        QUEUED = "queued"
        EXECUTING = "executing"
        ENDED = "ended"

    class Trigger(models.TextChoices):
        CALL = "call"
        SCHEDULE = "schedule"
        INBOUND = "inbound"
        EVENT = "event"

    id = public_id("run")
    environment_id = models.CharField(max_length=30)
    function = models.ForeignKey(Function, on_delete=models.CASCADE, related_name="runs", db_index=False)
    # Not PositiveIntegerField: PostgreSQL would parse the field's check at each insert and update.
    version = models.IntegerField()
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.RUNNING)
    phase = models.CharField(max_length=10, choices=Phase.choices)
    is_async = models.BooleanField()
    trigger = models.CharField(max_length=10, choices=Trigger.choices, db_default=Trigger.CALL)
    event_id = models.CharField(max_length=30, null=True)
    address_id = models.CharField(max_length=30, null=True)
    """The inbound endpoint's id, named as in the input of its runs."""
    input = models.TextField()
    """JSON text as received; empty if too large to store."""
    output = models.TextField(null=True)
    error = models.JSONField(null=True)
    """`{"name", "message", "reason", "stack"?}`; `reason` is `user_error`, `timeout`, `memory`, `worker_lost`, …"""
    logs = models.JSONField(default=list)
    sandbox_layers = ArrayField(models.CharField(max_length=20), default=list)
    not_stored = ArrayField(models.CharField(max_length=10), null=True)
    """For an anonymous caller's run, which of `input`, `output` and `logs` were too large to store."""
    caller_kind = models.CharField(max_length=10)
    caller_id = models.CharField(max_length=30)
    weight = models.IntegerField(null=True)
    """For an ended run in the sample, the bytes of history that it represents (`functions.runs.storage`)."""
    network = models.BigIntegerField(null=True)
    turn_at = models.DateTimeField(null=True)
    """Its time in the queue instead of `created_at`: behind other runs of its network."""
    request_id = models.CharField(max_length=64, null=True)
    depth = models.SmallIntegerField(default=0)
    attempts = models.SmallIntegerField(default=0)
    """Also the fencing token: only the current attempt writes an outcome."""
    concurrency = models.SmallIntegerField(db_default=1)
    """How many of its environment's slots runs of its kind may take (`functions.quotas.slots`)."""
    slot = models.SmallIntegerField(null=True)
    claimed_until = models.DateTimeField(null=True)
    cancel_requested_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    duration_ms = models.IntegerField(null=True)

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["function", "-created_at", "-id"], name="run_of_function"),
            # The runs that are searched for most are rare in a long history (`functions.runs.history`).
            models.Index(fields=["function", "trigger", "status", "-created_at", "-id"], name="run_by_trigger"),
            # App users only see their own runs: without this index each page would scan those of all others.
            models.Index(
                fields=["function", "caller_id", "-created_at", "-id"],
                condition=models.Q(caller_kind="user"),
                name="run_of_user",
            ),
            # `false` comes first, so runs of anonymous callers and events are not scanned. With a second index of
            # queued runs, the planner would take the smaller one and sort the queue while the statistics are old.
            models.Index(
                "environment_id",
                models.ExpressionWrapper(
                    models.Q(caller_kind="anonymous") | models.Q(trigger="event"), output_field=models.BooleanField()
                ),
                Coalesce("turn_at", "created_at"),
                condition=models.Q(phase="queued"),
                name="run_queue_order",
            ),
            models.Index(fields=["claimed_until"], condition=models.Q(phase="executing"), name="run_lease"),
            models.Index(
                fields=["environment_id", "id"], condition=models.Q(caller_kind="anonymous"), name="run_of_anonymous"
            ),
            models.Index(
                fields=["environment_id", "function", "id"],
                include=["weight"],
                condition=models.Q(weight__isnull=False),
                name="run_size_sample",
            ),
            # For the console.
            models.Index(fields=["ended_at"], condition=models.Q(ended_at__isnull=False), name="run_ended"),
            models.Index(fields=["request_id"], condition=models.Q(request_id__isnull=False), name="run_of_request"),
        ]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["environment_id", "slot"], condition=models.Q(slot__isnull=False), name="run_slot_once"
            ),
            models.UniqueConstraint(
                fields=["event_id", "function"], condition=models.Q(event_id__isnull=False), name="run_once_per_event"
            ),
        ]

    def __str__(self) -> str:
        return self.id

    @property
    def began_at(self) -> datetime:
        return self.started_at or self.created_at

    @property
    def elapsed_ms(self) -> int:
        if self.duration_ms is not None:
            return self.duration_ms
        return max(0, round((timezone.now() - self.started_at).total_seconds() * 1000)) if self.started_at else 0


class PendingEvent(models.Model):
    """An event without a run so far (`functions.triggers.events`). No foreign key, so that deleting a function need not
    wait for thousands of these; orphans are deleted later."""

    id = models.BigAutoField(primary_key=True)
    environment_id = models.CharField(max_length=30)
    function_id = models.CharField(max_length=30)
    event_id = models.CharField(max_length=30)
    sequence = models.BigIntegerField()
    """The event's: runs are made in this order, not by `id`, whose index spans all environments."""

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["event_id", "function_id"], name="pending_event_once")]
        indexes: ClassVar = [models.Index(fields=["environment_id", "sequence"], name="pending_event_order")]

    def __str__(self) -> str:
        return f"{self.event_id} for {self.function_id}"
