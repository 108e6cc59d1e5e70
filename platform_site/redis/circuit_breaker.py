"""The circuit breaker of the Redis client. Closed, the normal state: all requests use Redis. A failure opens it: for
SECONDS no request uses Redis; then one per SECONDS does, as a probe. A success closes it."""

import logging
import threading
import time
from typing import Final

from platform_site.observability.metrics import BREAKER_OPEN, BREAKER_TRIPS

SECONDS: Final = 1.0

logger = logging.getLogger(__name__)


class CircuitBreaker:
    def __init__(self) -> None:
        self.is_open = False
        self._probe_at = 0.0
        self._lock = threading.Lock()

    def may_probe(self) -> bool:
        """Whether this caller is the next probe; True if the breaker was closed meanwhile."""
        now = time.monotonic()
        with self._lock:
            if self.is_open and now < self._probe_at:
                return False
            self._probe_at = now + SECONDS
            return True

    def open(self, error: Exception) -> bool:
        """Returns whether the breaker was closed."""
        with self._lock:
            was_open, self.is_open = self.is_open, True
            self._probe_at = time.monotonic() + SECONDS
        if not was_open:
            BREAKER_TRIPS.inc()
            BREAKER_OPEN.set(1)
            logger.warning("Redis is unavailable: records come from PostgreSQL, rate limits are open (%s)", error)
        return not was_open

    def close(self) -> None:
        with self._lock:
            if not self.is_open:
                return
            self.is_open = False
        BREAKER_OPEN.set(0)
        logger.warning("Redis is available again")
