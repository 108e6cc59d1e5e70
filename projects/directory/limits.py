"""The limits of the caller's plan and their usage, for `GET /v1/limits`. Each app registers counters for its limits."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from typing import Any, Final

from accounts.models import ServerKey
from accounts.users import user_counts
from platform_site.identity.callers import Caller, EnvironmentRef
from platform_site.identity.plans import PlanLimits, plan_limits
from projects.directory import invitations
from projects.models import Environment, Member, Project

UsageCounter = Callable[[EnvironmentRef], int]
"""Usage of one limit. At most one query, whose cost the limit bounds."""
UsageCounters = Callable[[EnvironmentRef], Sequence[int]]

_counters: Final[dict[tuple[str, ...], UsageCounters]] = {}


def set_usage_counter(limit: str, counter: UsageCounter) -> None:
    set_usage_counters((limit,), lambda environment: (counter(environment),))


def set_usage_counters(limits: tuple[str, ...], counters: UsageCounters) -> None:
    if unknown := set(limits) - {field.name for field in fields(PlanLimits)}:
        raise ValueError(f"no limit is called {unknown.pop()!r}")
    _counters[limits] = counters


def of(caller: Caller) -> dict[str, dict[str, Any]]:
    """`{limit: {"limit": n, "used": m}}`; `used` if known and visible to the caller. App users and anonymous callers
    only see the limits that apply to them."""
    shown = {name: {"limit": limit} for name, limit in asdict(plan_limits(caller.plan)).items()}
    if caller.kind in ("user", "anonymous"):
        rate = "requests_per_minute" if caller.kind == "user" else "visitor_requests_per_minute"
        return {name: shown[name] for name in (rate, "function_timeout_ms", "run_output_bytes")}
    if caller.account_id is not None:
        shown["projects_per_account"]["used"] = (
            Project.objects.live().filter(created_by_id=caller.account_id, plan=caller.plan).count()
        )
    if caller.environment is not None:
        for name, used in used_in(caller.environment).items():
            shown[name]["used"] = used
    return shown


def used_in(environment: EnvironmentRef) -> dict[str, int]:
    return {
        name: used
        for names, counters in _counters.items()
        for name, used in zip(names, counters(environment), strict=True)
    }


def count_members(project_id: str) -> int:
    """With open invitations."""
    return Member.objects.filter(project_id=project_id).count() + invitations.pending(project_id).count()


def _preview_branches(environment: EnvironmentRef) -> int:
    return Environment.objects.live().branches().filter(project_id=environment.project_id).count()


def _keys(environment: EnvironmentRef) -> int:
    return ServerKey.objects.filter(environment_id=environment.environment_id, revoked_at__isnull=True).count()


set_usage_counter("members_per_project", lambda environment: count_members(environment.project_id))
set_usage_counter("preview_branches_per_project", _preview_branches)
set_usage_counter("keys_per_environment", _keys)
set_usage_counter("app_users_per_environment", lambda environment: user_counts.users_of(environment.pool_id))
