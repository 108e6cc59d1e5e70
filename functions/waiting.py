"""How many requests of this process may wait for functions at the same time.

A request that waits holds one of the few threads that serve everybody (`platform_site.server.lane`). A warm call holds
it for a moment; slow ones of a busy tenant would hold them all. So they may take most of the threads, never the last,
one environment not all of those, and its visitors half of what it may, shared among their networks
(`functions.networks`). Whoever finds no seat is told so at once, or goes away with the run's id.
"""

import threading
import time
from collections import Counter
from typing import Final, TypeVar

from django.conf import settings

from functions.networks import Visit, has_share, open_to_all, recent

_Key = TypeVar("_Key", str, int)


class Full(Exception):
    """Too many requests wait for functions in this process."""


class WaitingRoom:
    """`seats` in all, `seats_each` for one environment; None: 7/8 and 3/4 of the lane's threads. Thread-safe."""

    def __init__(self, seats: int | None = None, seats_each: int | None = None) -> None:
        self._seats, self._seats_each = seats, seats_each
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()
        self._visits: Counter[str] = Counter()
        self._networks: Counter[int] = Counter()
        self._all = 0

    def seat(self, environment_id: str, *, visit: Visit | None = None) -> "_Seat":
        """To wait in, as a context; `visit` of whoever shows a publishable key. Entering raises Full."""
        return _Seat(self, environment_id, visit)

    def take(self, environment_id: str, visit: Visit | None) -> None:
        """Raises Full."""
        threads = settings.LANE_THREADS
        seats = max(1, threads * 7 // 8) if self._seats is None else self._seats
        seats_each = max(1, threads * 3 // 4) if self._seats_each is None else self._seats_each
        with self._lock:
            if self._all >= seats or self._taken[environment_id] >= seats_each:
                raise Full
            if visit is not None:
                self._take_share(environment_id, visit, max(1, seats_each // 2))
            self._all += 1
            self._taken[environment_id] += 1

    def _take_share(self, environment_id: str, visit: Visit, most: int) -> None:
        taken = self._visits[environment_id]
        if not has_share(open_to_all(most) if visit.is_heavy else most, taken, self._networks[visit.network]):
            raise Full
        self._visits[environment_id] += 1
        self._networks[visit.network] += 1

    def give_back(self, environment_id: str, visit: Visit | None) -> None:
        with self._lock:
            self._all -= 1
            _one_less(self._taken, environment_id)
            if visit is not None:
                _one_less(self._visits, environment_id)
                _one_less(self._networks, visit.network)


def _one_less(taken: Counter[_Key], key: _Key) -> None:
    taken[key] -= 1
    if not taken[key]:
        del taken[key]


class _Seat:
    """One request in the room."""

    __slots__ = ("_environment_id", "_room", "_since", "_visit")

    def __init__(self, room: WaitingRoom, environment_id: str, visit: Visit | None) -> None:
        self._room, self._environment_id, self._visit = room, environment_id, visit

    def __enter__(self) -> None:
        self._room.take(self._environment_id, self._visit)
        self._since = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._room.give_back(self._environment_id, self._visit)
        if self._visit is not None:
            recent.book(self._visit.network, time.monotonic() - self._since)


room: Final = WaitingRoom()
