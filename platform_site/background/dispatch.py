"""Sends Celery tasks by name after the commit, as notifications that may be lost: periodic jobs find all due work in
PostgreSQL. An unresponsive Redis costs the first sender 0.2 s; then this process does not try for a second."""

import logging
import os
import time
from functools import cache, partial
from typing import Final

from celery import current_app
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, transaction
from kombu import Connection
from kombu.pools import ProducerPool

logger = logging.getLogger(__name__)

BREAKER_SECONDS: Final = 1.0
_MAX_AT_ONCE: Final = 16

_silent_until = 0.0


def send(task: str, *ids: str, using: str = DEFAULT_DB_ALIAS) -> None:
    """After the commit of `using` (now, outside a transaction), by name, to avoid imports. Never raises."""
    transaction.on_commit(partial(send_now, task, *ids), using=using)


def send_now(task: str, *ids: str) -> bool:
    global _silent_until
    if time.monotonic() < _silent_until:
        return False
    try:
        with _producers().acquire(block=True, timeout=settings.REDIS_TIMEOUT) as producer:
            current_app.send_task(task, ids, producer=producer, retry=False)
    except Exception as error:  # Kombu, redis-py and sockets raise many types
        _silent_until = time.monotonic() + BREAKER_SECONDS
        logger.warning(
            "a task was not sent; a periodic job will do its work", extra={"task": task, "why": type(error).__name__}
        )
        return False
    return True


@cache
def _producers() -> ProducerPool:
    """Not the workers' connections, which may wait for seconds."""
    options = {
        **settings.CELERY_BROKER_TRANSPORT_OPTIONS,
        "socket_timeout": settings.REDIS_TIMEOUT,
        "socket_connect_timeout": settings.REDIS_TIMEOUT,
        "retry_on_timeout": False,
        # Otherwise Kombu retries a lost connection forever, during the request.
        "max_retries": 0,
        "interval_start": 0,
        "interval_step": 0,
    }
    connection = Connection(settings.CELERY_BROKER_URL, transport_options=options)
    return ProducerPool(connection.Pool(limit=_MAX_AT_ONCE), limit=_MAX_AT_ONCE)


def _after_fork() -> None:
    """Kombu closes inherited connections in a child."""
    global _silent_until
    _silent_until = 0.0
    _producers.cache_clear()


os.register_at_fork(after_in_child=_after_fork)
