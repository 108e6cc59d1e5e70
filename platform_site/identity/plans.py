"""The plans' limits (docs/reference/limits.md). Contract section 8."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Final


def _limits(free: int, pro: int, team: int) -> Any:
    return field(metadata={"free": free, "pro": pro, "team": team})


@dataclass(frozen=True, slots=True)
class PlanLimits:
    requests_per_minute: int = _limits(600, 6_000, 30_000)
    """Per account, app user or server key."""
    visitor_requests_per_minute: int = _limits(300, 1_200, 3_000)
    """Per publishable key and client IP address."""
    token_requests_per_minute: int = _limits(10, 10, 10)
    """Per (pool, email)."""
    emails_per_recipient_per_hour: int = _limits(6, 6, 6)
    """Of one kind from one pool."""
    emails_per_hour: int = _limits(300, 3_000, 30_000)
    """Per pool, to entered emails."""
    emails_to_users_per_hour: int = _limits(1_000, 10_000, 100_000)
    """Per pool, to users. Further ones wait."""
    invitations_per_hour: int = _limits(100, 1_000, 10_000)
    projects_per_account: int = _limits(20, 100, 500)
    members_per_project: int = _limits(5, 50, 500)
    preview_branches_per_project: int = _limits(3, 20, 100)
    keys_per_environment: int = _limits(20, 100, 500)
    app_users_per_environment: int = _limits(10_000, 1_000_000, 10_000_000)
    tables_per_environment: int = _limits(100, 200, 200)
    webhooks_per_environment: int = _limits(20, 200, 500)
    functions_per_environment: int = _limits(20, 200, 1_000)
    schedules_per_environment: int = _limits(10, 100, 500)
    event_functions_per_environment: int = _limits(10, 100, 500)
    function_timeout_ms: int = _limits(10_000, 60_000, 300_000)
    """Also caps the default."""
    function_memory_mb: int = _limits(128, 256, 512)
    function_concurrency: int = _limits(4, 16, 64)
    """Of synchronous runs in an environment, and as many queued ones. At least two: anonymous callers may use half."""
    queued_runs: int = _limits(5_000, 20_000, 100_000)
    queued_bytes: int = _limits(64 * 1024**2, 256 * 1024**2, 1024**3)
    visitor_queued_runs: int = _limits(100, 1_000, 5_000)
    visitor_queued_bytes: int = _limits(32 * 1024**2, 128 * 1024**2, 512 * 1024**2)
    streams_per_environment: int = _limits(200, 2_000, 10_000)
    streams_per_caller: int = _limits(10, 50, 100)
    change_retention_seconds: int = _limits(600, 7_200, 86_400)
    """How long a table records events after its last stream, so that clients can resume."""
    request_log_days: int = _limits(1, 7, 30)
    run_output_bytes: int = _limits(256 * 1024, 1024**2, 6 * 1024**2)
    run_history_bytes: int = _limits(2 * 1024**3, 20 * 1024**3, 100 * 1024**3)


PLANS: Final[Mapping[str, PlanLimits]] = MappingProxyType(
    {plan: PlanLimits(*(limit.metadata[plan] for limit in fields(PlanLimits))) for plan in ("free", "pro", "team")}
)


def plan_limits(name: str) -> PlanLimits:
    return PLANS[name]


def most_of(limit: str) -> int:
    return max(int(getattr(plan, limit)) for plan in PLANS.values())


@dataclass(frozen=True, slots=True)
class IpAddressLimits:
    """Limits per client IP (IPv4, or IPv6 /64), per minute, on every plan."""

    token_requests_per_minute: int = 60
    refreshes_per_minute: int = 300
    """Many users may share an IP; refresh tokens cannot be guessed."""
    refused_requests_per_minute: int = 120
    anonymous_requests_per_minute: int = 300
    email_requests_per_hour: int = 100
    known_browser_requests_per_minute: int = 10


IP_ADDRESS_LIMITS: Final = IpAddressLimits()
