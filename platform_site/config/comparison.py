import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from accounts.oauth import providers
from platform_site.config import credentials, current
from platform_site.config.current import Parts
from platform_site.config.submitted import MAX_ERRORS, ROOT, below
from platform_site.http.errors import FieldError, QuotaExceeded, ValidationFailed
from platform_site.identity.callers import Caller, EnvironmentRef
from platform_site.identity.plans import plan_limits
from rows.migrate import lock_estimates
from rows.migrate import service as schema_service
from rows.migrate import versions as schema_versions
from rows.migrate.lock_estimates import TableLock
from rows.outbox import event_types
from rows.schema.identifiers import did_you_mean
from rows.schema.model import InvalidDocument
from webhooks.subscriptions import schema_check
from webhooks.subscriptions.schema_check import Selection

Kind = Literal["add", "change", "remove", "trust"]
Item = Mapping[str, Any]

_KINDS: Final[Mapping[str, Kind]] = {"create": "add", "add": "add", "drop": "remove"}
"""By the first word of an operation of the schema; others are changes."""

FUNCTION_TRUST: Final = frozenset({"allowed_hosts", "schedule", "on", "invoke"})
WEBHOOK_TRUST: Final = frozenset({"url", "enabled"})
_AUTH_TRUST: Final = frozenset({"sign_up", "redirect_uris", "link_urls", "app_url"})
_PROVIDER_TRUST: Final = frozenset(
    {*current.ENDPOINTS, "client_id", "client_auth", "profile_fields", "scopes", "trusts_email", "sign_up", "enabled"}
)
IDENTITY: Final = frozenset({*current.ENDPOINTS, "profile_fields", "client_auth"})
"""A change of these replaces the provider and unlinks its users."""
_FUNCTION_DEFAULTS: Final[dict[str, Any]] = {"allowed_hosts": [], "schedule": None, "on": [], "invoke": None}


@dataclass(frozen=True, slots=True)
class Change:
    """One difference. `trust`: it changes access, or where data is sent."""

    path: str
    kind: Kind
    destructive: bool = False
    operation: str | None = None
    sql: tuple[str, ...] = ()
    before: Any = None
    after: Any = None

    @property
    def to_confirm(self) -> str | None:
        return (self.operation or self.path) if self.destructive or self.kind == "trust" else None


@dataclass(slots=True)
class Plan:
    version: str
    changes: list[Change] = field(default_factory=list)
    missing_secrets: list[str] = field(default_factory=list)
    warnings: list[FieldError] = field(default_factory=list)
    locks: tuple[TableLock, ...] = ()

    @property
    def confirm(self) -> list[str]:
        return sorted({name for change in self.changes if (name := change.to_confirm) is not None})

    @property
    def locked_ms(self) -> int:
        return lock_estimates.locked_ms(self.locks)


def compare(
    environment: EnvironmentRef,
    now: Parts,
    parts: Item,
    author: Caller,
    *,
    keep: Collection[str] = (),
    checks_webhooks: bool = True,
) -> Plan:
    """The plan that makes the environment's configuration (`now`) like `parts`. `keep`: parts of which the functions or
    webhooks that are left out stay. Raises ValidationFailed, and the errors of `schema_service.rehearse`."""
    plan = Plan(current.version_of(now))
    for part in keep:
        if part in parts:  # an item without settings stays as it is
            parts = {**parts, part: {**dict.fromkeys(now[part], {}), **parts[part]}}
    _check_new(now, parts)
    _check_limits(environment, now, parts)
    if "webhooks" in parts and checks_webhooks:
        plan.warnings += _check_webhooks(environment, now["webhooks"], parts)
    if "schema" in parts:
        _compare_schema(environment, parts, plan, author)
    if "functions" in parts:
        _compare_functions(environment, now["functions"], parts["functions"], plan)
    if "webhooks" in parts:
        plan.changes += _item_changes("webhooks", now["webhooks"], parts["webhooks"], WEBHOOK_TRUST)
        for name, item in sorted(parts["webhooks"].items()):
            url = item.get("url", "")
            if credentials.REFERENCE in url and url != now["webhooks"].get(name, {}).get("url"):
                plan.missing_secrets.append(f"webhooks.{name}.url")
    if "auth" in parts:
        _compare_auth(now["auth"], parts["auth"], plan)
    if "origins" in parts and now["origins"] != parts["origins"]:
        plan.changes.append(Change("origins", "trust", before=now["origins"], after=parts["origins"]))
    plan.warnings += _unknown_tables(environment, now, parts)
    return plan


def _check_new(now: Parts, parts: Item) -> None:
    missing = []
    for part, noun, required in (
        ("functions", "function", {"source": "a source"}),
        ("webhooks", "webhook", {"url": "a URL", "events": "events"}),
    ):
        for name, item in parts.get(part, {}).items():
            for each, text in required.items():
                if name not in now[part] and each not in item:
                    path = f"{ROOT}.{part}.{name}.{each}"
                    missing.append(FieldError(path, "required", f"A new {noun} needs {text}."))
    if missing:
        raise ValidationFailed(fields=missing[:MAX_ERRORS])


def _unknown_tables(environment: EnvironmentRef, now: Parts, parts: Item) -> Iterator[FieldError]:
    """Of events that the document adds."""
    added = [
        (
            f"{part}.{name}.{setting}",
            set(item.get(setting) or ()) - set(now[part].get(name, {}).get(setting) or ()),
        )
        for part, setting in (("functions", "on"), ("webhooks", "events"))
        for name, item in sorted(parts.get(part, {}).items())
    ]
    if not any(events for _, events in added):
        return
    schema = parts["schema"] if "schema" in parts else schema_versions.current(environment).schema.document
    for path, events in added:
        for table in event_types.unknown_tables(sorted(events), schema["tables"]):
            # The names of tables are for callers who may read the schema.
            suggestion = (did_you_mean(table, schema["tables"]) if "schema" in parts else "") or "."
            yield FieldError(path, "no_such_table", f"There is no table {table}{suggestion}")


def _check_limits(environment: EnvironmentRef, now: Parts, parts: Item) -> None:
    """The plan's limits, which existing items may exceed. The schema checks its own."""
    limits = plan_limits(environment.plan)
    for part, most in (("functions", limits.functions_per_environment), ("webhooks", limits.webhooks_per_environment)):
        if part in parts:
            used = len(now[part])
            QuotaExceeded.check(used, most, f"{part} in an environment", more=len(parts[part]) - used)
    over = [
        FieldError(f"{ROOT}.functions.{name}.{setting}", "over_plan", f"The plan allows at most {most}.")
        for setting, most in (("timeout_ms", limits.function_timeout_ms), ("memory_mb", limits.function_memory_mb))
        for name, item in parts.get("functions", {}).items()
        if item.get(setting, 0) > max(most, now["functions"].get(name, {}).get(setting, 0))
    ]
    if over:
        raise ValidationFailed(fields=over)


def _check_webhooks(environment: EnvironmentRef, now: Mapping[str, Item], parts: Item) -> list[FieldError]:
    """Warnings of webhooks that the document leaves as they are, although their filter or columns are not valid for the
    schema. Raises ValidationFailed for the others."""
    changed = {name: item for name, item in parts["webhooks"].items() if item}
    items: dict[str, Item] = {name: {**now.get(name, {}), **item} for name, item in changed.items()}
    items = {name: item for name, item in items.items() if item.get("filter") or item.get("columns")}
    if not items:
        return []
    before = after = schema_check.compiled(environment, schema_versions.current(environment).schema)
    if "schema" in parts:
        after = schema_check.compiled(environment, schema_service.read_in_slot(environment, parts["schema"]))
    errors, warnings = [], []
    for name, item in items.items():
        selection = Selection(item["events"], item.get("filter"), item.get("columns"))
        wrong = schema_check.errors(after, selection)
        if all(item.get(each) == now.get(name, {}).get(each) for each in ("events", "filter", "columns")):
            caused = schema_check.errors_caused(before, after, selection)  # of these the schema's plan warns
            warnings += [below(f"webhooks.{name}", each) for each in wrong if each not in caused]
        else:
            errors += [below(f"{ROOT}.webhooks.{name}", each) for each in wrong]
    if errors:
        raise ValidationFailed(fields=errors[:MAX_ERRORS])
    return warnings


def _compare_schema(environment: EnvironmentRef, parts: Item, plan: Plan, author: Caller) -> None:
    try:
        outcome = schema_service.rehearse(environment, parts["schema"], actor=author, beside=parts)
    except InvalidDocument as error:
        raise ValidationFailed(fields=[below(f"{ROOT}.schema", each) for each in error.errors]) from None
    plan.changes += [
        Change("schema", _KINDS.get(each.name.partition(" ")[0], "change"), each.destructive, each.name, each.sql)
        for each in outcome.operations
    ]
    # Those about webhooks and functions begin with the part of the configuration that has them.
    plan.warnings += [
        each if each.field.partition(".")[0] in current.PARTS else replace(each, field=f"schema.{each.field}")
        for each in outcome.warnings
    ]
    plan.locks = outcome.locks


def _compare_functions(
    environment: EnvironmentRef, known: Mapping[str, Item], wanted: Mapping[str, Item], plan: Plan
) -> None:
    secrets = current.secrets_with_values(environment)
    items = {name: _with_hash(item) for name, item in wanted.items()}
    plan.changes += _item_changes("functions", known, items, FUNCTION_TRUST, _FUNCTION_DEFAULTS)
    for name, item in sorted(items.items()):
        if not item:
            continue  # it stays as it is
        names: Any = item.get("secret_names", known[name]["secret_names"] if name in known else ())
        plan.missing_secrets += [
            f"functions.{name}.secrets.{secret}" for secret in names if f"{name}.{secret}" not in secrets
        ]
    for name, item in sorted(wanted.items()):
        line = credentials.first_line_with_secret(item.get("source", ""))
        if line is not None:
            message = f"Line {line} looks like it holds a secret. Read it from ctx.secrets."
            plan.warnings.append(FieldError(f"functions.{name}.source", "secret", message))


def _with_hash(item: Item) -> Item:
    if "source" not in item:
        return item
    digest = hashlib.sha256(item["source"].encode()).hexdigest()
    return {name: value for name, value in item.items() if name != "source"} | {"source_sha256": digest}


def _compare_auth(now: Item, wanted: Item, plan: Plan) -> None:
    plan.changes += _setting_changes(
        "auth", now, {name: wanted[name] for name in wanted if name != "providers"}, _AUTH_TRUST
    )
    if "providers" not in wanted:
        return
    known: Mapping[str, Item] = now["providers"]
    if len(wanted["providers"]) > len(known):
        providers.check_count(len(wanted["providers"]))
    for change in _item_changes("auth.providers", known, wanted["providers"], _PROVIDER_TRUST):
        name = change.path.split(".")[2]
        replaces = name in known and change.kind == "trust" and change.path.rpartition(".")[2] in IDENTITY
        plan.changes.append(replace(change, destructive=True) if replaces else change)
        path = f"auth.providers.{name}.client_secret"
        needs_secret = (replaces or change.kind == "add") and wanted["providers"][name].get("client_auth") != "none"
        if needs_secret and path not in plan.missing_secrets:
            plan.missing_secrets.append(path)


def _item_changes(
    part: str, now: Mapping[str, Item], wanted: Mapping[str, Item], trust: frozenset[str], defaults: Item | None = None
) -> Iterator[Change]:
    for name in sorted(now.keys() | wanted.keys()):
        path = f"{part}.{name}"
        if name not in wanted:
            yield Change(path, "remove", destructive=True)
        elif name in now:
            yield from _setting_changes(path, now[name], wanted[name], trust)
        else:
            yield Change(path, "add")
            trusted = {setting: wanted[name][setting] for setting in trust if setting in wanted[name]}
            yield from _setting_changes(path, defaults or {}, trusted, trust)


def _setting_changes(path: str, now: Item, wanted: Item, trust: frozenset[str]) -> Iterator[Change]:
    for name in sorted(wanted):
        before, after = now.get(name), wanted[name]
        if before == after:
            continue
        if name == "source_sha256":
            yield Change(f"{path}.source", "change")
        else:
            kind: Kind = "trust" if name in trust else "change"
            loses_values = name == "secret_names" and not set(before or ()) <= set(after)
            yield Change(f"{path}.{name}", kind, loses_values, before=before, after=after)
