from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, cast

from accounts.audit import Actor, ActorKind
from platform_site.config import credentials, current, submitted
from platform_site.config.models import StoredPlan
from platform_site.config.submitted import ROOT, below
from platform_site.http.errors import PreconditionFailed, ValidationFailed
from platform_site.identity.callers import EnvironmentRef

OUTDATED: Final = "The environment changed since the plan. Plan again."


@dataclass(slots=True)
class ChangedItem:
    """A function, webhook or provider."""

    name: str
    path: str
    wanted: dict[str, Any]
    """Empty if it is removed."""
    is_new: bool = False
    is_removed: bool = False
    fields: set[str] = field(default_factory=set)

    @property
    def values(self) -> dict[str, Any]:
        """The settings that change."""
        return {name: value for name, value in self.wanted.items() if self.is_new or name in self.fields}


@dataclass
class PlanChanges:
    """What a stored plan changes in its environment. `source` is a merged environment, `urls` are whole URLs of
    webhooks, by path."""

    environment: EnvironmentRef
    plan: StoredPlan
    source: EnvironmentRef | None = None
    urls: Mapping[str, Any] = field(default_factory=dict)

    @property
    def author(self) -> Actor:
        return Actor(cast(ActorKind, self.plan.author_kind), self.plan.author_id)

    @cached_property
    def wanted(self) -> dict[str, Any]:
        """Raises ValidationFailed."""
        wanted = submitted.check(self.environment, self.plan.document)
        for path, url in self.urls.items():
            name = path.removeprefix("webhooks.").removesuffix(".url")
            item = wanted.get("webhooks", {}).get(name, {})
            is_changed = not self.paths.isdisjoint({path, f"webhooks.{name}"})
            has_reference = path == f"webhooks.{name}.url" and credentials.REFERENCE in item.get("url", "")
            if not is_changed or not has_reference:
                message = "Name paths of webhook URLs that the plan changes and that have a $secret: in the plan."
                raise ValidationFailed.of(f"urls.{path[:80]}", "unknown", message)
            with errors_at(f"webhooks.{name}"):
                item["url"] = submitted.whole_url(item["url"], url)
        return wanted

    @property
    def paths(self) -> set[str]:
        return {change["path"] for change in self.plan.changes}

    def require_current(self, *, in_region: bool) -> None:
        plan = self.plan
        parts = [part for part in plan.parts if (part in current.IN_REGION) == in_region]
        versions_then = [(self.environment, plan.version_in_region if in_region else plan.version_in_control)]
        if self.source is not None:
            versions_then.append((self.source, plan.merge["versions"][0 if in_region else 1]))
        if any(current.version_of(current.read(each, parts)) != version for each, version in versions_then):
            raise PreconditionFailed(OUTDATED)

    def changed_items(self, part: str) -> list[ChangedItem]:
        """Of `functions`, `webhooks` or `auth.providers`, removed ones first."""
        items: Any = self.wanted
        for name in part.split("."):
            items = items.get(name, {})
        found: dict[str, ChangedItem] = {}
        for change in self.plan.changes:
            if not change["path"].startswith(f"{part}."):
                continue
            name, _, setting = change["path"].removeprefix(f"{part}.").partition(".")  # names have no dots
            item = found.setdefault(name, ChangedItem(name, f"{part}.{name}", items.get(name, {})))
            if setting:
                item.fields.add(setting)
            elif change["kind"] == "remove":
                item.is_removed = True
            else:
                item.is_new = True
        return sorted(found.values(), key=lambda each: (not each.is_removed, each.name))


@contextmanager
def errors_at(path: str) -> Generator[None]:
    """Adds the item's path to errors in the block."""
    try:
        yield
    except ValidationFailed as error:
        raise ValidationFailed(fields=[below(f"{ROOT}.{path}", found) for found in error.fields]) from error
