from typing import ClassVar, Final

from django.contrib.postgres.fields import ArrayField
from django.db import models

ERROR: Final = 400


class LogEntry(models.Model):
    """One request, in a partition. No column holds arbitrary text from the client: names are checked (`names`)."""

    at = models.DateTimeField()
    """The start, by the web process's clock."""
    keep_days = models.SmallIntegerField()
    environment_id = models.CharField(max_length=30, null=True)
    request_id = models.CharField(max_length=64)
    method = models.CharField(max_length=10)
    route = models.CharField(max_length=200)
    table_name = models.CharField(max_length=63, null=True)
    function_name = models.CharField(max_length=63, null=True)
    status = models.SmallIntegerField()
    code = models.CharField(max_length=60, null=True)
    field_codes = ArrayField(models.CharField(max_length=60))
    duration_ms = models.FloatField()
    caller_kind = models.CharField(max_length=10, null=True)
    caller_id = models.CharField(max_length=30, null=True)

    class Meta:
        db_table = "request_log_entry"
        indexes: ClassVar = [
            models.Index(fields=["environment_id", "-at", "-id"], name="log_of_environment"),
            models.Index(fields=["request_id", "-at", "-id"], name="log_of_request"),
            models.Index(
                fields=["environment_id", "-at", "-id"], condition=models.Q(status__gte=ERROR), name="log_of_errors"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.status} {self.method} {self.route}"


class OmittedRequests(models.Model):
    environment_id = models.CharField(max_length=30)
    minute = models.DateTimeField()
    requests = models.BigIntegerField()

    class Meta:
        db_table = "request_log_omitted"
        constraints: ClassVar = [models.UniqueConstraint(fields=["environment_id", "minute"], name="log_omitted_once")]
        indexes: ClassVar = [models.Index(fields=["minute"], name="log_omitted_by_minute")]

    def __str__(self) -> str:
        return f"{self.requests} of {self.environment_id}"
