from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models


class EndpointMetric(models.Model):
    """One endpoint's responses in one bucket, over all web processes."""

    at = models.DateTimeField()
    method = models.CharField(max_length=10)
    route = models.CharField(max_length=200)
    requests = models.BigIntegerField()
    client_errors = models.BigIntegerField()
    server_errors = models.BigIntegerField()
    rate_limited = models.BigIntegerField()
    """429; included in `client_errors`."""
    buckets = ArrayField(models.BigIntegerField())
    """Counts by duration, for the bounds of `metrics.SECONDS`."""

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["at", "method", "route"], name="endpoint_figure_once")]

    def __str__(self) -> str:
        return f"{self.method} {self.route}"


class RateLimitedCaller(models.Model):
    at = models.DateTimeField()
    caller_id = models.CharField(max_length=64)
    requests = models.BigIntegerField()

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["at", "caller_id"], name="caller_refusal_once")]

    def __str__(self) -> str:
        return self.caller_id


class RegionMetric(models.Model):
    at = models.DateTimeField()
    region = models.CharField(max_length=40)
    attempts = models.BigIntegerField()
    attempts_succeeded = models.BigIntegerField()
    runs_succeeded = models.BigIntegerField()
    runs_failed = models.BigIntegerField()
    runs_timed_out = models.BigIntegerField()
    """Included in `runs_failed`."""

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["at", "region"], name="region_figure_once")]

    def __str__(self) -> str:
        return self.region


class FunctionMetric(models.Model):
    """One function's runs in one bucket, if it was among the slowest."""

    at = models.DateTimeField()
    region = models.CharField(max_length=40)
    environment_id = models.CharField(max_length=30)
    function_id = models.CharField(max_length=30)
    name = models.CharField(max_length=63)
    runs = models.BigIntegerField()
    failed = models.BigIntegerField()
    total_ms = models.BigIntegerField()
    longest_ms = models.BigIntegerField()

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["at", "function_id"], name="function_figure_once")]

    def __str__(self) -> str:
        return self.name


class Sample(models.Model):
    """The latest values of `control`, `workers`, or a region."""

    name = models.CharField(max_length=40, primary_key=True)
    at = models.DateTimeField()
    values = models.JSONField(default=dict)
    measured_at = models.DateTimeField(null=True)
    is_away = models.BooleanField(default=False)

    def __str__(self) -> str:
        return self.name
