"""Metrics of the console's first page: eight queries of the control database, from what `rollups` stores, so an
unavailable region shows its last metrics. Numbers link to their lists if permitted."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connection
from django.db.models import Sum
from django.db.models.functions import Now
from django.http import HttpRequest
from django.urls import reverse

from accounts.console.base import url_of
from accounts.models import AuditEntry
from platform_site.console import charts, rollups
from platform_site.console.charts import Series
from platform_site.console.figures import age_of, milliseconds, oldest, percentage, quantile, tone_of, up_to
from platform_site.console.sidebar import list_of
from platform_site.models import RateLimitedCaller, Sample
from platform_site.observability import metrics
from platform_site.postgres import sql_files, sql_functions
from platform_site.templatetags.console_ids import timeline_url
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
_SQL: Final = sql_files.load(
    __file__,
    buckets=", ".join(f"sum(coalesce(buckets[{index + 1}], 0))::bigint" for index in range(len(metrics.BOUNDS))),
)
LinkTo = Callable[..., str | None]
"""`sidebar.list_of` for the request."""


@dataclass(frozen=True, slots=True)
class Metric:
    title: str
    value: str
    link: str | None = None
    note: str = ""
    tone: str = ""


def dashboard(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Called by unfold, for staff only."""
    now = sql_functions.now(DEFAULT_DB_ALIAS).astimezone(UTC)
    since = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=HOURS - 1)
    samples = {sample.name: sample for sample in Sample.objects.all()}
    control, control_at = _control(samples, now)
    hours = [since + timedelta(hours=step) for step in range(HOURS)]
    by_hour = _rows("by_hour", [since])
    by_region = _rows("by_region_and_hour", [since])
    link_to = partial(list_of, request)
    return context | {
        "title": "Dashboard",
        "counts": _counts(control, link_to),
        "warnings": _warnings(control, samples, now, link_to),
        "projects": _projects(control, link_to),
        "measured": max(0, int((now - control_at).total_seconds())),
        "new_projects": _new_projects(control, now),
        "requests": _requests(hours, by_hour, link_to),
        "endpoints": _endpoints(since, link_to),
        "regions": _regions(samples, by_region, now, link_to),
        "automation": _automation(hours, by_region, link_to),
        "slowest": _slowest(since, link_to),
        "limited": _limited(since, link_to),
        "recent": _recent(link_to),
        "may_see_audit_log": link_to("accounts.AuditEntry") is not None,
    }


def _rows(name: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(_SQL[name], parameters)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


def _control(samples: dict[str, Sample], now: datetime) -> tuple[dict[str, Any], datetime]:
    sample = samples.get(rollups.CONTROL)
    if sample is not None and sample.measured_at is not None and now - sample.measured_at < CONTROL_FRESH:
        return sample.values, sample.measured_at
    return rollups.measure_control(), now


def _counts(control: dict[str, Any], link_to: LinkTo) -> list[Metric]:
    estimated = "estimated" if control["users_estimated"] else ""
    streams = stream_counts.count_all()
    return [
        Metric("Projects", f"{sum(control['projects'].values()):,}",
               link_to("projects.Project", deleted_at__isempty="1")),
        Metric("Environments", f"{control['environments']:,}", link_to("projects.Environment")),
        Metric("Platform accounts", f"{control['accounts']:,}", link_to("accounts.User", pool="platform")),
        Metric("All users", f"{control['users']:,}", link_to("accounts.User"), note=estimated),
        Metric("Live keys", f"{control['keys']:,}", link_to("accounts.ServerKey", state="live")),
        Metric("Open change streams", "unknown" if streams is None else f"{streams:,}"),
    ]  # fmt: skip


def _warnings(control: dict[str, Any], samples: dict[str, Sample], now: datetime, link_to: LinkTo) -> list[Metric]:
    late = Project.objects.filter(deleted_at__lt=Now() - timedelta(minutes=5)).count()
    found = []
    if control["environments_failed"]:
        found.append(Metric("Failed environments", f"{control['environments_failed']:,}",
                            link_to("projects.Environment", status__exact="failed")))  # fmt: skip
    if late:
        found.append(Metric("Deletions unfinished for 5 minutes", f"{late:,}",
                            link_to("projects.Project", deleted_at__isempty="0")))  # fmt: skip
    for region in settings.REGION_DATABASES:
        sample = samples.get(region)
        waits = reverse("console:waiting", args=[region])
        if sample is None or now - sample.at > REGION_FRESH:
            state = (
                "never measured" if sample is None else f"not measured for {age_of((now - sample.at).total_seconds())}"
            )
            found.append(Metric(f"{region}: {state}", "is a worker running?", waits))
        elif sample.is_away:
            found.append(Metric(f"{region}: the database is unavailable", "its environments return 503", waits))
        else:
            for what, key in (("events not relayed", "unrelayed"), ("deliveries", "due"), ("runs", "queued")):
                if (sample.values.get(f"{key}_age") or 0) > SLOW_QUEUE:
                    age = age_of(sample.values[f"{key}_age"])
                    found.append(Metric(f"{region}: {what} wait", f"the oldest for {age}", waits))
    return found


def _projects(control: dict[str, Any], link_to: LinkTo) -> dict[str, Any]:
    def cell(region: str, plan: str | None) -> Metric:
        counts = control["projects"]
        number = counts.get(f"{region} {plan}", 0) if plan else sum(counts.get(f"{region} {p.value}", 0) for p in Plan)
        query = {"deleted_at__isempty": "1", "region__exact": region} | ({"plan__exact": plan} if plan else {})
        return Metric(region, f"{number:,}", link_to("projects.Project", **query) if number else None)

    return {
        "headers": ["Region", *[plan.value for plan in Plan], "All"],
        "rows": [
            (region.value, [*[cell(region.value, plan.value) for plan in Plan], cell(region.value, None)])
            for region in Region
        ],
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


def _requests(hours: list[datetime], rows: list[tuple[Any, ...]], link_to: LinkTo) -> dict[str, Any]:
    by_hour = {hour.astimezone(UTC): figures for hour, *figures in rows}
    figures = [by_hour.get(hour, [0, 0, 0, 0]) for hour in hours]
    answered, client, server, limited = ([row[index] for row in figures] for index in range(4))
    fine = [total - bad - worse for total, bad, worse in zip(answered, client, server, strict=True)]
    series = [Series("answered", "good", fine), Series("4xx", "bad", client), Series("5xx", "worse", server)]
    total, failed = sum(answered), sum(server)
    endpoints = link_to("platform_site.EndpointMetric")
    return _chart("Requests by hour", [f"{hour:%H:%M}" for hour in hours], series) | {
        "figures": [
            Metric("Requests", f"{total:,}", endpoints),
            Metric("5xx", f"{failed:,}", link_to("platform_site.EndpointMetric", errors="server"),
                   note=percentage(failed, total), tone="bad" if failed else ""),
            Metric("4xx", f"{sum(client):,}", link_to("platform_site.EndpointMetric", errors="client"),
                   note=percentage(sum(client), total)),
            Metric("Rate-limited", f"{sum(limited):,}", link_to("platform_site.EndpointMetric", errors="limited")),
        ],
    }  # fmt: skip


def _endpoints(since: datetime, link_to: LinkTo) -> list[dict[str, Any]]:
    found = []
    for method, route, requests, client, server, *buckets in _rows("by_endpoint", [since])[:TOP]:
        link = link_to("platform_site.EndpointMetric", route__exact=route, method__exact=method)
        p95 = quantile(0.95, buckets)
        found.append(
            {
                "name": f"{method} {_endpoint_label(route)}",
                "requests": Metric("", f"{requests:,}", link),
                "errors": Metric("", f"{client + server:,}", link, tone="bad" if server else ""),
                "p50": milliseconds(quantile(0.5, buckets)),
                "p95": Metric("", milliseconds(p95), link),
            }
        )
    return found


def _endpoint_label(route: str) -> str:
    return re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", route)


def _regions(
    samples: dict[str, Sample], rows: list[tuple[Any, ...]], now: datetime, link_to: LinkTo
) -> list[dict[str, Any]]:
    found = []
    for region in settings.REGION_DATABASES:
        sample = samples.get(region)
        sums = [sum(row[index] for row in rows if row[0] == region) for index in range(2, 7)]
        attempts, succeeded, runs_good, runs_bad, timeouts = sums
        waits = reverse("console:waiting", args=[region])
        figures = link_to("platform_site.RegionMetric", region__exact=region)
        values = sample.values if sample else {}
        state = "ok"
        if sample is None or now - sample.at > REGION_FRESH:
            state = "unseen"
        elif sample.is_away:
            state = "unavailable"
        measured = age_of((now - sample.measured_at).total_seconds()) if sample and sample.measured_at else None
        found.append(
            {
                "name": region,
                "state": state,
                "measured": measured,
                "figures": [
                    Metric("Deliveries due", up_to(values.get("due")), waits, note=oldest(values.get("due_age"))),
                    Metric("Events not relayed", up_to(values.get("unrelayed")), waits,
                           note=oldest(values.get("unrelayed_age"))),
                    Metric("Runs queued", up_to(values.get("queued")), waits, note=oldest(values.get("queued_age"))),
                    Metric("Runs executing", up_to(values.get("executing")), waits),
                    Metric("Deliveries held", up_to(values.get("held")), waits),
                    Metric("Delivery success", percentage(succeeded, attempts) or "–", figures,
                           note=f"of {attempts:,} in 24 h", tone=tone_of(succeeded, attempts)),
                    Metric("Run success", percentage(runs_good, runs_good + runs_bad) or "–", figures,
                           note=f"of {runs_good + runs_bad:,}, {timeouts:,} timed out",
                           tone=tone_of(runs_good, runs_good + runs_bad)),
                ],
            }
        )  # fmt: skip
    return found


def _automation(hours: list[datetime], rows: list[tuple[Any, ...]], link_to: LinkTo) -> dict[str, Any]:
    def by_hour(index: int) -> list[int]:
        return [sum(row[index] for row in rows if row[1].astimezone(UTC) == hour) for hour in hours]

    attempts, arrived, good, bad = (by_hour(index) for index in (2, 3, 4, 5))
    labels = [f"{hour:%H:%M}" for hour in hours]
    missed = [all_ - some for all_, some in zip(attempts, arrived, strict=True)]
    deliveries = [Series("arrived", "good", arrived), Series("failed", "bad", missed)]
    runs = [Series("succeeded", "good", good), Series("failed", "bad", bad)]
    return {
        "deliveries": _chart("Delivery attempts by hour", labels, deliveries, width=charts.HALF),
        "runs": _chart("Function runs by hour", labels, runs, width=charts.HALF),
        "link": link_to("platform_site.RegionMetric"),
    }


def _slowest(since: datetime, link_to: LinkTo) -> list[dict[str, Any]]:
    found = []
    for function_id, environment_id, name, region, runs, failed, mean, longest in _rows("slowest", [since, TOP]):
        link = link_to("platform_site.FunctionMetric", q=function_id)
        found.append(
            {
                "name": name,
                "link": timeline_url(function_id),
                "where": f"{environment_id} in {region}",
                "runs": Metric("", f"{runs:,}", link),
                "failed": Metric("", f"{failed:,}", link, tone="bad" if failed else ""),
                "mean": Metric("", f"{mean:,} ms", link),
                "longest": Metric("", f"{longest:,} ms", link),
            }
        )
    return found


def _limited(since: datetime, link_to: LinkTo) -> list[dict[str, Any]]:
    callers = (
        RateLimitedCaller.objects.filter(at__gte=since).values_list("caller_id").annotate(count=Sum("requests"))
    ).order_by("-count")[:TOP]
    return [
        {
            "caller": caller,
            "link": timeline_url(caller),
            "requests": Metric("", f"{count:,}", link_to("platform_site.RateLimitedCaller", q=caller)),
        }
        for caller, count in callers
    ]


def _recent(link_to: LinkTo) -> list[dict[str, Any]]:
    if link_to("accounts.AuditEntry") is None:
        return []
    return [
        {
            "at": entry.at,
            "action": entry.action,
            "link": url_of("accounts_auditentry", entry.pk),
            "target": entry.target_id,
            "actor": entry.actor_id or entry.actor_kind,
        }
        for entry in AuditEntry.objects.order_by("-at", "-id")[:RECENT]
    ]
