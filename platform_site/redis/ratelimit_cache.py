"""The cache beneath django-ratelimit: it counts on the round trip that the request makes anyway. django-ratelimit
decides which counter a request belongs to (group, rate, key, window) and asks a Django cache to add one to it. Here the
answer is a promise: `incr` notes the counter on the trip at hand and returns a `Tally`, which knows its value when the
trip has run. So one pipeline fetches the caller's record and raises all counters, and each is raised once, atomically,
by Redis (`platform_site.redis.rate_limits`). Django's own Redis cache costs 127 µs at each use."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.core.cache import caches
from django.core.cache.backends.base import DEFAULT_TIMEOUT, BaseCache

from platform_site.redis import round_trip

ALIAS = "ratelimit"
_LONGEST = 86_400 + 60


class Promise:
    """What django-ratelimit gets in the place of a number: `limits` decides after the trip, by its `value`."""

    __slots__ = ()

    def __gt__(self, other: object) -> bool:
        """django-ratelimit compares at once, before the count is known."""
        return False


class Counter(Promise, round_trip.Counted):
    """A count that Redis has yet to make."""

    __slots__ = ()


class Lookup(Promise):
    """A count that is looked at, not raised."""

    __slots__ = ("_fetched",)

    def __init__(self, fetched: round_trip.Fetched) -> None:
        self._fetched = fetched

    @property
    def value(self) -> int | None:
        """0 before the first count, and while Redis is unavailable; None if the stored value is not a count."""
        found = self._fetched.value
        if found is None:
            return 0
        return int(found) if found.isdigit() else None


@dataclass(frozen=True, slots=True)
class LookupResult:
    """A counter, and what was asked of it: to count with this life in seconds, or (None) to look."""

    key: str
    ttl: int | None

    def on(self, trip: round_trip.RoundTrip) -> Counter | Lookup:
        """Ask it (again) on this trip."""
        if self.ttl is None:
            return Lookup(trip.get(self.key))
        tally = Counter()
        trip.count(self.key, self.ttl, tally)
        return tally


class RateLimitCache(BaseCache):
    """The three methods that django-ratelimit uses, within `riding`. One instance per thread, as Django's `caches` has
    it."""

    trip: round_trip.RoundTrip
    """The one at hand; there is none outside of `riding`."""

    def __init__(self, location: str, params: dict[str, Any]) -> None:
        super().__init__(params)
        self.asked: LookupResult | None = None
        """What was last asked on a trip."""
        self._ttl = _LONGEST

    def add(self, key: str, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        """Always "it is there already", so that `incr` follows: INCR makes the counter where there is none."""
        self._ttl = int(timeout) if isinstance(timeout, int | float) else _LONGEST
        return False

    def incr(self, key: str, delta: int = 1, version: int | None = None) -> Any:
        """A Tally on the trip at hand."""
        self.asked = LookupResult(key, self._ttl)
        return self.asked.on(self.trip)

    def get(self, key: str, default: Any = None, version: int | None = None) -> Any:
        """A Look on the trip at hand."""
        self.asked = LookupResult(key, None)
        return self.asked.on(self.trip)


@contextmanager
def round_trip_of(trip: round_trip.RoundTrip) -> Iterator[RateLimitCache]:
    """Let what this thread counts in here go on `trip`."""
    cache: Any = caches[ALIAS]
    cache.trip = trip
    try:
        yield cache
    finally:
        del cache.trip
