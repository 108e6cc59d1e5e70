"""Merging environments: plan, conflicts, confirmation and applying. The form carries all state."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from django.http import HttpResponse

from platform_site.config import versions
from platform_site.developer_console import forms
from platform_site.developer_console.frame import Console, environment_of, page
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
class _Asked:
    into: Mapping[str, Any]
    source: Mapping[str, Any] | None
    version: str
    include: list[str] = field(default_factory=list)
    resolve: dict[str, str] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, Any]:
        if self.version or self.source is None:
            return {"version": self.version}
        return {"from": self.source["id"], "include": self.include, "resolve": self.resolve}

    @property
    def fingerprint(self) -> str:
        return forms.fingerprint({"into": self.into["id"], **self.body})


@page("branches")
def merge(console: Console) -> HttpResponse:
    asked = _asked(console)
    is_apply = console.request.POST.get("action") == "apply"
    context: dict[str, Any] = {}
    if console.request.method == "POST":
        try:
            context = _apply(console, asked) if is_apply else {"plan": _plan(console, asked)}
        except ApiError as refusal:
            if refusal.status == 403:
                raise
            console.refusal = refusal
            context = {"stale": is_apply and refusal.status == 412}
            if is_apply and refusal.status != 412:
                with suppress(ApiError):
                    context["plan"] = _plan(console, asked)
    return console.render("console/merge.html", _shown(console, asked, context) | context)


def _asked(console: Console) -> _Asked:
    given = console.request.POST if console.request.method == "POST" else console.request.GET
    into = environment_of(console.project, given.get("into") or console.environment["id"])
    source = environment_of(console.project, given["from"]) if given.get("from") else None
    resolve = {
        path: choice
        for number, path in enumerate(given.getlist("path"))
        if (choice := given.get(f"choice-{number}")) in _SIDES
    }
    return _Asked(into, source, given.get("version", ""), list(dict.fromkeys(given.getlist("include"))), resolve)


def _plan(console: Console, asked: _Asked) -> dict[str, Any]:
    if asked.source is None and not asked.version:
        raise forms.invalid("from", "Choose the environment to merge.")
    body = {**asked.body, "impact": True}
    plan: dict[str, Any] = console.client.call("POST", "/v1/config/plan", body, environment=asked.into["id"])
    plan["seen"] = forms.fingerprint(plan["changes"])
    given = console.request.POST
    confirmed = given.getlist("confirm") if given.get("seen") == plan["seen"] else []
    for change in plan["changes"]:
        change["name"] = change["operation"] or change["path"]
        change["is_confirmed"] = change["name"] in confirmed
    changes = plan["changes"]
    plan["groups"] = [
        (title, of_kind) for kind, title in _GROUPS if (of_kind := [each for each in changes if each["kind"] == kind])
    ]
    return plan


def _apply(console: Console, asked: _Asked) -> dict[str, Any]:
    given = console.request.POST
    if console.may_write and given.get("planned") != asked.fingerprint:
        message = "The form was changed after the plan. Nothing was applied: check the new plan."
        raise ValidationFailed(message)
    body = {"plan": given.get("plan", ""), "confirm": [each.strip() for each in given.getlist("confirm") if each]}
    try:
        done = console.client.call("POST", "/v1/config/apply", body, environment=asked.into["id"])
    except ValidationFailed as refusal:
        if not any(each.code == "unconfirmed" for each in refusal.fields):
            raise
        text = "Nothing was changed. Confirm each marked change of the plan below: type its name or tick its box."
        raise ValidationFailed(text, fields=refusal.fields) from None
    follows = " Sign-in and origins follow within two minutes." if done["status"] == "completing" else ""
    return {"notice": f"All changes of the plan are applied.{follows}", "undo": given.get("replaced", "")}


def _shown(console: Console, asked: _Asked, context: dict[str, Any]) -> dict[str, Any]:
    plan = context.get("plan") or {}
    refused_fields = [] if console.refusal is None else console.refusal.fields
    open_paths = [each["path"] for each in plan.get("conflicts", [])]
    return {
        "asked": asked,
        "here": console.url("merge"),
        "planned": asked.fingerprint,
        "from_errors": [each.message for each in refused_fields if each.field == "from"],
        "environments": console.project["environments"],
        "includes": _includes(console, asked),
        "stored": _stored(console, asked),
        "resolved": [
            (len(open_paths) + number, path, choice)
            for number, (path, choice) in enumerate(each for each in asked.resolve.items() if each[0] not in open_paths)
        ],
    }


def _stored(console: Console, asked: _Asked) -> list[tuple[str, datetime, int]]:
    """Those of the environment into which is merged. A staff grant is for one environment."""
    is_open = console.may_write and (
        console.client.staff_grant is None or asked.into["id"] == console.environment["id"]
    )
    into = environment_ref(asked.into["id"]) if is_open else None
    return [] if into is None else versions.stored_in(into)


def _includes(console: Console, asked: _Asked) -> list[dict[str, Any]]:
    found = dict(_PARTS)
    if asked.source is not None and console.may_write:
        found |= dict.fromkeys(_items(console, asked.source["id"]), "")
    found |= {name: "" for name in asked.include if name not in found}
    return [
        {"path": path, "title": title, "is_checked": path in asked.include, "part": path.partition(".")[0]}
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
