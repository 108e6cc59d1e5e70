"""Notifies the feeds of all web processes of committed events, through Redis. Without Redis they only poll."""

import logging
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import redis
from django.conf import settings

from platform_site.background.debounce import Debouncer

logger = logging.getLogger("platform.changes")

POLL_SECONDS: Final = 0.5
_RETRY_SECONDS: Final = 2.0
_LISTEN_SECONDS: Final = 1.0


def _channel(using: str) -> str:
    return f"changes:{using}"


_silent_until: Final[dict[str, float]] = {}
"""By region, no notifications until then: Redis is unavailable, or no process is subscribed."""


@cache
def connect() -> "redis.Redis":
    timeout = settings.REDIS_TIMEOUT
    return redis.Redis.from_url(settings.REDIS_URL, socket_timeout=timeout, socket_connect_timeout=timeout)


def _publish(using: str) -> None:
    if time.monotonic() < _silent_until.get(using, 0.0):
        return
    try:
        if connect().publish(_channel(using), b"") == 0:
            _silent_until[using] = time.monotonic() + POLL_SECONDS
    except (redis.RedisError, OSError) as error:
        _silent_until.update(dict.fromkeys(settings.REGION_DATABASES, time.monotonic() + _RETRY_SECONDS))
        logger.warning("feeds were not notified of changes: %s", type(error).__name__)


_wake_ups: Final = Debouncer("change-wakeups", _publish, pause=0.002)


def after_commit(*, using: str, **_: Any) -> None:
    """Receiver of `row_written`."""
    _wake_ups.after_commit(using)


class Listener(threading.Thread):
    def __init__(self, using: str, wake: Callable[[], None], is_needed: Callable[[], bool]) -> None:
        super().__init__(name=f"changes-listener-{using}", daemon=True)
        self._using, self._wake, self._is_needed = using, wake, is_needed

    def run(self) -> None:
        while self._is_needed():
            try:
                with connect().pubsub(ignore_subscribe_messages=True) as subscription:  # type: ignore[no-untyped-call]
                    subscription.subscribe(_channel(self._using))
                    while self._is_needed():
                        if subscription.get_message(timeout=_LISTEN_SECONDS) is not None:
                            self._wake()
            except (redis.RedisError, OSError) as error:
                logger.warning("notifications of changes are not received: %s", type(error).__name__)
                time.sleep(_RETRY_SECONDS)
