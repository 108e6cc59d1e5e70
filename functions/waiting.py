"""How many requests of this process may wait for functions at the same time.

A request that waits holds one of the few threads that serve everybody (`platform_site.server.lane`). A warm call holds
it for a moment; slow ones of a busy tenant would hold them all. So they may take most of the threads, never the last,
and one environment not all of those. Whoever finds no seat is told so at once, or goes away with the run's id.
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
        self._all = 0

    def seat(self, environment_id: str) -> "_Seat":
        """To wait in, as a context. Entering raises Full."""
        return _Seat(self, environment_id)

    def take(self, environment_id: str) -> None:
        """Raises Full."""
        threads = settings.LANE_THREADS
        seats = max(1, threads * 7 // 8) if self._seats is None else self._seats
        seats_each = max(1, threads * 3 // 4) if self._seats_each is None else self._seats_each
        with self._lock:
            if self._all >= seats or self._taken[environment_id] >= seats_each:
                raise Full
            self._all += 1
            self._taken[environment_id] += 1

    def give_back(self, environment_id: str) -> None:
        with self._lock:
            self._all -= 1
            self._taken[environment_id] -= 1
            if not self._taken[environment_id]:
                del self._taken[environment_id]


class _Seat:
    """One request in the room."""

    __slots__ = ("_environment_id", "_room")

    def __init__(self, room: WaitingRoom, environment_id: str) -> None:
        self._room, self._environment_id = room, environment_id

    def __enter__(self) -> None:
        self._room.take(self._environment_id)

    def __exit__(self, *_: object) -> None:
        self._room.give_back(self._environment_id)


room: Final = WaitingRoom()
