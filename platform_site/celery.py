"""The Celery application. Messages only have ids; leases in PostgreSQL decide which worker does the work."""

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from celery import Celery, signals
from kombu.transport import redis
from redis.exceptions import RedisError

if TYPE_CHECKING:
    from redis import ConnectionPool, Redis

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "platform_site.settings")

logger = logging.getLogger(__name__)

_BROKER_ERRORS: Final = (RedisError, OSError)
"""Celery reconnects after these."""


class Channel(redis.Channel):
    """Kombu's channel for messages that may be lost. Invalid ones are dropped, where Celery would end the worker.
    Consumed messages are not tracked (`ack_emulation`): that was most of a message's cost, and periodic jobs find lost
    work."""

    do_restore = False
    """A lost connection would requeue its messages over itself: an AttributeError that ends the worker."""

    _clients: "dict[ConnectionPool, Redis]"

    def __init__(self, *positional: Any, **named: Any) -> None:
        self._clients = {}
        super().__init__(*positional, **named)

    def _create_client(self, asynchronous: bool = False) -> "Redis":
        pool = self.async_pool if asynchronous else self.pool
        client = self._clients.get(pool)
        if client is None:
            client = self._clients[pool] = super()._create_client(asynchronous)  # type: ignore[misc]  # not in its stub
        return client

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[..., Any] | None, consumer_tag: str | None, **named: Any
    ) -> str:
        def taken(message: Any) -> None:
            try:
                if callback is not None:
                    callback(message)
            except _BROKER_ERRORS:
                raise
            except Exception as error:
                _report(error)
                if not message.acknowledged:
                    message.reject()

        tag: str = super().basic_consume(queue, no_ack, taken, consumer_tag, **named)
        return tag

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[misc]  # private, so not in its stub
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            _report(error)  # malformed; reading it has removed it from the queue
            return True


def _report(error: Exception) -> None:
    logger.error("an unknown message was dropped: %s", type(error).__name__)


redis.Transport.Channel = Channel

app = Celery("platform")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@signals.import_modules.connect(weak=False)
def _schedule_jobs(sender: Celery, **_: Any) -> None:
    from platform_site.background.periodic import beat_schedule

    sender.conf.beat_schedule = beat_schedule()


@signals.worker_init.connect(weak=False)
def _start_schedulers(**_: Any) -> None:
    """Before connecting to Redis, which may be unavailable."""
    from django.db import connections

    from platform_site.background.periodic import SchedulerThread

    for alias in connections:
        SchedulerThread(alias).start()


@signals.worker_shutdown.connect(weak=False)
def stop_schedulers(**_: Any) -> None:
    from platform_site.background.periodic import stop_schedulers

    stop_schedulers(1.0)
