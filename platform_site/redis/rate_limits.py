"""Rate limits: who may send how much, said in headers and enforced with 429.

django-ratelimit names the counter and its window; Redis counts, on the pipeline that fetches the caller's record
(`ratelimit_cache`); here thresholds meet counts and become headers or `RateLimited`. Windows are fixed, a minute long,
and begin at another second for each key.

    per caller      `begin(request, trip, identity)` before the trip, `.settle(plan)` when the record names the plan;
                    `begin_visit` where a publishable key is shown, or an inbound address called: who does is told
                    apart by the client's address
    per address     `count_refused` (bad tokens) and `count_anonymous` (no token)
    at the token endpoint, per (pool, e-mail) and per address: `count_token_request`
    before an e-mail is written down, per recipient and per address: `count_email_request`; per pool, to addresses that
    somebody named: `count_pool_email`, `count_invitation`; before one is sent to who has an account: `wait_to_send`

Redis away: nothing is limited, which `redis_client` says in the log, but for the token endpoint and what sends e-mails:
there a limiter in this process's memory goes on. Answers to limited requests carry `RateLimit-Policy` and
`RateLimit` as in draft-ietf-httpapi-ratelimit-headers-10, a 429 also `Retry-After`. `RATE_LIMIT_FACTOR` multiplies
every threshold. Contract section 8.
"""

import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from django.http import HttpRequest
from django_ratelimit.core import get_usage

from platform_site.concurrency import server_hints
from platform_site.fastpath.settings_cache import kept
from platform_site.http import client_ip
from platform_site.http.errors import RateLimited
from platform_site.http.requests import add_header
from platform_site.identity.email_addresses import normalised
from platform_site.identity.plans import ADDRESS_LIMITS, plan_limits
from platform_site.redis import client as redis_client
from platform_site.redis.ratelimit_cache import Asked, Look, Tally, riding

PERIOD: Final = 60
HOUR: Final = 3600
_LARGEST: Final = 1_000_000
"""Stands for the threshold in the name of a caller's counter: which plan applies is known only after the trip."""


_windows: Final[dict[tuple[str, str, int, bool], tuple[int, Asked]]] = {}
"""For each counter the second in which its window ends, and its name in Redis until then: to work out both again for
each request costs 15 µs."""
_MOST_WINDOWS: Final = 10_000


def _remember_window(counter: tuple[str, str, int, bool], ends: int, asked: Asked | None) -> None:
    if asked is None:
        return
    if len(_windows) >= _MOST_WINDOWS:
        _windows.clear()  # strangers name counters, too: their addresses
    _windows[counter] = (ends, asked)


class Counting:
    """One policy as it applies to one request: counted on a trip, judged after it."""

    __slots__ = ("_identity", "_name", "_period", "_request", "_tally", "_time_left")

    def __init__(
        self,
        request: HttpRequest | None,
        trip: redis_client.Trip,
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
        self._tally: Tally | Look
        now = int(time.time())
        counter = (name, identity, period, look_only)
        window = _windows.get(counter)
        # Not from before a clock was set back: such a window would count all that comes until its time.
        if window is not None and window[0] - period <= now <= window[0]:
            ends, asked = window
            self._tally = asked.on(trip)
        else:
            with riding(trip) as cache:
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

    def settle(self, quota: int, *, fall_back: bool = False) -> tuple[str, str, int | None]:
        """Judge by `quota` a period: the members of both headers, and the seconds to wait if it is exceeded.

        `fall_back`: if Redis is away, count in this process instead of letting everything pass.
        """
        quota = max(1, int(quota * kept.RATE_LIMIT_FACTOR))
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

    def __init__(self, request: HttpRequest, trip: redis_client.Trip, identity: str, is_visit: bool = False) -> None:
        self._request = request
        self._is_visit = is_visit
        self._counting = Counting(request, trip, "caller", identity, look_only=server_hints.is_repeated(request))

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


def begin(request: HttpRequest, trip: redis_client.Trip, identity: str) -> Begun:
    """Count one request of `identity` on `trip`: a session's user, a key's cache name, whatever is known by then."""
    return Begun(request, trip, identity)


def begin_visit(request: HttpRequest, trip: redis_client.Trip, key: str) -> Begun:
    """As `begin`, for whoever shows the publishable key `key`, which everybody has, or calls the inbound address `key`,
    which may leak: each client address has a share of its own, and none uses up the others'."""
    return Begun(request, trip, f"{key}\0{client_ip.network_of(request)}", is_visit=True)


def count_refused(request: HttpRequest, about: str = "") -> None:
    """A token was refused: count it for the client's address. One trip. Raises RateLimited instead of the refusal.

    With `about`, such as an environment that the token names by itself, it counts there alone: a provider sends for
    many from the same address, and goes on for a while with what one of them has revoked.
    """
    _count_address(request, "refused", ADDRESS_LIMITS.refused_requests_per_minute, about)


class Refusals:
    """How many tokens this address has had refused: looked at on the trip of the request, not counted.
    `about` as in `count_refused`."""

    __slots__ = ("_counting", "_request")

    def __init__(self, request: HttpRequest, trip: redis_client.Trip, about: str = "") -> None:
        self._request = request
        self._counting = Counting(request, trip, "refused", _network(request, about), look_only=True)

    def check(self) -> None:
        """After the trip, before PostgreSQL is asked about a token that no cache knows: raises RateLimited if the
        address has had its share, so that guessing costs no statements. Adds no headers otherwise."""
        judged = self._counting.settle(ADDRESS_LIMITS.refused_requests_per_minute)
        if judged[2] is not None:
            _announce(self._request, judged)


def count_anonymous(request: HttpRequest) -> None:
    """A request without a token, where none is needed: counted for the client's address. One trip.

    Raises RateLimited.
    """
    _count_address(request, "address", ADDRESS_LIMITS.anonymous_requests_per_minute)


def _count_address(request: HttpRequest, name: str, quota: int, about: str = "") -> None:
    trip = redis_client.trip()
    counting = Counting(request, trip, name, _network(request, about))
    trip.run()
    _announce(request, counting.settle(quota))


def _count_alone(
    request: HttpRequest, name: str, identity: str, quota: int, *, period: int = PERIOD, message: str | None = None
) -> None:
    """Count by one policy. One trip. Redis away: this process counts. Raises RateLimited."""
    trip = redis_client.trip()
    counting = Counting(request, trip, name, identity, period=period)
    trip.run()
    _announce(request, counting.settle(quota, fall_back=True), message=message)


def _network(request: HttpRequest, about: str) -> str:
    network = client_ip.network_of(request)
    return f"{about}\0{network}" if about else network


def count_token_request(request: HttpRequest, *, pool_id: str | None = None, email: str | None = None) -> None:
    """One try at the token endpoint: counted for the client's address and, if it names one, for (pool, e-mail).

    One trip. Without an e-mail it is a refresh or a code. Redis away: this process counts. Raises RateLimited.
    """
    address = client_ip.network_of(request)
    if email is None:
        _count_alone(request, "refresh", address, ADDRESS_LIMITS.refreshes_per_minute)
        return
    trip = redis_client.trip()
    by_address = Counting(request, trip, "sign-in-address", address)
    by_email = Counting(request, trip, "sign-in", f"{pool_id or ''}\0{normalised(email)}")
    trip.run()
    _announce(
        request,
        by_email.settle(plan_limits("free").token_requests_per_minute, fall_back=True),
        by_address.settle(ADDRESS_LIMITS.token_requests_per_minute, fall_back=True),
    )


def count_email_request(
    request: HttpRequest, *, kind: str, pool_id: str | None, email: str, plan: str = "free"
) -> None:
    """Somebody asks that an e-mail of this kind be sent to `email`: counted for it by the hour, and for the client's
    address by the hour and among the tries to sign in.

    One trip. It counts whether anybody has that address or not. Each kind is counted by itself: else whoever signs up
    in somebody's name would use up the e-mails by which they get a new password. Redis away: this process counts.
    Raises RateLimited.
    """
    trip = redis_client.trip()
    address = client_ip.network_of(request)
    by_address = Counting(request, trip, "sign-in-address", address)
    by_the_hour = Counting(request, trip, "emails-address", address, period=HOUR)
    by_email = Counting(request, trip, "emails", f"{pool_id or ''}\0{kind}\0{normalised(email)}", period=HOUR)
    trip.run()
    _announce(
        request,
        by_email.settle(plan_limits(plan).emails_per_recipient_per_hour, fall_back=True),
        by_the_hour.settle(ADDRESS_LIMITS.email_requests_per_hour, fall_back=True),
        by_address.settle(ADDRESS_LIMITS.token_requests_per_minute, fall_back=True),
    )


def count_pool_email(request: HttpRequest, *, pool_id: str | None, plan: str) -> None:
    """An e-mail goes to an address that somebody named: counted for the pool by the hour, so that no sign-up page
    floods strangers. After everything else has been found right: what is refused uses nothing up.

    One trip. Redis away: this process counts. Raises RateLimited.
    """
    message = "As many e-mails as the plan allows in an hour have been asked for here."
    quota = plan_limits(plan).emails_per_hour
    _count_alone(request, "emails-pool", pool_id or "", quota, period=HOUR, message=message)


def wait_to_send(*, kind: str, pool_id: str | None, recipient: str, plan: str) -> int | None:
    """An e-mail of this kind is about to be sent to who has an account: counted for the pool and for the recipient by
    the hour. Seconds to wait if either is over its limit, else None.

    For the worker, which alone knows that there is such an account: were it counted where it is asked for, made-up
    addresses would use the limit up. One trip. Redis away: this process counts.
    """
    trip = redis_client.trip()
    by_pool = Counting(None, trip, "emails-to-users", pool_id or "", period=HOUR)
    by_email = Counting(None, trip, "emails-sent", f"{pool_id or ''}\0{kind}\0{normalised(recipient)}", period=HOUR)
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
    """An account names somebody by e-mail to make them a member, and is told if nobody has that address: counted for
    the account as tries to sign in are, whichever project it is for. One trip. Redis away: this process counts. Raises
    RateLimited.
    """
    _count_alone(request, "members", account_id, plan_limits("free").token_requests_per_minute)


def count_known_browser(request: HttpRequest, browser: str) -> None:
    """One try to sign in from a browser in which this person has signed in before: counted for that browser alone, so
    that nobody else's tries use its share up. One trip. Redis away: this process counts. Raises RateLimited.
    """
    _count_alone(request, "sign-in-browser", browser, ADDRESS_LIMITS.known_browser_requests_per_minute)


_MOST_LIMITED_CALLERS: Final = 1000
_limited: Final[dict[str, int]] = {}
_limited_lock = threading.Lock()


def remember_limited(callers: Mapping[str, int]) -> None:
    """So many requests of these callers met the limit: for operators' figures. Bounded; more callers are dropped."""
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
    """Counts in this process's memory, for as long as Redis is away: one fixed window for at most `most` keys.

    When it is full the oldest key is forgotten; the limit per address stands behind the one per e-mail.
    """

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
