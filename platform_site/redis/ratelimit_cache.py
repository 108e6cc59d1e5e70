"""The cache of django-ratelimit: `incr` returns a promise, whose value is known after the request's round trip, so that
one pipeline reads the record and counts (`platform_site.redis.rate_limits`). Django's Redis cache costs 127 µs per
use."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.core.cache import caches
from django.core.cache.backends.base import DEFAULT_TIMEOUT, BaseCache

from platform_site.redis import round_trip

ALIAS = "ratelimit"
_MAX_TTL = 86_400 + 60


class Promise:
    """In place of a number; `rate_limits` reads `value` afterwards."""

    __slots__ = ()

    def __gt__(self, other: object) -> bool:
        """django-ratelimit compares before the count is known."""
        return False


class Counter(Promise, round_trip.Counted):
    __slots__ = ()


class Lookup(Promise):
    __slots__ = ("_fetched",)

    def __init__(self, fetched: round_trip.Fetched) -> None:
        self._fetched = fetched

    @property
    def value(self) -> int | None:
        found = self._fetched.value
        if found is None:
            return 0
        return int(found) if found.isdigit() else None


@dataclass(frozen=True, slots=True)
class CounterKey:
    """A counter: its key, and its lifetime for counting; None: only read."""

    key: str
    ttl: int | None

    def add_to(self, trip: round_trip.RoundTrip) -> Counter | Lookup:
        if self.ttl is None:
            return Lookup(trip.get(self.key))
        counter = Counter()
        trip.count(self.key, self.ttl, counter)
        return counter


class RateLimitCache(BaseCache):
    trip: round_trip.RoundTrip

    def __init__(self, location: str, params: dict[str, Any]) -> None:
        super().__init__(params)
        self.counter_key: CounterKey | None = None
        self._ttl = _MAX_TTL

    def add(self, key: str, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        """Pretends that the key exists, so that `incr` follows."""
        self._ttl = int(timeout) if isinstance(timeout, int | float) else _MAX_TTL
        return False

    def incr(self, key: str, delta: int = 1, version: int | None = None) -> Any:
        self.counter_key = CounterKey(key, self._ttl)
        return self.counter_key.add_to(self.trip)

    def get(self, key: str, default: Any = None, version: int | None = None) -> Any:
        self.counter_key = CounterKey(key, None)
        return self.counter_key.add_to(self.trip)


@contextmanager
def round_trip_of(trip: round_trip.RoundTrip) -> Iterator[RateLimitCache]:
    cache: Any = caches[ALIAS]
    cache.trip = trip
    try:
        yield cache
    finally:
        del cache.trip
