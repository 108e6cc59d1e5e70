"""Rate limits: how many requests a caller may send, stated in headers and enforced with 429. django-ratelimit names the
counter and its window; Redis counts, in the pipeline that fetches the caller's record (`ratelimit_cache`); this module
compares counts with thresholds and sets headers or raises `RateLimited`. Windows are fixed, one minute long, and start
at a different second for each key.

    per caller      `begin(request, trip, identity)` before the round trip, `.settle(plan)` when the record names the
                    plan; `begin_anonymous` for a publishable key or an inbound endpoint, where callers are
                    distinguished by the client's address
    per address     `count_refused` (bad tokens) and `count_anonymous` (no token)
    at the token endpoint, per (pool, e-mail) and per address: `count_token_request`
    before an e-mail is queued, per recipient and per address: `count_email_request`; per pool, for addresses that
    the caller named: `count_pool_email`, `count_invitation`; before one is sent to an account: `wait_to_send`

While Redis is unavailable nothing is limited, and `redis_client` logs that, except for the token endpoint and requests
that send e-mails: there a limiter in this process's memory takes over. Responses to limited requests carry
`RateLimit-Policy` and `RateLimit` as in draft-ietf-httpapi-ratelimit-headers-10, a 429 also `Retry-After`.
`RATE_LIMIT_FACTOR` multiplies every threshold. Contract section 8."""

import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from django.http import HttpRequest
from django_ratelimit.core import get_usage

from platform_site.concurrency import server_hints
from platform_site.fastpath.settings_cache import cached_settings
from platform_site.http import client_ip
from platform_site.http.errors import RateLimited
from platform_site.http.requests import add_header
from platform_site.identity.email_addresses import normalize
from platform_site.identity.plans import IP_ADDRESS_LIMITS, plan_limits
from platform_site.redis import client as redis_client
from platform_site.redis import round_trip
from platform_site.redis.ratelimit_cache import Counter, Lookup, LookupResult, round_trip_of

PERIOD: Final = 60
HOUR: Final = 3600
_LARGEST: Final = 1_000_000
"""Stands for the threshold in the name of a caller's counter: which plan applies is known only after the trip."""


_windows: Final[dict[tuple[str, str, int, bool], tuple[int, LookupResult]]] = {}
"""For each counter the second in which its window ends, and its name in Redis until then: to work out both again for
each request costs 15 µs."""
_MOST_WINDOWS: Final = 10_000


def _remember_window(counter: tuple[str, str, int, bool], ends: int, asked: LookupResult | None) -> None:
    if asked is None:
        return
    if len(_windows) >= _MOST_WINDOWS:
        _windows.clear()  # clients choose counter names too: their addresses
    _windows[counter] = (ends, asked)


class Counting:
    """One policy as it applies to one request: counted on a trip, judged after it."""

    __slots__ = ("_identity", "_name", "_period", "_request", "_tally", "_time_left")

    def __init__(
        self,
        request: HttpRequest | None,
        trip: round_trip.RoundTrip,
        name: str,
        identity: str,
        *,
        look_only: bool = False,
        period: int = PERIOD,
    ) -> None:
        self._request = request
        self._name = name
        self._identity = identity
        self._period = period
        self._tally: Counter | Lookup
        now = int(time.time())
        counter = (name, identity, period, look_only)
        window = _windows.get(counter)
        # Not from before a clock was set back: such a window would count all that comes until its time.
        if window is not None and window[0] - period <= now <= window[0]:
            ends, asked = window
            self._tally = asked.on(trip)
        else:
            with round_trip_of(trip) as cache:
                usage: dict[str, Any] = get_usage(
                    request,
                    group=name,
                    key=lambda group, request: identity,
                    rate=(_LARGEST, period),
                    increment=not look_only,
                )
            self._tally = usage["count"]
            ends = now + usage["time_left"]
            _remember_window(counter, ends, cache.asked)
        # The window named by second w still holds during that second: django-ratelimit's time_left is one too short.
        self._time_left = ends - now + 1

    def add(self, amount: int) -> None:
        """Count `amount` more for the same request. One round trip."""
        counter = _windows.get((self._name, self._identity, self._period, False))
        if counter is not None and counter[1].ttl is not None:
            trip = redis_client.round_trip()
            self._tally = tally = Counter()
            trip.count(counter[1].key, counter[1].ttl, tally, amount)
            trip.run()

    def settle(self, quota: int, *, fall_back: bool = False) -> tuple[str, str, int | None]:
        """Compare with `quota` per period: returns the values of both headers, and the seconds to wait if it is
        exceeded. `fall_back`: while Redis is unavailable, count in this process instead of letting everything pass."""
        quota = max(1, int(quota * cached_settings.RATE_LIMIT_FACTOR))
        count, time_left = self._tally.value, self._time_left
        if count is None:
            if not fall_back:
                return self._member(quota, quota, time_left, None)
            limiter = _hourly_limiter if self._period == HOUR else _process_limiter
            count, time_left = limiter.count(f"{self._name}\0{self._identity}")
        return self._member(quota, max(0, quota - count), time_left, time_left if count > quota else None)

    def _member(self, quota: int, left: int, time_left: int, wait: int | None) -> tuple[str, str, int | None]:
        return f'"{self._name}";q={quota};w={self._period}', f'"{self._name}";r={left};t={time_left}', wait


def _announce(request: HttpRequest, *judged: tuple[str, str, int | None], message: str | None = None) -> None:
    """Put the headers on the answer. Raises RateLimited, with `message`, if any policy is exceeded."""
    policy, state, longest = judged[0]
    for another, left, wait in judged[1:]:
        policy, state, longest = f"{policy}, {another}", f"{state}, {left}", max(longest or 0, wait or 0) or None
    add_header(request, "RateLimit-Policy", policy)
    add_header(request, "RateLimit", state)
    if longest is not None:
        raise RateLimited(longest, message)


class Begun:
    """A caller's request, counted on the trip that fetches its record."""

    __slots__ = ("_counting", "_is_visit", "_request")

    def __init__(self, request: HttpRequest, trip: round_trip.RoundTrip, identity: str, is_visit: bool = False) -> None:
        self._request = request
        self._is_visit = is_visit
        self._counting = Counting(request, trip, "caller", identity, look_only=server_hints.is_repeated(request))
        request.__dict__["rate_limit"] = self

    def count_more(self, amount: int, plan: str, caller_id: str | None = None) -> None:
        """Count a request as `amount` more. Raises RateLimited."""
        if amount > 0 and not server_hints.is_repeated(self._request):
            self._counting.add(amount)
            self.settle(plan, caller_id)

    def settle(self, plan: str, caller_id: str | None = None) -> None:
        """After the trip ran and the plan is known: headers. Raises RateLimited."""
        allowed = plan_limits(plan)
        quota = allowed.visitor_requests_per_minute if self._is_visit else allowed.requests_per_minute
        try:
            _announce(self._request, self._counting.settle(quota))
        except RateLimited:
            if caller_id is not None:
                remember_limited({caller_id: 1})
            raise


def begin(request: HttpRequest, trip: round_trip.RoundTrip, identity: str) -> Begun:
    """Count one request of `identity` on `trip`: a session's user, a key's cache name, whatever is known by then."""
    return Begun(request, trip, identity)


def begin_anonymous(request: HttpRequest, trip: round_trip.RoundTrip, key: str) -> Begun:
    """As `begin`, for callers with the publishable key `key`, which is public, or of the inbound endpoint `key`, which
    may leak: each client address has its own limit, so that none uses up the others'."""
    return Begun(request, trip, f"{key}\0{client_ip.network_of(request)}", is_visit=True)


def count_operations(request: HttpRequest, operations: int, plan: str, caller_id: str | None) -> None:
    """Let an authenticated request count as `operations`. One round trip. Raises RateLimited."""
    begun: Begun | None = request.__dict__.get("rate_limit")
    if begun is not None:
        begun.count_more(operations - 1, plan, caller_id)


def count_refused(request: HttpRequest, about: str = "") -> None:
    """A token was refused: count it for the client's address. One round trip. Raises RateLimited instead of the
    refusal. With `about`, such as an environment that the token names, it counts there alone: a provider sends for many
    customers from the same address, and continues for a while with a token that one of them has revoked."""
    _count_ip_address(request, "refused", IP_ADDRESS_LIMITS.refused_requests_per_minute, about)


class Refusals:
    """How many refused tokens this address has: read in the request's round trip, not counted.
    `about` as in `count_refused`."""

    __slots__ = ("_counting", "_request")

    def __init__(self, request: HttpRequest, trip: round_trip.RoundTrip, about: str = "") -> None:
        self._request = request
        self._counting = Counting(request, trip, "refused", _network(request, about), look_only=True)

    def check(self) -> None:
        """After the round trip, before PostgreSQL is asked about a token that no cache knows: raises RateLimited if the
        address has used up its limit, so that guessing costs no statements. Adds no headers otherwise."""
        judged = self._counting.settle(IP_ADDRESS_LIMITS.refused_requests_per_minute)
        if judged[2] is not None:
            _announce(self._request, judged)


def count_anonymous(request: HttpRequest) -> None:
    """A request without a token, where none is needed: counted for the client's address. One round trip. Raises
    RateLimited."""
    _count_ip_address(request, "address", IP_ADDRESS_LIMITS.anonymous_requests_per_minute)


def _count_ip_address(request: HttpRequest, name: str, quota: int, about: str = "") -> None:
    trip = redis_client.round_trip()
    counting = Counting(request, trip, name, _network(request, about))
    trip.run()
    _announce(request, counting.settle(quota))


def _count_alone(
    request: HttpRequest, name: str, identity: str, quota: int, *, period: int = PERIOD, message: str | None = None
) -> None:
    """Count by one policy. One round trip. While Redis is unavailable, this process counts. Raises RateLimited."""
    trip = redis_client.round_trip()
    counting = Counting(request, trip, name, identity, period=period)
    trip.run()
    _announce(request, counting.settle(quota, fall_back=True), message=message)


def _network(request: HttpRequest, about: str) -> str:
    network = client_ip.network_of(request)
    return f"{about}\0{network}" if about else network


def count_token_request(request: HttpRequest, *, pool_id: str | None = None, email: str | None = None) -> None:
    """One attempt at the token endpoint: counted for the client's address and, if it names one, for (pool, e-mail). One
    round trip. Without an e-mail it is a refresh or a code. While Redis is unavailable, this process counts. Raises
    RateLimited."""
    address = client_ip.network_of(request)
    if email is None:
        _count_alone(request, "refresh", address, IP_ADDRESS_LIMITS.refreshes_per_minute)
        return
    trip = redis_client.round_trip()
    by_address = Counting(request, trip, "sign-in-address", address)
    by_email = Counting(request, trip, "sign-in", f"{pool_id or ''}\0{normalize(email)}")
    trip.run()
    _announce(
        request,
        by_email.settle(plan_limits("free").token_requests_per_minute, fall_back=True),
        by_address.settle(IP_ADDRESS_LIMITS.token_requests_per_minute, fall_back=True),
    )


def count_email_request(
    request: HttpRequest, *, kind: str, pool_id: str | None, email: str, plan: str = "free"
) -> None:
    """A request to send an e-mail of this kind to `email`: counted for that recipient by the hour, and for the client's
    address by the hour and among the sign-in attempts. One round trip. It counts whether or not an account has that
    address. Each kind is counted separately: otherwise a stranger who signs up with a person's address would use up
    that person's password resets. While Redis is unavailable, this process counts. Raises RateLimited."""
    trip = redis_client.round_trip()
    address = client_ip.network_of(request)
    by_address = Counting(request, trip, "sign-in-address", address)
    by_the_hour = Counting(request, trip, "emails-address", address, period=HOUR)
    by_email = Counting(request, trip, "emails", f"{pool_id or ''}\0{kind}\0{normalize(email)}", period=HOUR)
    trip.run()
    _announce(
        request,
        by_email.settle(plan_limits(plan).emails_per_recipient_per_hour, fall_back=True),
        by_the_hour.settle(IP_ADDRESS_LIMITS.email_requests_per_hour, fall_back=True),
        by_address.settle(IP_ADDRESS_LIMITS.token_requests_per_minute, fall_back=True),
    )


def count_pool_email(request: HttpRequest, *, pool_id: str | None, plan: str) -> None:
    """An e-mail goes to an address that the caller named: counted for the pool by the hour, so that no sign-up page can
    flood strangers. Called after all other checks: a refused request does not count. One round trip. While Redis is
    unavailable, this process counts. Raises RateLimited."""
    message = "As many e-mails as the plan allows in an hour have been asked for here."
    quota = plan_limits(plan).emails_per_hour
    _count_alone(request, "emails-pool", pool_id or "", quota, period=HOUR, message=message)


def wait_to_send(*, kind: str, pool_id: str | None, recipient: str, plan: str) -> int | None:
    """An e-mail of this kind is about to be sent to an account: counted for the pool and for the recipient by the hour.
    Returns the seconds to wait if either is over its limit, else None. Called by the worker, which alone knows that the
    account exists: counted at the request, made-up addresses would use up the limit. One round trip. While Redis is
    unavailable, this process counts."""
    trip = redis_client.round_trip()
    by_pool = Counting(None, trip, "emails-to-users", pool_id or "", period=HOUR)
    by_email = Counting(None, trip, "emails-sent", f"{pool_id or ''}\0{kind}\0{normalize(recipient)}", period=HOUR)
    trip.run()
    limit = plan_limits(plan)
    waits = [
        wait
        for _, _, wait in (
            by_pool.settle(limit.emails_to_users_per_hour, fall_back=True),
            by_email.settle(limit.emails_per_recipient_per_hour, fall_back=True),
        )
        if wait is not None
    ]
    return max(waits, default=None)


def count_invitation(request: HttpRequest, *, pool_id: str, plan: str) -> None:
    """An invitation to be sent: counted for the pool by the hour. One trip. Raises RateLimited."""
    _count_alone(request, "invitations", pool_id, plan_limits(plan).invitations_per_hour, period=HOUR)


def count_member_request(request: HttpRequest, account_id: str) -> None:
    """An account names a person by e-mail to make them a member, and is told if no account has that address: counted
    for the caller as sign-in attempts are, across projects. One round trip. While Redis is unavailable, this process
    counts. Raises RateLimited."""
    _count_alone(request, "members", account_id, plan_limits("free").token_requests_per_minute)


def count_known_browser(request: HttpRequest, browser: str) -> None:
    """A sign-in attempt from a browser in which this person has signed in before: counted for that browser alone, so
    that attempts from elsewhere do not use up its limit. One round trip. While Redis is unavailable, this process
    counts. Raises RateLimited."""
    _count_alone(request, "sign-in-browser", browser, IP_ADDRESS_LIMITS.known_browser_requests_per_minute)


_MOST_LIMITED_CALLERS: Final = 1000
_limited: Final[dict[str, int]] = {}
_limited_lock = threading.Lock()


def remember_limited(callers: Mapping[str, int]) -> None:
    """Record the number of limited requests per caller, for the operators' statistics. Bounded; extra callers are
    dropped."""
    with _limited_lock:
        for caller, count in callers.items():
            if caller in _limited or len(_limited) < _MOST_LIMITED_CALLERS:
                _limited[caller] = _limited.get(caller, 0) + count


def limited_callers() -> dict[str, int]:
    """What was remembered since the last call: requests refused, by caller."""
    with _limited_lock:
        found = dict(_limited)
        _limited.clear()
    return found


class ProcessLimiter:
    """Counts in this process's memory while Redis is unavailable: one fixed window for at most `most` keys. When it is
    full the oldest key is dropped; the limit per address still applies behind the one per e-mail."""

    def __init__(self, period: int = PERIOD, most: int = 20_000) -> None:
        self._period = period
        self._most = most
        self._lock = threading.Lock()
        self._window = 0
        self._counts: dict[str, int] = {}

    def count(self, key: str) -> tuple[int, int]:
        """Count one for `key`: the count in this window, this one included, and whole seconds until the next window."""
        now = time.time()
        window = int(now) // self._period
        with self._lock:
            if window != self._window:
                self._window = window
                self._counts.clear()
            count = self._counts.pop(key, 0) + 1  # put back at the end: the dict keeps the least recently counted first
            if len(self._counts) >= self._most:
                del self._counts[next(iter(self._counts))]
            self._counts[key] = count
        return count, (window + 1) * self._period - int(now)


_process_limiter = ProcessLimiter()
_hourly_limiter = ProcessLimiter(HOUR)
