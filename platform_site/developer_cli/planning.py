"""The difference between `backend/` and an environment, and its application."""

import ipaddress
import json
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from platform_site.developer_cli.api import path_part
from platform_site.developer_cli.backend_files import Backend, JsonFile, suspicious_sources, unknown_tables
from platform_site.developer_cli.failures import Failure

if TYPE_CHECKING:
    from platform_site.developer_cli.api import Answer, Api

_SIGN_UP: Final = {"off": 0, "invited": 1, "open": 2}
"""From the narrowest to the widest. One that this command does not know has to be confirmed."""

_SETTINGS_OF_SOURCE: Final = {"sign_up", "app_name", "app_url", "link_urls", "providers"}
"""Sign-in settings that a preview branch does not have."""
_OLD_NAME: Final = re.compile(r"This still names (?:the table )?(?:\w+\.)?(\w+),")
_MAX_SHOWN: Final = 200
"""Characters of two values. Longer ones are left out."""


@dataclass
class Change:
    part: str
    change: str
    """Such as `drop column tasks.internal`, `create function digest`."""
    destructive: bool = False
    sql: list[str] = field(default_factory=list)
    body: dict[str, Any] = field(default_factory=dict)
    target: str = ""
    """The function's name or the webhook's id; empty for a new webhook."""
    file: JsonFile | None = None
    prefix: str = ""
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
class Plan:
    changes: list[Change] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    only_in_environment: list[str] = field(default_factory=list)
    """Functions and webhooks missing in the folder. They stay."""
    local_urls: list[str] = field(default_factory=list)
    """New URLs of webhooks on this machine or a private network."""
    schema_version: int = 0
    auth: dict[str, Any] = field(default_factory=dict)

    def unconfirmed(self, confirmed: Collection[str] = ()) -> list[str]:
        return [name for each in self.changes if (name := each.to_confirm) and name not in confirmed]


def make(api: "Api", backend: Backend) -> Plan:
    """Raises Failure if the service refuses the schema."""
    plan = Plan(warnings=[*suspicious_sources(backend), *unknown_tables(backend)])
    of_schema = [] if backend.schema is None else _plan_schema(api, backend.schema, plan)
    _plan_functions(api, backend, plan)
    if backend.webhooks is not None:
        _plan_webhooks(api, backend.webhooks, plan)
    if backend.auth is not None:
        _plan_auth(api, backend.auth, plan)
    if backend.schema is not None:
        kept = [each for each in of_schema if not _replaces_old_name(plan, each)]
        plan.warnings += [_at(backend.schema, each) for each in kept]
    return plan


def _replaces_old_name(plan: Plan, warning: dict[str, Any]) -> bool:
    """Whether the warning is about an old name, or what is invalid, in a setting that the push replaces."""
    part, name, setting = [*warning["field"].split("."), "", ""][:3]
    old = _OLD_NAME.match(warning["message"])
    for each in plan.changes:
        if f"{each.part}s" != part or each.target != name or setting not in each.body:
            continue
        if warning["code"] == "invalid":
            return True  # what replaces it is refused if it is invalid, too
        if old:
            value = each.body[setting]
            return old[1] not in re.findall(r"\w+", value if isinstance(value, str) else json.dumps(value))
    return False


def _at(file: JsonFile, warning: dict[str, Any]) -> str:
    path = warning["field"].removeprefix("document.")
    where = f"{file.at(path)}: " if path != warning["field"] else ""
    return f"{where}{path}: {warning['message']}"


def _plan_schema(api: "Api", file: JsonFile, plan: Plan) -> list[dict[str, Any]]:
    """The warnings."""
    try:
        answer = api.send("PUT", "/schema", {"document": file.value, "dry_run": True}, authored=True)
    except Failure as error:
        raise _located(error, file, "document.") from None
    plan.schema_version = answer["version"]
    plan.changes += [
        Change("schema", each["operation"], each["destructive"], each["sql"], file=file)
        for each in answer["operations"]
    ]
    found: list[dict[str, Any]] = answer["warnings"]
    return found


def _plan_functions(api: "Api", backend: Backend, plan: Plan) -> None:
    existing = {each["name"]: each for each in api.pages("/functions", limit=100)}
    settings = backend.settings.value if backend.settings else {}
    for name, (_, source) in backend.sources.items():
        wanted, current = settings.get(name, {}), existing.get(name)
        what = f"create function {name}"
        if current is not None:
            changed = ["source"] if active_source(api, name) != source else []
            changed += _changed(wanted, current)
            if not changed:
                continue
            what = f"change function {name}: {', '.join(changed)}"
        body = {"source": source, **wanted}
        plan.changes.append(Change("function", what, body=body, target=name, file=backend.settings, prefix=f"{name}."))
    plan.only_in_environment += [f"function {name}" for name in existing if name not in backend.sources]


def _changed(wanted: dict[str, Any], current: dict[str, Any]) -> dict[str, Any]:
    return {setting: value for setting, value in wanted.items() if current.get(setting) != value}


def active_source(api: "Api", name: str) -> str:
    for version in api.pages(f"/functions/{path_part(name)}/versions", limit=20):
        if version["is_active"]:
            return str(version["source"])
    return ""


def webhooks(api: "Api") -> list["Answer"]:
    return [api.get(f"/webhooks/{path_part(each['id'])}") for each in api.get("/webhooks")["data"]]


def _plan_webhooks(api: "Api", file: JsonFile, plan: Plan) -> None:
    existing = webhooks(api)
    same = _same_webhooks(existing, file.value)
    for index, wanted in enumerate(file.value):
        current = same.get(index)
        name = wanted.get("name") or wanted["url"]
        target = Change("webhook", f"create webhook {name}", body=wanted, file=file, prefix=f"{index}.")
        if current is not None:
            existing.remove(current)
            body = _changed(wanted, current)
            if not body:
                continue
            target.change = f"change webhook {name}: {', '.join(body)}"
            target.body, target.target = body, current["id"]
        plan.changes.append(target)
        if _is_local(target.body.get("url", "")):
            plan.local_urls.append(wanted["url"])
            plan.warnings.append(f"{file.at(f'{index}.url')}: this machine or a private network: {wanted['url']}")
    plan.only_in_environment += [f"webhook {each['name'] or each['url']}" for each in existing]


def _is_local(url: str) -> bool:
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or host.endswith(".localhost") or not ipaddress.ip_address(host).is_global
    except ValueError:
        return False


def _same_webhooks(existing: list["Answer"], wanted: list[dict[str, Any]]) -> dict[int, "Answer"]:
    """The existing webhook of each entry, by index: all of the same name first, so that none is taken by its URL."""
    found: dict[int, Answer] = {}
    for key in ("name", "url"):
        free = [each for each in existing if not any(each is other for other in found.values())]
        for index, entry in enumerate(wanted):
            same = next((each for each in free if entry.get(key) and each[key] == entry[key]), None)
            if index not in found and same is not None:
                found[index] = same
                free.remove(same)
    return found


def _plan_auth(api: "Api", file: JsonFile, plan: Plan) -> None:
    wanted = file.value
    try:
        current = api.get("/config", parts="auth")["config"]["auth"]
    except Failure as error:
        if error.code != "forbidden":
            raise
        plan.warnings.append(f"{file.path} is left out: this key may not change the sign-in settings.")
        return
    if "sign_up" not in current and (others := _SETTINGS_OF_SOURCE & (wanted.keys() - current.keys())):
        names = ", ".join(sorted(others))
        plan.warnings.append(f"{file.path}: a preview branch has these settings of its source: {names}.")
        wanted = {name: value for name, value in wanted.items() if name not in others}
    try:
        plan.auth = api.send("POST", "/config/plan", {"config": {"auth": wanted}}, authored=True)
    except Failure as error:
        raise _located(error, file, "config.auth.") from None
    plan.changes += [_auth_change(each) for each in plan.auth["changes"]]
    plan.warnings += [f"{path} must be set." for path in plan.auth["missing_secrets"]]


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


def apply(api: "Api", plan: Plan) -> list[dict[str, Any]]:
    """The created webhooks, with signing secrets. A Failure names what was applied before."""
    done: list[str] = []
    created: list[dict[str, Any]] = []
    schema = [each for each in plan.changes if each.part == "schema"]
    try:
        if schema and (file := schema[0].file):
            confirm = [each.change for each in schema if each.destructive]
            body = {"document": file.value, **({"confirm": confirm} if confirm else {})}
            _send(api, schema[0], "PUT", "/schema", body, "document.", {"If-Match": f'"{plan.schema_version}"'})
            done += [each.change for each in schema]
        for each in plan.changes:
            if each.part == "function":
                _send(api, each, "PUT", f"/functions/{path_part(each.target)}", each.body)
            elif each.part == "webhook" and each.target:
                _send(api, each, "PATCH", f"/webhooks/{path_part(each.target)}", each.body)
            elif each.part == "webhook":
                created.append(_send(api, each, "POST", "/webhooks", each.body))
            if each.part in ("function", "webhook"):
                done.append(each.change)
        if plan.auth.get("changes"):
            api.send("POST", "/config/apply", {"plan": plan.auth["plan"], "confirm": plan.auth["confirm"]})
    except Failure as error:
        if done:
            error.hint = f"{error.hint} Already applied: {'; '.join(done)}. Push again to apply the rest.".strip()
        raise
    return created


def _send(
    api: "Api",
    change: Change,
    method: str,
    path: str,
    body: dict[str, Any],
    field_prefix: str = "",
    headers: dict[str, str] | None = None,
) -> "Answer":
    try:
        return api.send(method, path, body, headers, authored=True)
    except Failure as error:
        if change.part != "schema":
            error.message = f"{change.target or change.change}: {error.message}"
        if change.file is None:
            raise
        raise _located(error, change.file, field_prefix, change.prefix) from None


def _located(error: Failure, file: JsonFile, cut: str, prefix: str = "") -> Failure:
    """The error, with file and line of each field."""
    for each in error.fields:
        name = str(each.get("field", ""))
        if name.startswith(cut) and name != "source":
            each["location"] = file.at(prefix + name.removeprefix(cut))
    return error
