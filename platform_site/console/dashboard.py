"""Metrics of the console's first page: eight queries of the control database, from what `rollups` stores, so an
unavailable region shows its last metrics. Numbers link to their lists if permitted."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS
from django.db.models import Sum
from django.db.models.functions import Now
from django.http import HttpRequest
from django.urls import reverse

from accounts.models import AuditEntry
from platform_site.console import charts, rollups
from platform_site.console.charts import Series
from platform_site.console.sidebar import list_of
from platform_site.models import RateLimitedCaller, Sample
from platform_site.observability import metrics
from platform_site.observability.lag import CONTROL
from platform_site.postgres import sql_files, sql_functions, statements
from platform_site.templatetags.figures import age_of, oldest, quantile
from projects.models import Plan, Project, Region
from rows.changes import stream_counts

HOURS: Final = 24
RECENT: Final = 12
TOP: Final = 8
CONTROL_FRESH: Final = timedelta(minutes=5)
REGION_FRESH: Final = timedelta(seconds=90)
"""A region without newer metrics has no worker."""
SLOW_QUEUE: Final = 60.0
"""Seconds that due work may wait without a warning."""
SLOW_EMAIL: Final = 600.0
_SQL: Final = sql_files.load(
    __file__,
    buckets=", ".join(f"sum(coalesce(buckets[{index + 1}], 0))::bigint" for index in range(len(metrics.BOUNDS))),
)


def dashboard(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Called by unfold, for staff only."""
    now = sql_functions.now(DEFAULT_DB_ALIAS).astimezone(UTC)
    since = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=HOURS - 1)
    samples = {sample.name: sample for sample in Sample.objects.all()}
    control, control_at = _control(samples, now)
    hours = [since + timedelta(hours=step) for step in range(HOURS)]
    by_hour = _rows("by_hour", since)
    by_region = _rows("by_region_and_hour", since)
    endpoints = _rows("by_endpoint", since)[:TOP]
    callers = RateLimitedCaller.objects.filter(at__gte=since).values("caller_id").annotate(count=Sum("requests"))
    may_see_audit_log = list_of(request, "accounts.AuditEntry") is not None
    return context | {
        "title": "Dashboard",
        "control": control,
        "streams": stream_counts.count_all(),
        "warnings": _warnings(request, control, samples, now),
        "plans": Plan.values,
        "projects": _projects(control),
        "measured": max(0, int((now - control_at).total_seconds())),
        "new_projects": _new_projects(control, now),
        "requests": _requests(hours, by_hour),
        "endpoints": [
            each | {"p50": quantile(0.5, each["buckets"]), "p95": quantile(0.95, each["buckets"])} for each in endpoints
        ],
        "regions": [_region(name, samples.get(name), by_region, now) for name in settings.REGION_DATABASES],
        "automation": _automation(hours, by_region),
        "slowest": _rows("slowest", since, TOP),
        "limited": callers.order_by("-count")[:TOP],
        "may_see_audit_log": may_see_audit_log,
        "recent": AuditEntry.objects.order_by("-at", "-id")[:RECENT] if may_see_audit_log else (),
    }


def _rows(name: str, *parameters: Any) -> list[dict[str, Any]]:
    return statements.dicts(DEFAULT_DB_ALIAS, _SQL[name], parameters)


def _control(samples: dict[str, Sample], now: datetime) -> tuple[dict[str, Any], datetime]:
    sample = samples.get(CONTROL)
    if sample is not None and sample.measured_at is not None and now - sample.measured_at < CONTROL_FRESH:
        return sample.values, sample.measured_at
    return rollups.measure_control(), now


def _warnings(
    request: HttpRequest, control: dict[str, Any], samples: dict[str, Sample], now: datetime
) -> list[tuple[str, str, str | None]]:
    """Title, value and link of each."""
    late = Project.objects.filter(deleted_at__lt=Now() - timedelta(minutes=5)).count()
    found = []
    if failed := control["environments_failed"]:
        link = list_of(request, "projects.Environment", status__exact="failed")
        found.append(("Failed environments", f"{failed:,}", link))
    if late:
        link = list_of(request, "projects.Project", deleted_at__isempty="0")
        found.append(("Deletions unfinished for 5 minutes", f"{late:,}", link))
    email_age = control.get("email_age") or 0.0
    if email_age > SLOW_EMAIL:
        link = list_of(request, "accounts.AccountEmail", state="waiting")
        found.append(("Emails cannot be sent", f"the oldest for {age_of(email_age)}", link))
    for region in settings.REGION_DATABASES:
        sample = samples.get(region)
        waits = reverse("console:waiting", args=[region])
        if sample is None:
            found.append((f"{region}: never measured", "is a worker running?", waits))
        elif now - sample.at > REGION_FRESH:
            age = age_of((now - sample.at).total_seconds())
            found.append((f"{region}: not measured for {age}", "is a worker running?", waits))
        elif sample.is_away:
            found.append((f"{region}: the database is unavailable", "its environments return 503", waits))
        else:
            for what, key in (("events not relayed", "unrelayed"), ("deliveries", "due"), ("runs", "queued")):
                if (sample.values.get(f"{key}_age") or 0) > SLOW_QUEUE:
                    found.append((f"{region}: {what} wait", oldest(sample.values[f"{key}_age"]), waits))
    return found


def _projects(control: dict[str, Any]) -> dict[str, Any]:
    """By region: the number of each plan, and of all."""
    by_plan = {
        region: {plan: control["projects"].get(f"{region} {plan}", 0) for plan in Plan.values}
        for region in Region.values
    }
    return {
        "regions": [(region, found.items(), sum(found.values())) for region, found in by_plan.items()],
        "all": sum(control["projects"].values()),
    }


def _new_projects(control: dict[str, Any], now: datetime) -> dict[str, Any]:
    days = [now.date() - timedelta(days=back) for back in range(rollups.DAYS - 1, -1, -1)]
    figures = [control["made"].get(f"{day:%Y-%m-%d}", 0) for day in days]
    series = [Series("projects", "plain", figures)]
    return _chart("New projects", [f"{day:%d %b}" for day in days], series, width=charts.HALF)


def _chart(title: str, labels: Sequence[str], series: Sequence[Series], *, width: int = charts.WIDTH) -> dict[str, Any]:
    return {
        "chart": charts.bars(title, labels, series, width=width),
        "legend": charts.legend(series),
        "any": any(any(each.figures) for each in series),
    }


def _requests(hours: list[datetime], rows: list[dict[str, Any]]) -> dict[str, Any]:
    by_hour = {row["hour"].astimezone(UTC): row for row in rows}
    total, client, server, limited = (
        [by_hour.get(hour, {}).get(name, 0) for hour in hours]
        for name in ("requests", "client_errors", "server_errors", "rate_limited")
    )
    fine = [every - bad - worse for every, bad, worse in zip(total, client, server, strict=True)]
    series = [Series("answered", "good", fine), Series("4xx", "bad", client), Series("5xx", "worse", server)]
    return _chart("Requests by hour", [f"{hour:%H:%M}" for hour in hours], series) | {
        "total": sum(total),
        "client": sum(client),
        "server": sum(server),
        "limited": sum(limited),
    }


def _region(name: str, sample: Sample | None, rows: list[dict[str, Any]], now: datetime) -> dict[str, Any]:
    columns = ("attempts", "attempts_succeeded", "runs_succeeded", "runs_failed", "runs_timed_out")
    sums = {column: sum(row[column] for row in rows if row["region"] == name) for column in columns}
    state = "ok"
    if sample is None or now - sample.at > REGION_FRESH:
        state = "unseen"
    elif sample.is_away:
        state = "unavailable"
    return sums | {
        "name": name,
        "state": state,
        "measured": (now - sample.measured_at).total_seconds() if sample and sample.measured_at else None,
        "queues": defaultdict(lambda: None, sample.values if sample else {}),
        "runs": sums["runs_succeeded"] + sums["runs_failed"],
    }


def _automation(hours: list[datetime], rows: list[dict[str, Any]]) -> dict[str, Any]:
    attempts, arrived, good, bad = (
        [sum(row[column] for row in rows if row["hour"].astimezone(UTC) == hour) for hour in hours]
        for column in ("attempts", "attempts_succeeded", "runs_succeeded", "runs_failed")
    )
    labels = [f"{hour:%H:%M}" for hour in hours]
    missed = [all_ - some for all_, some in zip(attempts, arrived, strict=True)]
    deliveries = [Series("arrived", "good", arrived), Series("failed", "bad", missed)]
    runs = [Series("succeeded", "good", good), Series("failed", "bad", bad)]
    return {
        "deliveries": _chart("Delivery attempts by hour", labels, deliveries, width=charts.HALF),
        "runs": _chart("Function runs by hour", labels, runs, width=charts.HALF),
    }
