"""Charts of an environment's last 24 hours, loaded after Home. Each member sees what its scopes show."""

from typing import Any, Final

from django.db import Error
from django.http import HttpResponse
from django.utils.safestring import SafeString

from functions.models import Function
from platform_site.console import charts
from platform_site.console.charts import Series
from platform_site.developer_console.frame import Console, page
from platform_site.postgres import sql_files, statements, transaction_settings
from webhooks.models import Webhook

MAX_COUNTED: Final = 10_000
_MAX_TROUBLES: Final = 10
_TIMEOUT_MS: Final = 1000
_SQL: Final = sql_files.load(__file__)
_SCOPES: Final = {"requests": "logs:read", "runs": "functions:read", "deliveries": "webhooks:read"}


@page("home")
def activity(console: Console) -> HttpResponse:
    layout = "console/part.html" if console.request.htmx else "console/base.html"  # type: ignore[attr-defined]
    return console.render("console/activity.html", {"activity": of(console), "layout": layout})


def of(console: Console) -> dict[str, Any] | None:
    """The charts of the template; None if the project is suspended, or the region unavailable or slow."""
    if console.project["suspended_at"]:
        return None
    ref = console.ref
    names = [name for name, scope in _SCOPES.items() if scope in console.me["scopes"]]
    found: dict[str, list[dict[str, Any]]] = {}
    try:
        with transaction_settings.limited(ref.cluster, _TIMEOUT_MS):
            for name in names:
                parameters = {"environment": ref.environment_id, "most": MAX_COUNTED}
                found[name] = statements.dicts(ref.cluster, _SQL[name], parameters)
    except Error:
        return None
    return _drawn(found)


def troubles(console: Console) -> list[tuple[str, str]]:
    """(text, URL) of failing webhooks and stopped triggers. Two queries."""
    scopes = console.me["scopes"]
    found: list[tuple[str, str]] = []
    if console.project["suspended_at"]:
        return found
    ref = console.ref
    try:
        if "webhooks:read" in scopes:
            webhooks = Webhook.objects.using(ref.cluster).filter(environment_id=ref.environment_id, deleted_at=None)
            for each in webhooks.exclude(failing_since=None, disabled_reason=None).order_by("-id")[:_MAX_TROUBLES]:
                state = "is disabled" if each.disabled_reason else "fails"
                found.append((f"The webhook {each.name or each.url} {state}.", console.url("webhook", each.pk)))
        if "functions:read" in scopes:
            stopped = Function.objects.of(ref).exclude(schedule_stopped=None, events_stopped=None)
            for function in stopped[:_MAX_TROUBLES]:
                trigger = "schedule" if function.schedule_stopped else "events"
                text = f"The {trigger} of the function {function.name} stopped."
                found.append((text, console.url("function-settings", function.name)))
    except Error:
        return []
    return found


def _drawn(found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    drawn: list[tuple[str, SafeString, SafeString]] = []
    labels: list[str] = []
    columns: list[tuple[str, list[int]]] = []
    """Of the table below the charts."""
    for name, hours in found.items():
        labels = [f"{hour['hour']:%H:%M}" for hour in hours]
        counts, failed = [hour["count"] for hour in hours], [hour["failed"] for hour in hours]
        succeeded = [hour["count"] - hour["failed"] for hour in hours]
        series = [Series("succeeded", "good", succeeded), Series("failed", "worse", failed)]
        title = name.capitalize()
        drawn.append((title, charts.bars(title, labels, series, width=charts.HALF), charts.legend(series)))
        columns += [(title, counts), ("failed", failed)]
        if name == "requests":
            latencies = [round(hour["p95"] or 0) for hour in hours]
            series = [Series("ms, 95th percentile", "plain", latencies)]
            summary = f"Latency: at most {max(latencies)} ms"
            chart = charts.bars("Latency", labels, series, width=charts.HALF, summary=summary)
            drawn.append(("Latency", chart, charts.legend(series)))
            columns.append(("ms (p95)", latencies))
    figures = [column for _, column in columns]
    return {
        "charts": drawn,
        "heads": [head for head, _ in columns],
        "rows": [[label, *(f"{column[index]:,}" for column in figures)] for index, label in enumerate(labels)],
        "is_empty": not any(any(column) for column in figures),
        "is_cut": any(figure >= MAX_COUNTED for column in figures for figure in column),
    }
