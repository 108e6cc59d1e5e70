"""Records for Redis that wait for this process's next round trip, so that a miss costs none of its own."""

import time
from collections import deque
from typing import Final

from platform_site.redis.round_trip import RoundTrip

_FILL_WITHIN: Final = 5.0
"""Seconds. A record that waited longer for its trip is dropped: marks over it must not have expired (MARKER_TTL)."""
_MOST_WAITING: Final = 1000

_waiting: Final[deque[tuple[float, str, bytes]]] = deque(maxlen=_MOST_WAITING)


def add(read_at: float, name: str, record: bytes) -> None:
    """`record` holds what was true at `read_at`, by the monotonic clock."""
    _waiting.append((read_at, name, record))


def put_on(trip: RoundTrip) -> None:
    """Fill what waits, with this trip."""
    while _waiting:
        try:
            read_at, name, record = _waiting.popleft()
        except IndexError:  # another thread took the last one
            return
        if time.monotonic() - read_at < _FILL_WITHIN:
            trip.fill(name, record)
