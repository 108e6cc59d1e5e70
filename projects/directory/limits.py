"""The limits of the caller's plan and their usage: the response of `GET /v1/limits`. Each app registers a counter for
its limits (`set_usage_counter`). A limit without one is shown without `used`."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Final

from accounts.models import ServerKey
from accounts.users import user_counts
from platform_site.identity.callers import Caller, EnvironmentRef
from platform_site.identity.plans import PlanLimits, plan_limits
from projects.directory import invitations
from projects.models import Environment, Member, Project

UsageCounter = Callable[[EnvironmentRef], int]
"""How much of one limit an environment uses. At most one query, whose cost is bounded by the limit."""
UsageCounters = Callable[[EnvironmentRef], Sequence[int]]
"""The same of several limits at once."""

_counters: Final[dict[tuple[str, ...], UsageCounters]] = {}


def set_usage_counter(limit: str, counter: UsageCounter) -> None:
    """Let `counter` say how much of `limit` (a field of PlanLimits) is used. Called at start by the app that counts."""
    set_usage_counters((limit,), lambda place: (counter(place),))


def set_usage_counters(limits: tuple[str, ...], counters: UsageCounters) -> None:
    """The same for several limits, whose use is found by one look; in their order."""
    if unknown := set(limits) - {field.name for field in fields(PlanLimits)}:
        raise ValueError(f"no limit is called {unknown.pop()!r}")
    _counters[limits] = counters


def of(caller: Caller) -> dict[str, dict[str, Any]]:
    """`{limit: {"limit": n, "used": m}}` for the caller's plan; `used` where it is known and the caller may see it. App
    users and anonymous callers see the limits that apply to them, not the size of the project."""
    allowed = plan_limits(caller.plan)
    shown = {
        field.name: {"limit": getattr(allowed, field.name)} for field in fields(PlanLimits) if field.name != "name"
    }
    if caller.kind in ("user", "anonymous"):
        rate = "requests_per_minute" if caller.kind == "user" else "visitor_requests_per_minute"
        return {name: shown[name] for name in (rate, "function_timeout_ms", "run_output_bytes")}
    if caller.account_id is not None:
        shown["projects_per_account"]["used"] = (
            Project.objects.live().filter(created_by_id=caller.account_id, plan=caller.plan).count()
        )
    if caller.place is not None:
        for name, used in used_in(caller.place).items():
            shown[name]["used"] = used
    return shown


def used_in(place: EnvironmentRef) -> dict[str, int]:
    """The usage of each counted limit in an environment, for operators."""
    return {
        name: used for names, counters in _counters.items() for name, used in zip(names, counters(place), strict=True)
    }


def _members(place: EnvironmentRef) -> int:
    """Those who are invited have a place, too."""
    return Member.objects.filter(project_id=place.project_id).count() + invitations.pending(place.project_id).count()


def _preview_branches(place: EnvironmentRef) -> int:
    return Environment.objects.live().branches().filter(project_id=place.project_id).count()


def _keys(place: EnvironmentRef) -> int:
    return ServerKey.objects.filter(environment_id=place.environment_id, revoked_at__isnull=True).count()


def _app_users(place: EnvironmentRef) -> int:
    return user_counts.users_of(place.pool_id)


set_usage_counter("members_per_project", _members)
set_usage_counter("preview_branches_per_project", _preview_branches)
set_usage_counter("keys_per_environment", _keys)
set_usage_counter("app_users_per_environment", _app_users)
