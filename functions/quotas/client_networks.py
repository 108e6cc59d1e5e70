"""Client networks among visitors: how they share seats, threads and places in the queue, so that none has them all.

Whoever shows a publishable key could be anybody, and the one thing that tells them apart is where they come from
(`platform_site.http.client_ip.site_of`). Two rules, after those of `platform_site.concurrency.fair_semaphore`:

1. **Shares.** A network that has a place already gets another only while half of them are free. So one takes half at
   most, and of the other half each takes one.
2. **Standing.** A network that sat for longer than ALLOWED lately leaves the last quarter of the seats and threads to
   those that did not: what it sat is forgotten at a second a minute, and after an hour in any case.

To keep everybody else out takes as many networks as half of the places and one more; and where seats are held for long,
sixty for each seat of the last quarter, in each process: what a network sat is known per process. Seats and the queue
are counted in PostgreSQL, in the statements that look at them anyway (`functions.runs.start`).
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from platform_site.security import keyring

ALLOWED: Final = 5.0
"""Seconds that a network may sit at a time without being heavy."""
_FORGOTTEN: Final = 1 / 60
"""Of what it sat, in each second."""
_MOST_SAT: Final = 60.0
"""What is remembered at most: an hour's worth of forgetting."""
_NETWORKS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Visit:
    """A call with a publishable key."""

    network: int
    """Of the environment's own numbering (64 bits, signed), from which nobody reads an address."""
    is_heavy: bool = False
    """Whether it sat for long lately."""


def visit(environment_id: str, site: str) -> Visit:
    """One that comes from there."""
    digest = keyring.mac(f"{environment_id}\0{site}".encode(), purpose="functions.network")
    network = int.from_bytes(digest[:8], signed=True)
    return Visit(network, recent.is_heavy(network))


def open_to_all(most: int) -> int:
    """How many of `most` seats or threads of visitors heavy networks may take, too."""
    return most if most < 2 else most - -(-most // 4)


def has_share(most: int, taken: int, own: int) -> bool:
    """Whether a network with `own` of the `taken` among `most` places may have one more."""
    return taken < most and (not own or 2 * taken < most)


class Recent:
    """For how many seconds each network sat lately. Thread-safe; of the last so many networks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._sat: OrderedDict[int, tuple[float, float]] = OrderedDict()
        """Seconds, and when they were that many. Whoever sat last comes last."""

    def is_heavy(self, network: int) -> bool:
        with self._lock:
            return self._left(network) > ALLOWED

    def book(self, network: int, seconds: float) -> None:
        """It sat for so long, until now."""
        with self._lock:
            self._sat[network] = min(_MOST_SAT, self._left(network) + seconds), self._clock()
            self._sat.move_to_end(network)
            if len(self._sat) > _NETWORKS:
                self._sat.popitem(last=False)

    def _left(self, network: int) -> float:
        sat, at = self._sat.get(network, (0.0, 0.0))
        return max(0.0, sat - (self._clock() - at) * _FORGOTTEN)


recent: Final = Recent()
