"""Client networks of anonymous callers: a publishable key is public, so only the network distinguishes its callers. The
recent usage of a network is its execution time in this process, which decays by one second per minute. It is high above
FREE_SECONDS (`functions.quotas.slots`)."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cachetools import LRUCache

from platform_site.security import keyring

FREE_SECONDS: Final = 5.0
_DECAY_PER_SECOND: Final = 1 / 60
_MAX_SECONDS: Final = 60.0
"""Decays within an hour."""
_MAX_NETWORKS: Final = 20_000


@dataclass(frozen=True, slots=True)
class AnonymousCall:
    """A call with a publishable key."""

    network: int
    """A keyed hash per environment (64 bits, signed), which reveals no IP address."""
    is_heavy: bool = False


def anonymous_call_of(environment_id: str, site: str) -> AnonymousCall:
    digest = keyring.mac(f"{environment_id}\0{site}".encode(), purpose="functions.network")
    network = int.from_bytes(digest[:8], signed=True)
    return AnonymousCall(network, recent_usage.is_heavy(network))


class RecentUsage:
    """Seconds per network. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._usage: LRUCache[int, tuple[float, float]] = LRUCache(_MAX_NETWORKS)
        """Seconds of usage, and the time of that value."""

    def is_heavy(self, network: int) -> bool:
        with self._lock:
            return self._current(network) > FREE_SECONDS

    def record(self, network: int, seconds: float) -> None:
        with self._lock:
            self._usage[network] = min(_MAX_SECONDS, self._current(network) + seconds), self._clock()

    def _current(self, network: int) -> float:
        seconds, at = self._usage.get(network, (0.0, 0.0))
        return max(0.0, seconds - (self._clock() - at) * _DECAY_PER_SECOND)


recent_usage: Final = RecentUsage()
