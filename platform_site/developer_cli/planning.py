"""The difference between `backend/` and an environment, and its application: by a plan of the whole folder, which the
service applies completely or not at all."""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from platform_site.developer_cli import webhook_plans
from platform_site.developer_cli.api import Answer, Api
from platform_site.developer_cli.backend_files import Backend, JsonFile
from platform_site.developer_cli.failures import Exit, Failure
from platform_site.developer_cli.webhook_plans import WebhooksPlan

_SIGN_UP: Final = {"off": 0, "invited": 1, "open": 2}
"""From the narrowest to the widest. One that this command does not know has to be confirmed."""

_SETTINGS_OF_SOURCE: Final = {"sign_up", "app_name", "app_url", "link_urls", "providers"}
"""Sign-in settings that a preview branch does not have."""
_MAX_SHOWN: Final = 200
"""Characters of two values. Longer ones are left out."""
_MAX_BODY: Final = 900_000
"""Bytes of a request's configuration; the service accepts 1 MB."""
_MAX_SOURCES: Final = 200
"""The service loads each of them while the request waits."""


@dataclass
class Change:
    part: str
    change: str
    """Such as `drop column tasks.internal`, `create function digest`."""
    destructive: bool = False
    sql: list[str] = field(default_factory=list)
    access: str = ""
    """The path of a setting that admits more people."""

    @property
    def to_confirm(self) -> str:
        """What `--confirm` has to name; empty for most changes."""
        return self.change if self.destructive else self.access

    def as_json(self) -> dict[str, Any]:
        return {
            "part": self.part,
            "change": self.change,
            "destructive": self.destructive,
            "confirm": self.to_confirm or None,
            "sql": self.sql,
        }


@dataclass
class Step:
    """A plan of the service, which is applied completely or not at all. Only sources of over 1 MB, or more than
    _MAX_SOURCES, need several."""

    document: dict[str, Any]
    plan: Answer
    changes: list[Change]


@dataclass
class Plan:
    backend: Backend
    webhooks: WebhooksPlan
    warnings: list[str]
    only_in_environment: list[str]
    """Functions and webhooks missing in the folder. They stay."""
    steps: list[Step] = field(default_factory=list)
    impact: list[dict[str, Any]] = field(default_factory=list)

    @property
    def changes(self) -> list[Change]:
        return [change for step in self.steps for change in step.changes]

    @property
    def version_before(self) -> str | None:
        """The configuration that `revert` restores. None if nothing changes, or in several steps."""
        return str(self.steps[0].plan["version"]) if self.changes and len(self.steps) == 1 else None

    def unconfirmed(self, confirmed: Collection[str] = ()) -> list[str]:
        return [name for each in self.changes if (name := each.to_confirm) and name not in confirmed]

    def location_of(self, path: str) -> tuple[str, str]:
        """File and line of a path in the configuration, or an empty text, and the path as the user knows it."""
        path = path.removeprefix("config.")
        part, _, rest = path.partition(".")
        name, _, setting = rest.partition(".")
        backend = self.backend
        if part == "functions" and setting == "source" and name in backend.sources:
            return str(backend.sources[name][0]), path
        if part == "webhooks" and name in self.webhooks.by_key and backend.webhooks is not None:
            webhook = self.webhooks.by_key[name]
            return backend.webhooks.at(f"{webhook.index}.{setting}"), f"webhooks.{webhook.label}.{setting}".rstrip(".")
        files = {"schema": backend.schema, "auth": backend.auth}
        file = backend.settings if part == "functions" and name in backend.sources else files.get(part)
        return (file.at(rest) if file is not None else ""), path

    def warn(self, path: str, text: str) -> None:
        where, path = self.location_of(path)
        self.warnings.append(f"{where}: {path}{text}" if where else path + text)

    def with_locations(self, error: Failure) -> Failure:
        for each in error.fields:
            where, each["field"] = self.location_of(str(each.get("field", "")))
            if where:
                each["location"] = where
        return error


def make(api: Api, backend: Backend, impact: bool = False) -> Plan:
    """Raises Failure if the service refuses a part. With `impact`, what changed rules show and hide is counted."""
    functions = list(api.pages("/functions", limit=100))
    only_in_environment = [f"function {each['name']}" for each in functions if each["name"] not in backend.sources]
    webhooks = WebhooksPlan()
    document: dict[str, Any] = {}
    if backend.schema is not None:
        document["schema"] = backend.schema.value
    if backend.webhooks is not None:
        webhooks = webhook_plans.make(api, backend.webhooks)
        document["webhooks"] = webhooks.document
    only_in_environment += webhooks.only_in_environment
    plan = Plan(backend, webhooks, [*webhooks.warnings], only_in_environment)
    _warn_of_stopped(plan, functions)
    if backend.auth is not None:
        document |= _auth(api, backend.auth, plan.warnings)
    tables = backend.schema.value.get("tables") if backend.schema else None
    created = [f"There is no table {name}." for name in tables] if isinstance(tables, dict) else []
    for each in _documents(document, backend):
        answer = _planned(api, plan, each, impact)
        plan.impact += answer.get("impact", [])
        missing = [path for path in answer["missing_secrets"] if path not in webhooks.whole_urls(each)]
        if urls := [path for path in missing if path.startswith("webhooks.")]:  # the service would refuse to apply it
            message = "The environment has no secret for this URL. Write the whole URL."
            fields = [{"field": path, "code": "secret_missing", "message": message} for path in urls]
            text = "One or more fields are invalid."
            raise plan.with_locations(Failure(Exit.REFUSED, "validation_failed", text, fields=fields))
        for warning in answer["warnings"]:
            if not plan.steps or warning["message"] not in created:  # the first step makes the schema of later ones
                plan.warn(warning["field"], f": {warning['message']}")
        for path in missing:
            plan.warn(path, " must be set.")
        plan.steps.append(Step(each, answer, list(_changes(webhooks, answer))))
    return plan


def _warn_of_stopped(plan: Plan, functions: list[dict[str, Any]]) -> None:
    """Of triggers that the folder has as they are: applying changes nothing, and they stay stopped."""
    settings = plan.backend.settings.value if plan.backend.settings else {}
    for each in functions:
        for setting in ("schedule", "on"):
            reason = each[f"{setting}_stopped"]
            if reason and settings.get(each["name"], {}).get(setting) == each[setting]:
                text = f" is stopped here ({reason}), and push leaves it so. To start it, save it in the console."
                plan.warn(f"functions.{each['name']}.{setting}", text)


def _documents(document: dict[str, Any], backend: Backend) -> Iterator[dict[str, Any]]:
    """The configuration, in parts of at most _MAX_BODY bytes and _MAX_SOURCES functions."""
    settings = backend.settings.value if backend.settings else {}
    size = len(json.dumps(document))
    for name, (_, source) in backend.sources.items():
        item = {"source": source, **settings.get(name, {})}
        more = len(json.dumps({name: item}))
        if document and (size + more > _MAX_BODY or len(document.get("functions", ())) == _MAX_SOURCES):
            yield document
            document, size = {}, 0
        document = {**document, "functions": {**document.get("functions", {}), name: item}}
        size += more
    if document:
        yield document


def _planned(api: Api, plan: Plan, document: dict[str, Any], impact: bool = False) -> Answer:
    body = {"config": document, "keep": ["functions", "webhooks"], "impact": impact}
    try:
        return api.send("POST", "/config/plan", body, authored=True)
    except Failure as error:
        raise plan.with_locations(error) from None


def _changes(webhooks: WebhooksPlan, answer: Answer) -> Iterator[Change]:
    """One for each function and webhook, with the names of its settings."""
    items: dict[str, list[str]] = {}
    for each in answer["changes"]:
        part, _, rest = each["path"].partition(".")
        if part in ("functions", "webhooks"):
            name, _, setting = rest.partition(".")
            items.setdefault(f"{part}.{name}", []).append(setting)
    for each in answer["changes"]:
        part, _, rest = each["path"].partition(".")
        name = rest.partition(".")[0]
        if part == "schema":
            yield Change("schema", each["operation"], each["destructive"], each["sql"])
        elif part == "auth":
            yield _auth_change(each)
        elif settings := items.pop(f"{part}.{name}", []):
            noun = part.removesuffix("s")
            label = webhooks.by_key[name].label if part == "webhooks" else name
            new = "" in settings
            yield Change(noun, f"create {noun} {label}" if new else f"change {noun} {label}: {', '.join(settings)}")


def _auth(api: Api, file: JsonFile, warnings: list[str]) -> dict[str, Any]:
    """The part of the configuration, or nothing."""
    wanted = file.value
    try:
        current = api.get("/config", parts="auth")["config"]["auth"]
    except Failure as error:
        if error.code != "forbidden":
            raise
        warnings.append(f"{file.path} is left out: this key may not change the sign-in settings.")
        return {}
    if "sign_up" not in current and (others := _SETTINGS_OF_SOURCE & (wanted.keys() - current.keys())):
        names = ", ".join(sorted(others))
        warnings.append(f"{file.path}: a preview branch has these settings of its source: {names}.")
        wanted = {name: value for name, value in wanted.items() if name not in others}
    return {"auth": wanted}


def _auth_change(found: dict[str, Any]) -> Change:
    change = f"{'change' if found['kind'] == 'trust' else found['kind']} {found['path']}"
    if found["destructive"]:
        return Change("auth", change, destructive=True)
    before, after = found["before"], found["after"]
    if before is None and after is None:
        return Change("auth", change)
    if found["path"] == "auth.sign_up":
        widens = _SIGN_UP.get(after, 3) > _SIGN_UP.get(before, -1)
        return Change("auth", f"{change}: {before} → {after}", access=found["path"] if widens else "")
    values = f"{json.dumps(before, ensure_ascii=False)} → {json.dumps(after, ensure_ascii=False)}"
    return Change("auth", f"{change}: {values}" if len(values) <= _MAX_SHOWN else change)


def apply(api: Api, plan: Plan) -> bool:
    """Whether the sign-in settings still follow. A Failure names what was applied before."""
    done: list[str] = []
    follow = False
    for step in plan.steps:
        try:
            # The service compares a step with what was applied before it, and keeps few plans.
            planned = _planned(api, plan, step.document) if len(plan.steps) > 1 else step.plan
            same = ("changes",) if done else ("changes", "version")
            if any(planned[name] != step.plan[name] for name in same):
                raise Failure(Exit.CONFLICT, "conflict", "The environment changed since the plan. Push again.")
            if planned["changes"]:
                body = {
                    "plan": planned["plan"],
                    "confirm": step.plan["confirm"],
                    "urls": plan.webhooks.whole_urls(step.document),
                }
                follow |= api.apply(body) == "completing"
        except Failure as error:
            if done:
                error.hint = f"{error.hint} Already applied: {'; '.join(done)}. Push again to apply the rest.".strip()
            raise plan.with_locations(error) from None
        done += [each.change for each in step.changes]
    return follow
