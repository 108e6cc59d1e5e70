"""Rollups of the regions' deliveries, runs and queues, in buckets of five minutes, by a worker every few seconds. Each
run recomputes the last two buckets, and catches up an hour at a time for up to a day. Queries use indexes; counts stop
at MAX_COUNTED."""

import logging
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any, Final

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, Error
from django.db.models import Count, Max
from django.db.models.functions import Now, TruncDate

from accounts.models import ServerKey, User
from accounts.registration import email_outbox
from functions.runs.queue import WAITING
from platform_site.models import EndpointMetric, FunctionMetric, RateLimitedCaller, RegionMetric, Sample
from platform_site.observability.lag import CONTROL, WORKERS
from platform_site.postgres import sql_files, statements
from projects.models import Environment, Project
from projects.provisioning.suspension import suspended_in

BUCKET: Final = timedelta(minutes=5)
MAX_CATCH_UP: Final = timedelta(days=1)
CATCH_UP_STEP: Final = timedelta(hours=1)
RETENTION: Final = timedelta(days=2)
MAX_COUNTED: Final = 10_000
SLOWEST: Final = 20
DAYS: Final = 14

logger = logging.getLogger("platform.figures")

SQL: Final = sql_files.load(__file__, waiting=WAITING)


def measure_region(region: str) -> None:
    try:
        queues, now = _queues(region)
        since = _next_bucket(region, now)
        while since < now:
            until = min(since + CATCH_UP_STEP, now + BUCKET)
            _sum_up(region, since, until)
            since = until
    except Error as error:
        logger.warning("a region was not measured", extra={"region": region, "why": type(error).__name__})
        Sample.objects.update_or_create(name=region, defaults={"at": Now(), "is_away": True})
        return
    Sample.objects.update_or_create(
        name=region, defaults={"at": Now(), "measured_at": Now(), "is_away": False, "values": queues}
    )


def _queues(region: str) -> tuple[dict[str, Any], datetime]:
    """Without those of suspended projects."""
    [found] = statements.dicts(region, SQL["queues"], {"most": MAX_COUNTED + 1, "suspended": suspended_in(region)})
    now = found.pop("now")
    ages = {name: max(0.0, age.total_seconds()) for name, age in found.items() if isinstance(age, timedelta)}
    return found | ages, now


def _next_bucket(region: str, now: datetime) -> datetime:
    """The bucket before the last computed one, at most a day back."""
    earliest = _bucket_of(now - MAX_CATCH_UP)
    last = RegionMetric.objects.filter(region=region).aggregate(last=Max("at"))["last"]
    return earliest if last is None else max(earliest, last - BUCKET)


def _bucket_of(at: datetime) -> datetime:
    seconds = int(at.timestamp())
    return datetime.fromtimestamp(seconds - seconds % int(BUCKET.total_seconds()), UTC)


def _sum_up(region: str, since: datetime, until: datetime) -> None:
    span = {"since": since, "until": until}
    attempts = {row["at"]: row for row in statements.dicts(region, SQL["attempts"], span)}
    runs: dict[datetime, list[dict[str, Any]]] = defaultdict(list)
    for row in statements.dicts(region, SQL["runs"], span):
        runs[row["at"]].append(row)
    buckets = [_bucket_of(since) + BUCKET * step for step in range(int((until - since) / BUCKET) or 1)]
    region_metrics = [
        RegionMetric(
            region=region,
            runs_succeeded=sum(row["runs"] - row["failed"] for row in runs[at]),
            runs_failed=sum(row["failed"] for row in runs[at]),
            runs_timed_out=sum(row["timed_out"] for row in runs[at]),
            **attempts.get(at, {"at": at, "attempts": 0, "attempts_succeeded": 0}),
        )
        for at in sorted({*buckets, *attempts, *runs})
    ]
    function_metrics = [
        FunctionMetric(region=region, **{name: value for name, value in row.items() if name != "timed_out"})
        for found in runs.values()
        for row in sorted(found, key=itemgetter("longest_ms"), reverse=True)[:SLOWEST]
        if row["environment_id"] is not None
    ]
    RegionMetric.objects.bulk_create(
        region_metrics,
        update_conflicts=True,
        unique_fields=["at", "region"],
        update_fields=["attempts", "attempts_succeeded", "runs_succeeded", "runs_failed", "runs_timed_out"],
    )
    FunctionMetric.objects.bulk_create(
        function_metrics,
        update_conflicts=True,
        unique_fields=["at", "function_id"],
        update_fields=["runs", "failed", "total_ms", "longest_ms"],
    )


def measure_control() -> dict[str, Any]:
    """Store and return counts of projects, environments, accounts and keys: seconds on a platform with millions."""
    by_region_and_plan = {
        f"{region} {plan}": count
        for region, plan, count in Project.objects.live()
        .values_list("region", "plan")
        .annotate(count=Count("pk"))
        .order_by()
    }
    made = (
        Project.objects.filter(created_at__gt=Now() - timedelta(days=DAYS))
        .annotate(day=TruncDate("created_at"))
        .values_list("day")
        .annotate(count=Count("pk"))
    )
    users = _estimated_rows(User)
    values = {
        "projects": by_region_and_plan,
        "environments": Environment.objects.live().count(),
        "environments_failed": Environment.objects.live().filter(status="failed").count(),
        "accounts": User.objects.in_pool(None).count(),
        "users": users,
        "users_estimated": users > MAX_COUNTED,
        "keys": ServerKey.objects.live().count(),
        "email_age": email_outbox.age_of_oldest_failing(),
        "made": {f"{day:%Y-%m-%d}": count for day, count in made.order_by("day")},
    }
    Sample.objects.update_or_create(
        name=CONTROL, defaults={"at": Now(), "measured_at": Now(), "is_away": False, "values": values}
    )
    return values


def _estimated_rows(model: type[User]) -> int:
    """By the last ANALYZE: counting would take seconds."""
    statement = "SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = %s::regclass"
    estimate = int(statements.value(DEFAULT_DB_ALIAS, statement, [model._meta.db_table]))
    return estimate if estimate > MAX_COUNTED else model._default_manager.count()


def purge_old() -> None:
    """Delete metrics older than two days, and samples of removed regions."""
    for model in (EndpointMetric, RateLimitedCaller, RegionMetric, FunctionMetric):
        model.objects.filter(at__lt=Now() - RETENTION).delete()
    Sample.objects.exclude(name__in=[CONTROL, WORKERS, *settings.REGION_DATABASES]).delete()
