"""The plans' limits, for `GET /v1/limits` and docs/reference/limits.md (a test compares them). Rates are per minute and
caller, multiplied by `RATE_LIMIT_FACTOR` (`platform_site.redis.rate_limits`). Contract section 8."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class PlanLimits:
    name: str
    requests_per_minute: int
    """Per account, app user or server key."""
    visitor_requests_per_minute: int
    """Per publishable key and client IP address."""
    token_requests_per_minute: int
    """Per (pool, email)."""
    emails_per_recipient_per_hour: int
    """Of one kind from one pool."""
    emails_per_hour: int
    """Per pool, to entered emails."""
    emails_to_users_per_hour: int
    """Per pool, to users. Further ones wait."""
    invitations_per_hour: int
    projects_per_account: int
    """Owned projects on this plan."""
    members_per_project: int
    preview_branches_per_project: int
    keys_per_environment: int
    app_users_per_environment: int
    tables_per_environment: int
    webhooks_per_environment: int
    functions_per_environment: int
    schedules_per_environment: int
    event_functions_per_environment: int
    function_timeout_ms: int
    """Also caps the default."""
    function_memory_mb: int
    function_concurrency: int
    """Of synchronous runs in an environment, and as many queued ones. At least two: anonymous callers may use half."""
    queued_runs: int
    """In an environment per kind of caller: keys and members, inbound endpoints, app users (of whom one may have an
    eighth). Approximate (`functions.quotas.queue_quotas`)."""
    queued_bytes: int
    visitor_queued_runs: int
    """For publishable keys, in an environment; approximate."""
    visitor_queued_bytes: int
    streams_per_environment: int
    """Each publishable key may have half, and one client network half of that."""
    streams_per_caller: int
    change_retention_seconds: int
    """How long a table records events after its last stream, so that clients can resume."""
    request_log_days: int
    run_output_bytes: int
    run_history_bytes: int
    """Disk use of an environment's ended runs, except anonymous ones; the oldest are deleted early. Approximate
    (`functions.runs.sampled_sizes`)."""


_BY_PLAN: Final[Mapping[str, tuple[int, int, int]]] = {
    # free, pro, team
    "requests_per_minute": (600, 6_000, 30_000),
    "visitor_requests_per_minute": (300, 1_200, 3_000),
    "token_requests_per_minute": (10, 10, 10),
    "emails_per_recipient_per_hour": (6, 6, 6),
    "emails_per_hour": (300, 3_000, 30_000),
    "emails_to_users_per_hour": (1_000, 10_000, 100_000),
    "invitations_per_hour": (100, 1_000, 10_000),
    "projects_per_account": (20, 100, 500),
    "members_per_project": (5, 50, 500),
    "preview_branches_per_project": (3, 20, 100),
    "keys_per_environment": (20, 100, 500),
    "app_users_per_environment": (10_000, 1_000_000, 10_000_000),
    "tables_per_environment": (100, 200, 200),
    "webhooks_per_environment": (20, 200, 500),
    "functions_per_environment": (20, 200, 1_000),
    "schedules_per_environment": (10, 100, 500),
    "event_functions_per_environment": (10, 100, 500),
    "function_timeout_ms": (10_000, 60_000, 300_000),
    "function_memory_mb": (128, 256, 512),
    "function_concurrency": (4, 16, 64),
    "queued_runs": (5_000, 20_000, 100_000),
    "queued_bytes": (64 * 1024**2, 256 * 1024**2, 1024**3),
    "visitor_queued_runs": (100, 1_000, 5_000),
    "visitor_queued_bytes": (32 * 1024**2, 128 * 1024**2, 512 * 1024**2),
    "streams_per_environment": (200, 2_000, 10_000),
    "streams_per_caller": (10, 50, 100),
    "change_retention_seconds": (600, 7_200, 86_400),
    "request_log_days": (1, 7, 30),
    "run_output_bytes": (256 * 1024, 1024**2, 6 * 1024**2),
    "run_history_bytes": (2 * 1024**3, 20 * 1024**3, 100 * 1024**3),
}
PLANS: Final[Mapping[str, PlanLimits]] = MappingProxyType(
    {
        name: PlanLimits(name, **{limit: values[index] for limit, values in _BY_PLAN.items()})
        for index, name in enumerate(("free", "pro", "team"))
    }
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
    """So that one client does not use up the pool's limit."""
    known_browser_requests_per_minute: int = 10


IP_ADDRESS_LIMITS: Final = IpAddressLimits()
