"""The difference between `backend/` and an environment, and its application: by a plan of the whole folder, which the
service applies completely or not at all."""

import json
import secrets
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from platform_site.developer_cli.api import Answer, Api, path_part
from platform_site.developer_cli.backend_files import Backend, JsonFile
from platform_site.developer_cli.failures import Exit, Failure
from platform_site.developer_cli.webhook_urls import REFERENCE, host_alone, is_local, normal_url, shown_url

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
class Webhook:
    """An entry of webhooks.json."""

    index: int
    name: str | None
    url: str
    new_url: bool = False
    is_new: bool = False

    @property
    def label(self) -> str:
        return self.name or shown_url(self.url)


@dataclass
class Plan:
    backend: Backend
    steps: list[Step] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    only_in_environment: list[str] = field(default_factory=list)
    """Functions and webhooks missing in the folder. They stay."""
    webhooks: dict[str, Webhook] = field(default_factory=dict)
    """By key in the configuration."""
    known: set[str] = field(default_factory=set)
    """Ids of the environment's webhooks."""

    @property
    def changes(self) -> list[Change]:
        return [change for step in self.steps for change in step.changes]

    @property
    def local_urls(self) -> list[str]:
        """New URLs of webhooks on this machine or a private network."""
        return [shown_url(each.url) for each in self.webhooks.values() if each.new_url and is_local(each.url)]

    def unconfirmed(self, confirmed: Collection[str] = ()) -> list[str]:
        return [name for each in self.changes if (name := each.to_confirm) and name not in confirmed]

    def place(self, path: str) -> tuple[str, str]:
        """File and line of a path in the configuration, or an empty text, and the path as the user knows it."""
        path = path.removeprefix("config.")
        part, _, rest = path.partition(".")
        name, _, setting = rest.partition(".")
        backend = self.backend
        if part == "functions" and setting == "source" and name in backend.sources:
            return str(backend.sources[name][0]), path
        if part == "webhooks" and name in self.webhooks and backend.webhooks is not None:
            webhook = self.webhooks[name]
            return backend.webhooks.at(f"{webhook.index}.{setting}"), f"webhooks.{webhook.label}.{setting}".rstrip(".")
        files = {"schema": backend.schema, "auth": backend.auth}
        file = backend.settings if part == "functions" and name in backend.sources else files.get(part)
        return (file.at(rest) if file is not None else ""), path

    def located(self, error: Failure) -> Failure:
        """The error, with file and line of each field."""
        for each in error.fields:
            where, each["field"] = self.place(str(each.get("field", "")))
            if where:
                each["location"] = where
        return error


def make(api: Api, backend: Backend) -> Plan:
    """Raises Failure if the service refuses a part."""
    functions = api.pages("/functions", limit=100)
    plan = Plan(backend)
    plan.only_in_environment += [f"function {it['name']}" for it in functions if it["name"] not in backend.sources]
    document: dict[str, Any] = {}
    if backend.schema is not None:
        document["schema"] = backend.schema.value
    if backend.webhooks is not None:
        document["webhooks"] = _webhooks(api, backend.webhooks, plan)
    if backend.auth is not None:
        document |= _auth(api, backend.auth, plan)
    tables = backend.schema.value.get("tables") if backend.schema else None
    created = [f"There is no table {name}." for name in tables] if isinstance(tables, dict) else []
    for each in _documents(document, backend):
        answer = _planned(api, plan, each)
        # The first step makes the schema that later ones need.
        found = [it for it in answer["warnings"] if not plan.steps or it["message"] not in created]
        plan.steps.append(Step(each, answer, list(_changes(plan, answer))))
        plan.warnings += [_placed(plan, it["field"], f": {it['message']}") for it in found]
        missing = [it for it in answer["missing_secrets"] if it not in _whole_urls(plan, each)]
        if urls := [it for it in missing if it.startswith("webhooks.")]:  # applying the plan would be refused
            message = "The environment has no secret for this URL. Write the whole URL."
            fields = [{"field": path, "code": "secret_missing", "message": message} for path in urls]
            text = "One or more fields are invalid."
            raise plan.located(Failure(Exit.REFUSED, "validation_failed", text, fields=fields))
        plan.warnings += [_placed(plan, it, " must be set.") for it in missing]
    return plan


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


def _planned(api: Api, plan: Plan, document: dict[str, Any]) -> Answer:
    body = {"config": document, "keep": ["functions", "webhooks"]}
    try:
        return api.send("POST", "/config/plan", body, authored=True)
    except Failure as error:
        raise plan.located(error) from None


def _placed(plan: Plan, path: str, text: str) -> str:
    where, path = plan.place(path)
    return f"{where}: {path}{text}" if where else path + text


def _changes(plan: Plan, answer: Answer) -> Iterator[Change]:
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
            label = plan.webhooks[name].label if part == "webhooks" else name
            new = "" in settings
            yield Change(noun, f"create {noun} {label}" if new else f"change {noun} {label}: {', '.join(settings)}")


def active_source(api: Api, name: str) -> str:
    for version in api.pages(f"/functions/{path_part(name)}/versions", limit=20):
        if version["is_active"]:
            return str(version["source"])
    return ""


def configured_webhooks(api: Api) -> list[dict[str, Any]]:
    """With `key`, their name in the configuration, and `masked`, their URL without credentials."""
    masked = api.get("/config", parts="webhooks")["config"]["webhooks"]
    listed = {each["name"] or each["id"]: each for each in api.get("/webhooks")["data"]}
    return [
        listed[key] | item | {"url": listed[key]["url"], "masked": item["url"], "key": key}
        for key, item in masked.items()
        if key in listed
    ]


def _webhooks(api: Api, file: JsonFile, plan: Plan) -> dict[str, Any]:
    """The part of the configuration. URLs may hold credentials, so the plan only refers to new ones."""
    existing = configured_webhooks(api)
    plan.known = {each["id"] for each in existing}
    same = _same_webhooks(existing, file.value)
    document = {}
    for index, wanted in enumerate(file.value):
        current, name, url = same.get(index), wanted.get("name"), wanted["url"]
        item = {setting: value for setting, value in wanted.items() if setting not in ("id", "name", "url")}
        if "name" in wanted and name != (current and current["name"]):
            item["name"] = name
        if current is not None:
            key = current["key"]
        else:
            is_free = isinstance(name, str) and name and all(each["key"] != name for each in existing)
            key = name if is_free else f"wh_{secrets.token_hex(13)}"  # until it has an id
        webhook = Webhook(index, name, url, is_new=current is None)
        if current is None or normal_url(url) not in (current["url"], current["masked"]):
            item["url"] = url if REFERENCE in url else host_alone(url)
            webhook.new_url = True
            if is_local(url):
                plan.warnings.append(f"{file.at(f'{index}.url')}: this machine or a private network: {shown_url(url)}")
        document[key] = item
        plan.webhooks[key] = webhook
    kept = [each for each in existing if not any(each is other for other in same.values())]
    plan.only_in_environment += [f"webhook {each['name'] or each['masked']}" for each in kept]
    return document


def _same_webhooks(existing: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The existing webhook of each entry, by index: all of the same id or name first, so that none is taken by its
    URL."""
    found: dict[int, dict[str, Any]] = {}
    for key in ("id", "name", "url", "masked"):
        free = [each for each in existing if not any(each is other for other in found.values())]
        for index, entry in enumerate(wanted):
            value = normal_url(entry["url"]) if key in ("url", "masked") else entry.get(key)
            same = next((each for each in free if value and each[key] == value), None)
            if index not in found and same is not None:
                found[index] = same
                free.remove(same)
    return found


def _auth(api: Api, file: JsonFile, plan: Plan) -> dict[str, Any]:
    """The part of the configuration, or nothing."""
    wanted = file.value
    try:
        current = api.get("/config", parts="auth")["config"]["auth"]
    except Failure as error:
        if error.code != "forbidden":
            raise
        plan.warnings.append(f"{file.path} is left out: this key may not change the sign-in settings.")
        return {}
    if "sign_up" not in current and (others := _SETTINGS_OF_SOURCE & (wanted.keys() - current.keys())):
        names = ", ".join(sorted(others))
        plan.warnings.append(f"{file.path}: a preview branch has these settings of its source: {names}.")
        wanted = {name: value for name, value in wanted.items() if name not in others}
    return {"auth": wanted}


def _auth_change(found: dict[str, Any]) -> Change:
    what = f"{'change' if found['kind'] == 'trust' else found['kind']} {found['path']}"
    if found["destructive"]:
        return Change("auth", what, destructive=True)
    before, after = found["before"], found["after"]
    if before is None and after is None:
        return Change("auth", what)
    if found["path"] == "auth.sign_up":
        widens = _SIGN_UP.get(after, 3) > _SIGN_UP.get(before, -1)
        return Change("auth", f"{what}: {before} → {after}", access=found["path"] if widens else "")
    values = f"{json.dumps(before, ensure_ascii=False)} → {json.dumps(after, ensure_ascii=False)}"
    return Change("auth", f"{what}: {values}" if len(values) <= _MAX_SHOWN else what)


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
                    "urls": _whole_urls(plan, step.document),
                }
                follow |= api.apply(body) == "completing"
        except Failure as error:
            if done:
                error.hint = f"{error.hint} Already applied: {'; '.join(done)}. Push again to apply the rest.".strip()
            raise plan.located(error) from None
        done += [each.change for each in step.changes]
    return follow


def _whole_urls(plan: Plan, document: dict[str, Any]) -> dict[str, str]:
    return {
        f"webhooks.{key}.url": plan.webhooks[key].url
        for key, item in document.get("webhooks", {}).items()
        if REFERENCE in item.get("url", "") and REFERENCE not in plan.webhooks[key].url
    }


def new_secrets(api: Api, plan: Plan) -> dict[str, str]:
    """A new signing secret of each created webhook, by name, or by id without one: applying shows none."""
    created = {each.name or normal_url(each.url) for each in plan.webhooks.values() if each.is_new}
    return {
        each["name"] or each["id"]: api.send("POST", f"/webhooks/{path_part(each['id'])}/rotate-secret")["secret"]
        for each in api.get("/webhooks")["data"]
        if each["id"] not in plan.known and (each["name"] or each["url"]) in created
    }
