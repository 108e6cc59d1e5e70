"""Rate limits, in headers (draft-ietf-httpapi-ratelimit-headers-10) and by 429: `count_*` and `settle` raise
RateLimited. django-ratelimit names a counter for each window of time, and Redis counts in the request's round trip.
Without Redis only sign-in and emails are limited, per process. Contract section 8."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cachetools import LRUCache
from django.conf import settings
from django.core.cache import caches
from django.core.cache.backends.base import DEFAULT_TIMEOUT
from django.core.cache.backends.dummy import DummyCache
from django.http import HttpRequest
from django_ratelimit.core import get_usage

from platform_site.concurrency import server_hints
from platform_site.http.errors import RateLimited
from platform_site.http.requests import add_header, network_of
from platform_site.identity.email_addresses import normalize
from platform_site.identity.plans import IP_ADDRESS_LIMITS, plan_limits
from platform_site.redis import client as redis_client
from platform_site.redis.round_trip import Counted, Fetched, RoundTrip

PERIOD: Final = 60
HOUR: Final = 3600
_PLACEHOLDER_LIMIT: Final = 1_000_000
"""The plan is only known after the round trip."""


Outcome = tuple[str, str, int | None]
"""The values of RateLimit-Policy and RateLimit, and the seconds to wait if the limit is exceeded."""

_Window = tuple[int, str, int]
"""When it ends, and the key and the lifetime of its counter."""
_windows: Final[dict[tuple[str, str, int], _Window]] = {}
"""By name, identity and period: computing one costs 15 µs."""
_MAX_WINDOWS: Final = 10_000


class CounterNames(DummyCache):
    """The cache of django-ratelimit: only notes the key and the lifetime of the last counter. One of Redis would cost
    127 µs per use."""

    named: tuple[str, int]

    def add(self, key: str, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        self.named = key, timeout
        return True


class Counting:
    """One policy for one request: counted in a round trip, compared with its limit after it."""

    def __init__(
        self, trip: RoundTrip, name: str, identity: str, *, read_only: bool = False, period: int = PERIOD
    ) -> None:
        self._name, self._identity, self._period = name, identity, period
        now = int(time.time())
        window = _windows.get((name, identity, period))
        # Not from before a clock was set back: such a window would last too long.
        if window is None or not window[0] - period <= now <= window[0]:
            window = _new_window(name, identity, period, now)
        ends, self._key, self._ttl = window
        self._count: Counted | Fetched = trip.get(self._key) if read_only else trip.count(self._key, self._ttl)
        # The window named by second w still holds during that second: django-ratelimit's time_left is one too short.
        self._time_left = ends - now + 1

    def add(self, amount: int) -> None:
        trip = redis_client.round_trip()
        self._count = trip.count(self._key, self._ttl, amount)
        trip.run()

    def settle(self, quota: int, *, fall_back: bool = False) -> Outcome:
        """`fall_back`: count in this process while Redis is unavailable."""
        quota = max(1, int(quota * settings.RATE_LIMIT_FACTOR))
        count, time_left = int(self._count.value or 0), self._time_left
        if fall_back and self._count.value is None:
            count, time_left = _process_limiters[self._period].count(f"{self._name}\0{self._identity}")
        policy = f'"{self._name}";q={quota};w={self._period}'
        state = f'"{self._name}";r={max(0, quota - count)};t={time_left}'
        return policy, state, time_left if count > quota else None


def _new_window(name: str, identity: str, period: int, now: int) -> _Window:
    usage = get_usage(None, group=name, key=lambda group, request: identity, rate=(_PLACEHOLDER_LIMIT, period))
    cache: Any = caches[settings.RATELIMIT_USE_CACHE]
    key, ttl = cache.named
    if len(_windows) >= _MAX_WINDOWS:
        _windows.clear()  # clients choose the names of counters, too: their IPs
    window = _windows[name, identity, period] = now + usage["time_left"], key, ttl
    return window


def _apply(request: HttpRequest, *outcomes: Outcome, message: str | None = None) -> None:
    policies, states, longest_wait = outcomes[0]
    for policy, state, wait in outcomes[1:]:
        policies, states = f"{policies}, {policy}", f"{states}, {state}"
        longest_wait = max(longest_wait or 0, wait or 0) or None
    add_header(request, "RateLimit-Policy", policies)
    add_header(request, "RateLimit", states)
    if longest_wait is not None:
        raise RateLimited(longest_wait, message)


_MORE_COUNTED: Final = "operations_counted"


class CallerLimit:
    """`is_anonymous`: `identity` is a public key (publishable, or of an inbound endpoint), limited per client IP."""

    def __init__(self, request: HttpRequest, trip: RoundTrip, identity: str, *, is_anonymous: bool = False) -> None:
        if is_anonymous:
            identity = f"{identity}\0{network_of(request)}"
        self._request = request
        self._is_anonymous = is_anonymous
        self._counting = Counting(trip, "caller", identity, read_only=server_hints.is_repeated(request))
        request.__dict__["rate_limit"] = self

    def count_more(self, amount: int, plan: str, caller_id: str | None = None) -> None:
        """After RateLimited, these are not counted."""
        if amount <= 0 or _MORE_COUNTED in self._request.__dict__:
            return
        self._counting.add(amount)
        try:
            self.settle(plan, caller_id)
        except RateLimited:
            self._counting.add(-amount)
            self.settle(plan)  # the header of what is left for smaller requests
            raise
        self._request.__dict__[_MORE_COUNTED] = True  # not again if the request is repeated

    def settle(self, plan: str, caller_id: str | None = None) -> None:
        allowed = plan_limits(plan)
        quota = allowed.visitor_requests_per_minute if self._is_anonymous else allowed.requests_per_minute
        try:
            _apply(self._request, self._counting.settle(quota))
        except RateLimited:
            if caller_id is not None:
                record_limited({caller_id: 1})
            raise


def count_operations(request: HttpRequest, operations: int, plan: str, caller_id: str | None) -> None:
    limit: CallerLimit | None = request.__dict__.get("rate_limit")
    if limit is not None:
        limit.count_more(operations - 1, plan, caller_id)


def count_refused(request: HttpRequest, about: str = "") -> None:
    """Count a refused token against the client's IP: with `about` (such as an environment) only there, since one IP of
    a provider serves many customers. One round trip."""
    _count_ip_address(request, "refused", IP_ADDRESS_LIMITS.refused_requests_per_minute, about)


class Refusals:
    """Reads what `count_refused` has counted, in the request's round trip."""

    def __init__(self, request: HttpRequest, trip: RoundTrip, about: str = "") -> None:
        self._request = request
        self._counting = Counting(trip, "refused", _network(request, about), read_only=True)

    def check(self) -> None:
        outcome = self._counting.settle(IP_ADDRESS_LIMITS.refused_requests_per_minute)
        _, _, wait = outcome
        if wait is not None:
            _apply(self._request, outcome)


def count_anonymous(request: HttpRequest) -> None:
    _count_ip_address(request, "address", IP_ADDRESS_LIMITS.anonymous_requests_per_minute)


def _count_ip_address(request: HttpRequest, name: str, quota: int, about: str = "") -> None:
    _apply(request, *_count(_Limit(name, _network(request, about), quota), fall_back=False))


def _network(request: HttpRequest, about: str) -> str:
    network = network_of(request)
    return f"{about}\0{network}" if about else network


@dataclass(frozen=True, slots=True)
class _Limit:
    name: str
    identity: str
    quota: int
    period: int = PERIOD


def _count(*limits: _Limit, fall_back: bool = True, read_only: bool = False) -> list[Outcome]:
    trip = redis_client.round_trip()
    counted = [Counting(trip, limit.name, limit.identity, read_only=read_only, period=limit.period) for limit in limits]
    trip.run()
    return [each.settle(limit.quota, fall_back=fall_back) for each, limit in zip(counted, limits, strict=True)]


def _sign_ins_of_network(request: HttpRequest) -> _Limit:
    return _Limit("sign-in-address", network_of(request), IP_ADDRESS_LIMITS.token_requests_per_minute)


def count_token_request(request: HttpRequest, *, pool_id: str | None = None, email: str | None = None) -> None:
    if email is None:
        limits = [_Limit("refresh", network_of(request), IP_ADDRESS_LIMITS.refreshes_per_minute)]
    else:
        account = f"{pool_id or ''}\0{normalize(email)}"
        of_account = _Limit("sign-in", account, plan_limits("free").token_requests_per_minute)
        limits = [of_account, _sign_ins_of_network(request)]
    _apply(request, *_count(*limits, read_only=server_hints.is_repeated(request)))


def count_email_request(
    request: HttpRequest, *, kind: str, pool_id: str | None, email: str, plan: str = "free"
) -> None:
    """Also as a sign-in attempt, whether or not an account exists. Each kind has its own count: otherwise sign-ups
    could use up a person's password resets."""
    recipient = f"{pool_id or ''}\0{kind}\0{normalize(email)}"
    outcomes = _count(
        _Limit("emails", recipient, plan_limits(plan).emails_per_recipient_per_hour, HOUR),
        _Limit("emails-address", network_of(request), IP_ADDRESS_LIMITS.email_requests_per_hour, HOUR),
        _sign_ins_of_network(request),
    )
    _apply(request, *outcomes)


def count_pool_email(request: HttpRequest, *, pool_id: str | None, plan: str) -> None:
    """Count an email to an entered address; after all other checks."""
    outcomes = _count(_Limit("emails-pool", pool_id or "", plan_limits(plan).emails_per_hour, HOUR))
    _apply(request, *outcomes, message="The plan's limit of emails per hour is reached.")


def wait_to_send(*, kind: str, pool_id: str | None, recipient: str, plan: str) -> int | None:
    """Count an email to an account; returns seconds to wait, or None. Called by the worker, so requests for unknown
    emails do not count."""
    limits, account = plan_limits(plan), f"{pool_id or ''}\0{kind}\0{normalize(recipient)}"
    outcomes = _count(
        _Limit("emails-to-users", pool_id or "", limits.emails_to_users_per_hour, HOUR),
        _Limit("emails-sent", account, limits.emails_per_recipient_per_hour, HOUR),
    )
    return max((wait for _, _, wait in outcomes if wait is not None), default=None)


def count_invitation(request: HttpRequest, *, pool_id: str, plan: str) -> None:
    _apply(request, *_count(_Limit("invitations", pool_id, plan_limits(plan).invitations_per_hour, HOUR)))


def count_member_request(request: HttpRequest, account_id: str) -> None:
    """Count a request that reveals whether an email has an account, as a sign-in."""
    _apply(request, *_count(_Limit("members", account_id, plan_limits("free").token_requests_per_minute)))


def count_known_browser(request: HttpRequest, browser: str) -> None:
    _apply(request, *_count(_Limit("sign-in-browser", browser, IP_ADDRESS_LIMITS.known_browser_requests_per_minute)))


_MAX_LIMITED_CALLERS: Final = 1000
_limited: Final[dict[str, int]] = {}
_limited_lock = threading.Lock()


def record_limited(callers: Mapping[str, int]) -> None:
    with _limited_lock:
        for caller, count in callers.items():
            if caller in _limited or len(_limited) < _MAX_LIMITED_CALLERS:
                _limited[caller] = _limited.get(caller, 0) + count


def limited_callers() -> dict[str, int]:
    with _limited_lock:
        found = dict(_limited)
        _limited.clear()
    return found


class ProcessLimiter:
    """Counts while Redis is unavailable, in fixed windows, for at most `most` keys."""

    def __init__(self, period: int, most: int = 20_000) -> None:
        self._period = period
        self._lock = threading.Lock()
        self._counts: LRUCache[tuple[int, str], int] = LRUCache(most)

    def count(self, key: str) -> tuple[int, int]:
        """The count in this window, and seconds until the next one."""
        now = int(time.time())
        window = now // self._period
        with self._lock:
            self._counts[window, key] = count = self._counts.get((window, key), 0) + 1
        return count, (window + 1) * self._period - now


_process_limiters: Final = {period: ProcessLimiter(period) for period in (PERIOD, HOUR)}
