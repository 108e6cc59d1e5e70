from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from platform_site.config import apply as config_apply
from platform_site.config import comparison, current, stored_plans, submitted, versions
from platform_site.config.apply import Outcome
from platform_site.config.comparison import Plan
from platform_site.config.merge import merge_plans, merging
from platform_site.config.merge.three_way import Conflict
from platform_site.config.models import StoredPlan
from platform_site.config.parts import checks
from platform_site.config.parts.changes import PlanChanges
from platform_site.http.errors import Forbidden, PreconditionFailed, ValidationFailed
from platform_site.identity.callers import Caller, EnvironmentRef
from projects.directory.environments import environment_ref_for
from rows.outbox import event_types

WRITE_SCOPES: Final = {
    "schema": ("schema:write",),
    "functions": ("functions:deploy",),
    "webhooks": ("webhooks:write", "rows:read"),
    "auth": (),
    "origins": ("environments:write",),
}
"""Besides READ_SCOPES. Webhooks send rows."""


@dataclass(frozen=True, slots=True)
class Planned:
    stored: StoredPlan
    plan: Plan
    conflicts: list[Conflict]


def read_scopes(parts: Collection[str]) -> set[str]:
    return {scope for part in parts for scope in current.READ_SCOPES[part]}


def parts_to_read(caller: Caller, named: Collection[str] | None) -> Collection[str]:
    """`named`, else all that the caller may read. Raises Forbidden with the missing scopes of `named`, and for callers
    that may read no part."""
    current.require_scopes(caller, read_scopes(named or ()))
    if named is not None:
        return named
    readable = [part for part in current.PARTS if read_scopes([part]) <= caller.scopes]
    if not readable:
        current.require_scopes(caller, read_scopes(current.PARTS))
    return readable


def _write_scopes(parts: Collection[str]) -> set[str]:
    return read_scopes(parts) | {scope for part in parts for scope in WRITE_SCOPES[part]}


def _scopes_of_events(environment: EnvironmentRef, document: Mapping[str, Any]) -> set[str]:
    """What the events of the document's webhooks need."""
    webhooks = document.get("webhooks")
    items = webhooks.items() if isinstance(webhooks, dict) else ()
    changed = {name: item for name, item in items if isinstance(item, dict) and item}
    # A new URL also gets the events of the webhook until now.
    now = current.read(environment, ["webhooks"])["webhooks"] if changed else {}
    named = [it.get("events") for it in [*changed.values(), *(now[name] for name in changed.keys() & now.keys())]]
    patterns = [each for events in named if isinstance(events, list) for each in events if isinstance(each, str)]
    return {*event_types.scopes_of(patterns)}


def plan_document(
    environment: EnvironmentRef,
    document: Mapping[str, Any],
    caller: Caller,
    keep: Collection[str] = (),
    restores: str | None = None,
) -> Planned:
    parts = submitted.parts_of(document)
    current.require_scopes(caller, _write_scopes(parts))
    current.require_scopes(caller, _scopes_of_events(environment, document))
    wanted = submitted.check(environment, document)
    now = current.read(environment, parts)
    plan = comparison.compare(environment, now, wanted, caller, keep=keep)
    stored = stored_plans.new(environment, caller, document, now, plan, restores=restores)
    changes = PlanChanges(environment, stored)
    changes.wanted = wanted
    checks.check(changes)
    stored_plans.store(stored, environment.cluster)
    return Planned(stored, plan, [])


def plan_version(environment: EnvironmentRef, version: str, caller: Caller) -> Planned:
    return plan_document(environment, versions.document_of(environment, version), caller, restores=version)


def plan_merge(
    environment: EnvironmentRef, source_id: str, *, include: Collection[str], resolve: Mapping[str, Any], caller: Caller
) -> Planned:
    parts = merging.parts_of(include)
    source = _source(environment, source_id, parts, _write_scopes(parts), caller)
    merge = merging.merge(environment, source, include=include, resolve=resolve)
    plan = merge_plans.compare(environment, merge, caller)
    stored = stored_plans.new(environment, caller, merge.document, merge.now, plan, merge.stored)
    if not merge.conflicts:
        checks.check(PlanChanges(environment, stored))
    stored_plans.store(stored, environment.cluster)
    return Planned(stored, plan, merge.conflicts)


def _source(
    environment: EnvironmentRef, environment_id: str, parts: Collection[str], further: Collection[str], caller: Caller
) -> EnvironmentRef:
    """The environment to merge. Raises ValidationFailed, and Forbidden with all missing scopes: those to read the
    source, and `further` ones of the target."""
    found = environment_ref_for(caller, environment_id)
    if found is None or found[0].project_id != environment.project_id:
        raise ValidationFailed.of(
            "from", "unknown", "The project has no such environment, or you have no access to it."
        )
    source, held = found
    if source.environment_id == environment.environment_id:
        raise ValidationFailed.of("from", "same", "An environment cannot be merged into itself.")
    if missing := {scope for scope in further if not caller.may(scope)} | (read_scopes(parts) - held):
        raise Forbidden(f"This needs the scopes {', '.join(sorted(missing))}.")
    return source


def apply(
    environment: EnvironmentRef,
    plan_id: str,
    *,
    confirm: Collection[str],
    resolve: Mapping[str, Any],
    urls: Mapping[str, Any],
    caller: Caller,
) -> Outcome:
    stored = stored_plans.find(environment, plan_id)
    needed = _write_scopes(stored.parts) | _scopes_of_events(environment, stored.document)
    current.require_scopes(caller, needed)
    # Before the source is looked up: another caller may not see it.
    if (stored.author_kind, stored.author_id) != (caller.kind, caller.id):
        raise Forbidden("Only the author of a plan can apply it. Create your own plan.")
    source = None
    if stored.merge is not None:
        if environment_ref_for(caller, stored.merge["source"]) is None:
            raise PreconditionFailed("The environment that the plan merges is gone. Plan again.")
        source = _source(environment, stored.merge["source"], stored.parts, (), caller)
    changes = PlanChanges(environment, stored, source, urls)
    return config_apply.apply(changes, confirm=confirm, resolve=resolve, caller=caller)
