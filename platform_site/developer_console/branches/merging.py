"""Merging environments: plan, conflicts, confirmation and applying. The form carries all state."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from django.http import HttpResponse

from platform_site.config import stored_plans, versions
from platform_site.developer_console import forms
from platform_site.developer_console.branches import source_diffs
from platform_site.developer_console.branches.source_diffs import SourceDiff
from platform_site.developer_console.frame import Console, environment_of, page
from platform_site.developer_console.schema import plans
from platform_site.http.errors import ApiError, ValidationFailed
from projects.directory.environments import environment_ref

_GROUPS: Final = (
    ("add", "Added"),
    ("change", "Changed"),
    ("remove", "Removed"),
    ("trust", "Access, destinations and automatic runs"),
)
_PARTS: Final = (
    ("functions", "Allowed hosts, schedules, events and callers of all functions"),
    ("webhooks", "URLs and status of all webhooks, and new webhooks"),
    ("auth", "Sign-in: redirect URIs"),
    ("origins", "Allowed origins"),
)
_SIDES: Final = ("ours", "theirs")


@dataclass(frozen=True, slots=True)
class MergeForm:
    into: Mapping[str, Any]
    source: Mapping[str, Any] | None
    version: str
    include: list[str] = field(default_factory=list)
    resolve: dict[str, str] = field(default_factory=dict)
    backfill: dict[str, str] = field(default_factory=dict)
    """Values for existing rows in new columns, by `table.column`."""

    @property
    def body(self) -> dict[str, Any]:
        if self.version or self.source is None:
            return {"version": self.version}
        return {"from": self.source["id"], "include": self.include, "resolve": self.resolve}

    @property
    def fingerprint(self) -> str:
        return forms.fingerprint({"into": self.into["id"], "backfill": self.backfill, **self.body})


@page("branches")
def merge(console: Console) -> HttpResponse:
    form = _read_form(console)
    is_apply = console.request.POST.get("action") == "apply"
    context: dict[str, Any] = {}
    if console.request.method == "POST":
        try:
            context = _apply(console, form) if is_apply else {"plan": _plan(console, form)}
        except ApiError as refusal:
            if refusal.status == 403:
                raise
            console.refusal = refusal
            context = {"stale": is_apply and refusal.status == 412}
            if is_apply and refusal.status != 412:
                with suppress(ApiError):
                    context["plan"] = _plan(console, form)
    return console.render("console/merge.html", _context(console, form, context) | context)


def _read_form(console: Console) -> MergeForm:
    values = console.request.POST if console.request.method == "POST" else console.request.GET
    into = environment_of(console.project, values.get("into") or console.environment["id"])
    source = environment_of(console.project, values["from"]) if values.get("from") else None
    resolve = {
        path: choice
        for number, path in enumerate(values.getlist("path"))
        if (choice := values.get(f"choice-{number}")) in _SIDES
    }
    include = sorted({*values.getlist("include")})  # the page has two lists of boxes
    return MergeForm(into, source, values.get("version", ""), include, resolve, plans.backfill_texts(values))


def _plan(console: Console, form: MergeForm) -> dict[str, Any]:
    if form.source is None and not form.version:
        raise forms.invalid("from", "Choose the environment to merge.")
    body = {**form.body, "impact": True}
    if form.backfill and form.source is not None:
        body["resolve"] = {**form.resolve, **_backfilled(console, form.source["id"], form.backfill)}
    plan: dict[str, Any] = console.client.call("POST", "/v1/config/plan", body, environment=form.into["id"])
    plan["fingerprint"] = forms.fingerprint(plan["changes"])
    submitted = console.request.POST
    confirmed = submitted.getlist("confirm") if submitted.get("fingerprint") == plan["fingerprint"] else []
    changes = plan["changes"]
    diffs = _source_diffs(console, form.into["id"], plan)
    for change in changes:
        change["source_diff"] = diffs.get(change["path"])
        change["name"] = change["operation"] or change["path"]
        change["is_confirmed"] = change["name"] in confirmed
    plan["groups"] = [
        (title, of_kind) for kind, title in _GROUPS if (of_kind := [each for each in changes if each["kind"] == kind])
    ]
    return plan


def _backfilled(console: Console, source_id: str, texts: Mapping[str, str]) -> dict[str, Any]:
    """The source's columns with values for existing rows, by path."""
    tables = console.client.call("GET", plans.PATH, environment=source_id)["document"]["tables"]
    found = {}
    for name, text in texts.items():
        if column := plans.column_of(tables, name):
            path = f"schema.tables.{name.replace('.', '.columns.', 1)}"
            found[path] = column | {"backfill": plans.backfill_value(column, text)}
    return found


def _source_diffs(console: Console, into_id: str, plan: Mapping[str, Any]) -> dict[str, SourceDiff]:
    environment = environment_ref(into_id)
    if environment is None or not any(each["path"].startswith("functions.") for each in plan["changes"]):
        return {}
    query = {"parts": "functions"}
    try:
        now = console.client.call("GET", "/v1/config", query=query, environment=into_id)["config"]["functions"]
    except ApiError:  # the sources are too large in total
        return {}
    return source_diffs.by_path(now, stored_plans.find(environment, plan["plan"]).document.get("functions", {}))


def _apply(console: Console, form: MergeForm) -> dict[str, Any]:
    submitted = console.request.POST
    if console.may_write and submitted.get("planned") != form.fingerprint:
        message = "The form was changed after the plan. Nothing was applied: check the new plan."
        raise ValidationFailed(message)
    confirmed = [each.strip() for each in submitted.getlist("confirm") if each]
    body = {"plan": submitted.get("plan", ""), "confirm": confirmed}
    try:
        done = console.client.call("POST", "/v1/config/apply", body, environment=form.into["id"])
    except ValidationFailed as refusal:
        if not any(each.code == "unconfirmed" for each in refusal.fields):
            raise
        text = "Nothing was changed. Confirm each marked change of the plan below: type its name or tick its box."
        raise ValidationFailed(text, fields=refusal.fields) from None
    follows = " Sign-in and origins follow within two minutes." if done["status"] == "completing" else ""
    return {"notice": f"All changes of the plan are applied.{follows}", "undo": submitted.get("replaced", "")}


def _context(console: Console, form: MergeForm, context: dict[str, Any]) -> dict[str, Any]:
    plan = context.get("plan") or {}
    refused = [] if console.refusal is None else [each.as_dict() for each in console.refusal.fields]
    open_paths = [each["path"] for each in plan.get("conflicts", [])]
    decided = [each for each in form.resolve.items() if each[0] not in open_paths]
    warnings = plan.get("warnings", [])
    kept = [each for each in warnings if each["code"] == "kept"]
    for number, warning in enumerate(kept, len(open_paths) + len(decided)):
        warning["number"] = number
    return {
        "form": form,
        "here": console.url("merge"),
        "planned": form.fingerprint,
        "from_errors": [each["message"] for each in refused if each["field"] == "from"],
        "environments": console.project["environments"],
        "includes": _includes(console, form),
        "stored": _stored(console, form),
        "backfill": {} if "undo" in context else plans.backfill_fields(console.request.POST, refused),
        "resolved": [(number, *each) for number, each in enumerate(decided, len(open_paths))],
        "kept": kept,
        "left_out": [each for each in warnings if each["code"] == "not_included"],
        "warnings": [each for each in warnings if each["code"] != "not_included"],
    }


def _stored(console: Console, form: MergeForm) -> list[tuple[str, datetime, int]]:
    """Those of the environment into which is merged. A staff grant is for one environment."""
    is_open = console.may_write and (console.client.staff_grant is None or form.into["id"] == console.environment["id"])
    into = environment_ref(form.into["id"]) if is_open else None
    return [] if into is None else versions.stored_in(into)


def _includes(console: Console, form: MergeForm) -> list[dict[str, Any]]:
    found = dict(_PARTS)
    if form.source is not None and console.may_write:
        found |= dict.fromkeys(_items(console, form.source["id"]), "")
    found |= {name: "" for name in form.include if name not in found}
    return [
        {"path": path, "title": title, "is_checked": path in form.include, "part": path.partition(".")[0]}
        for path, title in found.items()
    ]


def _items(console: Console, source_id: str) -> list[str]:
    try:
        functions = console.client.call("GET", "/v1/functions", environment=source_id)["data"]
        query = {"parts": "webhooks"}
        config = console.client.call("GET", "/v1/config", query=query, environment=source_id)["config"]
    except ApiError:  # planning reports it
        return []
    webhooks = [name for name in config["webhooks"] if not name.startswith("wh_")]
    return [*(f"functions.{each['name']}" for each in functions), *(f"webhooks.{name}" for name in webhooks)]
