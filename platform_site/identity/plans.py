"""What each plan allows: one table, for callers at `GET /v1/limits` and for readers in docs/reference/limits.md.
Thresholds are per minute and per caller, quotas are counts, sizes are bytes, times are milliseconds. Of these,
`RATE_LIMIT_FACTOR` multiplies the rates (`platform_site.redis.rate_limits`). A test keeps the page in step with the
table. Contract section 8."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """The limits of one plan."""

    name: str
    requests_per_minute: int
    """Per caller: one account, one app user or one server key."""
    visitor_requests_per_minute: int
    """Per publishable key and client IP address."""
    token_requests_per_minute: int
    """At the token endpoint, per (pool, e-mail)."""
    emails_per_recipient_per_hour: int
    """Emails of one kind from one pool to one recipient: sign-up, password reset, a notification."""
    emails_per_hour: int
    """Per pool, to entered emails: sign-up, verification, a new email."""
    emails_to_users_per_hour: int
    """Per pool, to users: password reset, notifications. Further ones wait for the next hour."""
    invitations_per_hour: int
    """Per pool."""
    projects_per_account: int
    """Counted over the projects that an account owns on this plan."""
    members_per_project: int
    preview_branches_per_project: int
    keys_per_environment: int
    app_users_per_environment: int
    tables_per_environment: int
    webhooks_per_environment: int
    functions_per_environment: int
    schedules_per_environment: int
    """Functions that run by a schedule; stopped ones do not count."""
    event_functions_per_environment: int
    """Functions that run on events; stopped ones do not count."""
    function_timeout_ms: int
    """The ceiling of a function's `timeout_ms`, and what it has if it names none is never above it."""
    function_memory_mb: int
    function_concurrency: int
    """Concurrent synchronous runs of one environment, and as many queued ones; further ones are refused or wait. At
    least two: anonymous callers may use half of them."""
    queued_runs: int
    """Queued runs of one environment per kind of caller: keys and members, inbound endpoints, app users, of whom one
    may have an eighth. Approximate (`functions.quotas.queue_quotas`)."""
    queued_bytes: int
    """What the inputs of those may have together."""
    visitor_queued_runs: int
    """Queued runs for publishable keys that wait in one environment; a few more where several come at one moment."""
    visitor_queued_bytes: int
    """What the inputs of those may have together."""
    streams_per_environment: int
    """Open streams of live changes; each publishable key may have half of them."""
    streams_per_caller: int
    change_retention_seconds: int
    """For how long after its last stream a table records events, so that a client can go on where it was cut off."""
    request_log_days: int
    """For how long entries of the request log are kept."""
    run_output_bytes: int
    run_history_bytes: int
    """What an environment's ended runs may take of the disk, but for those for publishable keys; beyond it the oldest
    go before their seven days. About so much (`functions.runs.sampled_sizes`), and far more than ordinary use
    leaves."""


PLANS: Final[Mapping[str, PlanLimits]] = MappingProxyType(
    {
        "free": PlanLimits(
            name="free",
            requests_per_minute=600,
            visitor_requests_per_minute=300,
            token_requests_per_minute=10,
            emails_per_recipient_per_hour=6,
            emails_per_hour=300,
            emails_to_users_per_hour=1_000,
            invitations_per_hour=100,
            projects_per_account=20,
            members_per_project=5,
            preview_branches_per_project=3,
            keys_per_environment=20,
            app_users_per_environment=10_000,
            tables_per_environment=100,
            webhooks_per_environment=20,
            functions_per_environment=20,
            schedules_per_environment=10,
            event_functions_per_environment=10,
            function_timeout_ms=10_000,
            function_memory_mb=128,
            function_concurrency=4,
            queued_runs=5_000,
            queued_bytes=64 * 1024 * 1024,
            visitor_queued_runs=100,
            visitor_queued_bytes=32 * 1024 * 1024,
            streams_per_environment=200,
            streams_per_caller=10,
            change_retention_seconds=600,
            request_log_days=1,
            run_output_bytes=256 * 1024,
            run_history_bytes=2 * 1024**3,
        ),
        "pro": PlanLimits(
            name="pro",
            requests_per_minute=6_000,
            visitor_requests_per_minute=1_200,
            token_requests_per_minute=10,
            emails_per_recipient_per_hour=6,
            emails_per_hour=3_000,
            emails_to_users_per_hour=10_000,
            invitations_per_hour=1_000,
            projects_per_account=100,
            members_per_project=50,
            preview_branches_per_project=20,
            keys_per_environment=100,
            app_users_per_environment=1_000_000,
            tables_per_environment=200,
            webhooks_per_environment=200,
            functions_per_environment=200,
            schedules_per_environment=100,
            event_functions_per_environment=100,
            function_timeout_ms=60_000,
            function_memory_mb=256,
            function_concurrency=16,
            queued_runs=20_000,
            queued_bytes=256 * 1024 * 1024,
            visitor_queued_runs=1_000,
            visitor_queued_bytes=128 * 1024 * 1024,
            streams_per_environment=2_000,
            streams_per_caller=50,
            change_retention_seconds=7_200,
            request_log_days=7,
            run_output_bytes=1024 * 1024,
            run_history_bytes=20 * 1024**3,
        ),
        "team": PlanLimits(
            name="team",
            requests_per_minute=30_000,
            visitor_requests_per_minute=3_000,
            token_requests_per_minute=10,
            emails_per_recipient_per_hour=6,
            emails_per_hour=30_000,
            emails_to_users_per_hour=100_000,
            invitations_per_hour=10_000,
            projects_per_account=500,
            members_per_project=500,
            preview_branches_per_project=100,
            keys_per_environment=500,
            app_users_per_environment=10_000_000,
            tables_per_environment=200,
            webhooks_per_environment=500,
            functions_per_environment=1_000,
            schedules_per_environment=500,
            event_functions_per_environment=500,
            function_timeout_ms=300_000,
            function_memory_mb=512,
            function_concurrency=64,
            queued_runs=100_000,
            queued_bytes=1024 * 1024 * 1024,
            visitor_queued_runs=5_000,
            visitor_queued_bytes=512 * 1024 * 1024,
            streams_per_environment=10_000,
            streams_per_caller=100,
            change_retention_seconds=86_400,
            request_log_days=30,
            run_output_bytes=6 * 1024 * 1024,
            run_history_bytes=100 * 1024**3,
        ),
    }
)


def plan_limits(name: str) -> PlanLimits:
    """The limits of the plan `name` (`free`, `pro`, `team`). Raises KeyError for another."""
    return PLANS[name]


def most_of(limit: str) -> int:
    """What the plan allows that allows most of it: no request may ask for more."""
    return max(int(getattr(plan, limit)) for plan in PLANS.values())


@dataclass(frozen=True, slots=True)
class IpAddressLimits:
    """Limits of one client IP address (an IPv4 address or an IPv6 /64), per minute unless the name says otherwise, on
    every plan."""

    token_requests_per_minute: int
    """Passwords and codes at the token endpoint, and other tries to sign in or up."""
    refreshes_per_minute: int
    """Token refreshes: many users behind one IP address do these all day, and a refresh token cannot be guessed."""
    refused_requests_per_minute: int
    """Requests whose token was refused."""
    anonymous_requests_per_minute: int
    """Requests without a token, where none is needed."""
    email_requests_per_hour: int
    """Emails requested by sign-up or password reset, so that one client does not use up the pool's limit."""
    known_browser_requests_per_minute: int
    """Passwords at the console's sign-in from one browser in which the same person has signed in before."""


IP_ADDRESS_LIMITS: Final = IpAddressLimits(
    token_requests_per_minute=60,
    refreshes_per_minute=300,
    refused_requests_per_minute=120,
    anonymous_requests_per_minute=300,
    email_requests_per_hour=100,
    known_browser_requests_per_minute=10,
)
