"""Logs: requests, timelines, and for owners the project's audit log."""

from collections.abc import Mapping
from typing import Any, Final

from django.http import HttpResponse

from platform_site.console import timeline as timelines
from platform_site.developer_console import forms
from platform_site.developer_console.forms import Field, Form
from platform_site.developer_console.frame import Console, page
from platform_site.http import exact_json

_PERIOD: Final = (Field("since", "Since (UTC)", "datetime-local"), Field("until", "Until (UTC)", "datetime-local"))
_REQUESTS: Final = (
    Field("status", "Status", placeholder="4xx or 404"),
    Field(
        "method",
        "Method",
        "select",
        choices=(("", "any"), *((each, each) for each in ("GET", "POST", "PUT", "PATCH", "DELETE"))),
    ),
    Field("route", "Path", placeholder="/v1/rows/{table}"),
    Field("table", "Table"),
    Field("function", "Function"),
    Field("caller", "Caller id", placeholder="usr_… or key_…"),
    Field("request_id", "Request id", placeholder="req_…"),
    *_PERIOD,
)
_AUDIT: Final = (
    Field("action", "Action", placeholder="key.* or key.issued"),
    Field("actor", "Actor id", placeholder="usr_… or key_…"),
    Field("target", "Target id"),
    Field("request_id", "Request id", placeholder="req_…"),
    Field("environment", "Environment id", placeholder="env_…"),
    *_PERIOD,
)
_KINDS_BY_SCOPE: Final = {"logs:read": {"request"}, "webhooks:read": {"event", "delivery"}, "functions:read": {"run"}}


@page("logs")
def logs(console: Console) -> HttpResponse:
    return console.render("console/logs.html", _listed(console, "/v1/logs", _REQUESTS, {}))


@page("logs")
def audit(console: Console) -> HttpResponse:
    context = _listed(console, "/v1/audit", _AUDIT, {"project": console.project["id"]})
    named = {each["target_id"] for each in context["entries"]} | {each["actor"]["id"] for each in context["entries"]}
    emails = console.emails_of(named)
    for entry in context["entries"]:
        entry["actor_email"], entry["target_email"] = emails.get(entry["actor"]["id"]), emails.get(entry["target_id"])
        entry["detail_text"] = exact_json.dumps(entry["detail"], indent=True) if entry["detail"] else ""
    return console.render("console/audit.html", context)


@page("logs")
def timeline(console: Console) -> HttpResponse:
    wanted_id = console.request.GET.get("id", "").strip().replace("\0", "")
    environment_id = console.environment["id"]
    kinds = {"audit"} if console.is_owner else set()
    for scope, readable in _KINDS_BY_SCOPE.items():
        kinds |= readable if scope in console.me["scopes"] else set()
    found = timelines.of(wanted_id or environment_id, environment_id, within=console.ref, kinds=frozenset(kinds))
    entries = []
    # The newest come first. Without attempts: their deliveries have the outcomes.
    newest = [entry for entry in reversed(found.entries) if entry.kind != "attempt"][: timelines.MAX_SHOWN]
    for entry in found.entries if wanted_id else newest:
        facts = [(name, value) for name, value in entry.facts if value != environment_id]
        entries.append({"entry": entry, "facts": facts})
    context = {"tabs": _tabs(console), "wanted_id": wanted_id, "timeline": found, "entries": entries}
    return console.render("console/timeline.html", context)


def _listed(console: Console, path: str, fields: tuple[Field, ...], fixed: Mapping[str, str]) -> dict[str, Any]:
    filters = console.filters(*(each.name for each in fields))
    query = forms.read([each for each in fields if each.name in filters], filters)
    found = console.filtered_page(path, {**query, **fixed, "limit": "50"})
    return {
        "tabs": _tabs(console),
        "form": Form("logs", fields, filters, console.refusal),
        "filters": filters,
        "entries": found["data"],
        "omitted": found.get("omitted"),
    }


def _tabs(console: Console) -> list[tuple[str, str]]:
    audit_log = {"audit": "Audit log"} if console.is_owner else {}
    return console.tabs({"logs": "Requests", "timeline": "Timeline", **audit_log})
