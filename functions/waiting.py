"""How many requests of this process may wait for functions at the same time.

A request that waits holds one of the few threads that serve everybody (`platform_site.server.lane`). A warm call holds
it for a moment; slow ones of a busy tenant would hold them all. So they may take most of the threads, never the last,
one environment not all of those, and its visitors half of what it may. Whoever finds no seat is told so at once, or
goes away with the run's id.
"""

import threading
from collections import Counter
from typing import Final

from django.conf import settings


class Full(Exception):
    """Too many requests wait for functions in this process."""


class WaitingRoom:
    """`seats` in all, `seats_each` for one environment; None: 7/8 and 3/4 of the lane's threads. Thread-safe."""

    def __init__(self, seats: int | None = None, seats_each: int | None = None) -> None:
        self._seats, self._seats_each = seats, seats_each
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()
        self._visits: Counter[str] = Counter()
        self._all = 0

    def seat(self, environment_id: str, *, is_visit: bool = False) -> "_Seat":
        """To wait in, as a context; `is_visit` for whoever shows a publishable key. Entering raises Full."""
        return _Seat(self, environment_id, is_visit)

    def take(self, environment_id: str, is_visit: bool) -> None:
        """Raises Full."""
        threads = settings.LANE_THREADS
        seats = max(1, threads * 7 // 8) if self._seats is None else self._seats
        seats_each = max(1, threads * 3 // 4) if self._seats_each is None else self._seats_each
        with self._lock:
            if self._all >= seats or self._taken[environment_id] >= seats_each:
                raise Full
            if is_visit and self._visits[environment_id] >= max(1, seats_each // 2):
                raise Full
            self._all += 1
            for taken in self._counters(is_visit):
                taken[environment_id] += 1

    def give_back(self, environment_id: str, is_visit: bool) -> None:
        with self._lock:
            self._all -= 1
            for taken in self._counters(is_visit):
                taken[environment_id] -= 1
                if not taken[environment_id]:
                    del taken[environment_id]

    def _counters(self, is_visit: bool) -> tuple[Counter[str], ...]:
        return (self._taken, self._visits) if is_visit else (self._taken,)


class _Seat:
    """One request in the room."""

    __slots__ = ("_environment_id", "_is_visit", "_room")

    def __init__(self, room: WaitingRoom, environment_id: str, is_visit: bool) -> None:
        self._room, self._environment_id, self._is_visit = room, environment_id, is_visit

    def __enter__(self) -> None:
        self._room.take(self._environment_id, self._is_visit)

    def __exit__(self, *_: object) -> None:
        self._room.give_back(self._environment_id, self._is_visit)


room: Final = WaitingRoom()
