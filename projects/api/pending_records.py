"""Records that a request has read from PostgreSQL, and that go to Redis with the next round trip of any request."""

import time
from collections import deque
from typing import Final

from platform_site.redis import client as redis_client
from platform_site.redis.round_trip import RoundTrip

_FILL_WITHIN: Final = 5.0
"""Seconds after which a waiting record is dropped: marks over it must not have expired (MARKER_TTL)."""
_MAX_WAITING: Final = 1000

_waiting: Final[deque[tuple[float, str, bytes]]] = deque(maxlen=_MAX_WAITING)


def add(read_at: float, name: str, record: bytes) -> None:
    _waiting.append((read_at, name, record))


def put_on(trip: RoundTrip) -> None:
    while _waiting:
        try:
            read_at, name, record = _waiting.popleft()
        except IndexError:  # another thread took the last one
            return
        # After a restart, Redis has forgotten what was revoked since a record was read.
        if time.monotonic() - read_at < _FILL_WITHIN and read_at > redis_client.current().lost_at:
            trip.fill(name, record)
