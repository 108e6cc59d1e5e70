"""Charts of an environment's last 24 hours, loaded after Home. Each member sees what its scopes show."""

from collections.abc import Sequence
from typing import Any, Final

from django.db import Error
from django.http import HttpResponse

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
    found: dict[str, Sequence[tuple[Any, ...]]] = {}
    try:
        with transaction_settings.limited(ref.cluster, _TIMEOUT_MS):
            for name in names:
                facts = {"environment": ref.environment_id, "most": MAX_COUNTED}
                found[name] = statements.rows(ref.cluster, _SQL[name], facts)
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
            functions = Function.objects.using(ref.cluster).filter(environment_id=ref.environment_id)
            for function in functions.exclude(schedule_stopped=None, events_stopped=None)[:_MAX_TROUBLES]:
                what = "schedule" if function.schedule_stopped else "events"
                text = f"The {what} of the function {function.name} stopped."
                found.append((text, console.url("function-settings", function.name)))
    except Error:
        return []
    return found


def _drawn(found: dict[str, Sequence[tuple[Any, ...]]]) -> dict[str, Any]:
    drawn, heads, columns = [], [], []
    labels: list[str] = []
    for name, rows in found.items():
        labels = [f"{row[0]:%H:%M}" for row in rows]
        failed = [row[2] for row in rows]
        series = [Series("succeeded", "good", [row[1] - row[2] for row in rows]), Series("failed", "worse", failed)]
        title = name.capitalize()
        drawn.append((title, charts.bars(title, labels, series, width=charts.HALF), charts.legend(series)))
        heads += [title, "failed"]
        columns += [[row[1] for row in rows], failed]
        if name == "requests":
            speed = [round(row[3] or 0) for row in rows]
            slowest = f"Latency: at most {max(speed)} ms"
            figure = [Series("ms, 95th percentile", "plain", speed)]
            chart = charts.bars("Latency", labels, figure, width=charts.HALF, summary=slowest)
            drawn.append(("Latency", chart, charts.legend(figure)))
            heads.append("ms (p95)")
            columns.append(speed)
    return {
        "charts": drawn,
        "heads": heads,
        "rows": [[label, *(f"{column[index]:,}" for column in columns)] for index, label in enumerate(labels)],
        "is_empty": not any(any(column) for column in columns),
        "is_cut": any(figure >= MAX_COUNTED for column in columns for figure in column),
    }
