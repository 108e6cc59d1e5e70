"""A circuit breaker per receiver, in one worker. A receiver is a host and port for one environment, so that no tenant
can close a shared host to others. Concurrency doubles with a fast response, is halved by a slow one, and falls to one
after a timeout or connection error. After FAILURE_THRESHOLD of these in a row nothing is claimed during a cooldown;
then one attempt probes the receiver. Receivers without earned concurrency share one limit, so that hanging ones delay
no others."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

INITIAL_CONCURRENCY: Final = 2
MAX_CONCURRENCY: Final = 20
PREFETCH_FACTOR: Final = 4
"""A receiver with MAX_CONCURRENCY may have this multiple of it claimed, so that senders need not wait for recording."""
MAX_IN_FLIGHT_UNPROVEN: Final = 64
"""Over all receivers without earned concurrency; a quarter of the threads is left to others."""
PREFETCH_SECONDS: Final = 0.2
"""Slower receivers get no prefetched deliveries, which would start too late (`queue.START_WITHIN`)."""
FAST_SECONDS: Final = 1.0
FAILURE_THRESHOLD: Final = 3
INITIAL_COOLDOWN: Final = 5.0
MAX_COOLDOWN: Final = 60.0
MAX_RECEIVERS: Final = 10_000


def host_of(url: str) -> str:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"{(parts.hostname or '').lower()}:{port}"


@dataclass(slots=True)
class Receiver:
    concurrency: int = INITIAL_CONCURRENCY
    in_flight: int = 0
    failures: int = 0
    open_until: float = 0.0
    latest_seconds: float = 0.0

    def free_slots(self, now: float) -> int:
        may_prefetch = self.concurrency == MAX_CONCURRENCY and self.latest_seconds <= PREFETCH_SECONDS
        claims = self.concurrency * PREFETCH_FACTOR if may_prefetch else self.concurrency
        return 0 if now < self.open_until else max(0, claims - self.in_flight)


class Receivers:
    def __init__(self) -> None:
        self._known: OrderedDict[str, Receiver] = OrderedDict()
        self.in_flight = 0
        """Over all receivers."""

    def _receiver(self, name: str) -> Receiver:
        receiver = self._known.get(name)
        if receiver is None:
            if len(self._known) >= MAX_RECEIVERS:
                idle = (known for known, other in self._known.items() if other.in_flight == 0)
                self._known.pop(next(idle, ""), None)
            receiver = self._known[name] = Receiver()
        else:
            self._known.move_to_end(name)
        return receiver

    def free_slots(self, now: float) -> tuple[dict[str, int], int]:
        """How many deliveries may be claimed for each receiver that differs from the default, and the default."""
        unproven = sum(r.in_flight for r in self._known.values() if r.concurrency <= INITIAL_CONCURRENCY)
        default = INITIAL_CONCURRENCY if unproven < MAX_IN_FLIGHT_UNPROVEN else 0
        slots = {
            name: r.free_slots(now) if default or r.concurrency > INITIAL_CONCURRENCY else 0
            for name, r in self._known.items()
        }
        return {name: free for name, free in slots.items() if free != default}, default

    def started(self, name: str) -> None:
        self._receiver(name).in_flight += 1
        self.in_flight += 1

    def released(self, name: str) -> None:
        self._receiver(name).in_flight -= 1
        self.in_flight -= 1

    def reset_in_flight(self) -> None:
        self.in_flight = 0
        for receiver in self._known.values():
            receiver.in_flight = 0

    def concurrency_of(self, name: str) -> int:
        """May be called from any thread."""
        receiver = self._known.get(name)
        return INITIAL_CONCURRENCY if receiver is None else receiver.concurrency

    def ended(self, name: str, *, responded: bool, seconds: float, now: float) -> bool:
        """Record an attempt: `responded` with any status, or failed by a timeout or connection error. Returns whether
        this lowered the receiver's concurrency."""
        self.released(name)
        receiver = self._receiver(name)
        before = receiver.concurrency
        if responded:
            receiver.failures = 0
            receiver.open_until = 0.0
            receiver.latest_seconds = seconds
            if seconds <= FAST_SECONDS:
                receiver.concurrency = min(MAX_CONCURRENCY, receiver.concurrency * 2)
            else:
                receiver.concurrency = max(1, receiver.concurrency // 2)
        else:
            receiver.failures += 1
            receiver.concurrency = 1
            if receiver.failures >= FAILURE_THRESHOLD:
                # Bounded first: 2**1000 does not fit into a float.
                doublings = min(receiver.failures - FAILURE_THRESHOLD, 20)
                receiver.open_until = now + min(MAX_COOLDOWN, INITIAL_COOLDOWN * 2**doublings)
        return receiver.concurrency < before
