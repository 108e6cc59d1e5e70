"""The cache of django-ratelimit. It counts nothing: it notes the key and the lifetime of the counter, which is then
counted in the request's round trip (`platform_site.redis.rate_limits`). Django's Redis cache costs 127 µs per use."""

from dataclasses import dataclass
from typing import Any

from django.core.cache.backends.base import DEFAULT_TIMEOUT, BaseCache

from platform_site.redis.round_trip import Counted, Fetched, RoundTrip

ALIAS = "ratelimit"


class Lookup:
    def __init__(self, fetched: Fetched) -> None:
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

    def add_to(self, trip: RoundTrip, amount: int = 1) -> Counted | Lookup:
        if self.ttl is None:
            return Lookup(trip.get(self.key))
        return trip.count(self.key, self.ttl, amount)


class RateLimitCache(BaseCache):
    counter_key: CounterKey
    _ttl: int

    def __init__(self, location: str, params: dict[str, Any]) -> None:
        super().__init__(params)

    def add(self, key: str, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        """Pretends that the key exists, so that `incr` follows."""
        self._ttl = int(timeout)
        return False

    def incr(self, key: str, delta: int = 1, version: int | None = None) -> int:
        self.counter_key = CounterKey(key, self._ttl)
        return delta

    def get(self, key: str, default: Any = None, version: int | None = None) -> Any:
        self.counter_key = CounterKey(key, None)
        return default
