"""The Celery application. A message carries one id and nothing else; leases in PostgreSQL decide who works.

Who sends: `platform_site.background.dispatch`, after a commit, and beat for the sweeps. Who works: `manage.py work`.
"""

import logging
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from celery import Celery, signals
from kombu.transport import redis
from redis.exceptions import RedisError

if TYPE_CHECKING:
    from redis import ConnectionPool, Redis

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "platform_site.settings")

logger = logging.getLogger(__name__)

_OF_THE_BROKER: Final = (RedisError, OSError)
"""What says nothing against a message: Celery connects again."""


class Channel(redis.Channel):
    """Kombu's, for messages that nobody would miss.

    Whatever is in the queue, the worker goes on: what another release sent, or no program at all, is dropped. To Celery
    a message that it cannot read at all is the end of the worker.

    Redis keeps no book of what is in hand (`ack_emulation` is off in the settings): a message that was taken is gone,
    and when its worker ends before its work the sweep finds that. To note each message and strike it out again was
    most of what a message costs, and to do so over a connection that had been lost meanwhile was the worker's end.
    """

    do_restore = False
    """A connection that is lost would put back the nudges in hand on its way out, and over itself: an AttributeError,
    and the end of every worker when Redis vanishes without a word."""

    _clients: "dict[ConnectionPool, Redis]"

    def __init__(self, *positional: Any, **named: Any) -> None:
        self._clients = {}
        super().__init__(*positional, **named)

    def _create_client(self, asynchronous: bool = False) -> "Redis":
        """One client for each pool: Kombu builds one for each message, which takes longer than to send it."""
        pool = self.async_pool if asynchronous else self.pool
        client = self._clients.get(pool)
        if client is None:
            client = self._clients[pool] = super()._create_client(asynchronous)  # type: ignore[misc]  # its stub leaves it out
        return client

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[..., Any] | None, consumer_tag: str | None, **named: Any
    ) -> str:
        def taken(message: Any) -> None:
            try:
                if callback is not None:
                    callback(message)
            except _OF_THE_BROKER:
                raise
            except Exception as error:
                _report(error)
                if not message.acknowledged:
                    message.reject()

        tag: str = super().basic_consume(queue, no_ack, taken, consumer_tag, **named)
        return tag

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[misc]  # its stub leaves out what is its own
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            _report(error)  # it has no form that could be taken, and left the queue as it was read
            return True


def _report(error: Exception) -> None:
    logger.error("a message that is none of ours was dropped: %s", type(error).__name__)


redis.Transport.Channel = Channel

app = Celery("platform")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@signals.import_modules.connect(weak=False)
def _schedule_the_sweeps(sender: Celery, **_: Any) -> None:
    """After autodiscovery (connected before us) every app's sweeps are known."""
    from platform_site.background.periodic import beat_schedule

    sender.conf.beat_schedule = {**sender.conf.beat_schedule, **beat_schedule()}


@signals.worker_init.connect(weak=False)
def _start_the_second_clocks(**_: Any) -> None:
    """Before the worker has met Redis: it may start while Redis is away, and there is work all the same."""
    from django.db import connections

    from platform_site.background.periodic import Clock

    for alias in connections:
        Clock(alias).start()


@signals.worker_shutdown.connect(weak=False)
def stop_the_second_clocks(**_: Any) -> None:
    from platform_site.background.periodic import stop_clocks

    stop_clocks(1.0)


@signals.beat_embedded_init.connect(weak=False)
def _beat_dies_with_its_worker(**_: Any) -> None:
    """The beat inside a worker is a child process, which would outlive a worker that was killed."""
    from platform_site.embedded.launch import die_with_parent

    die_with_parent(os.getppid(), signal.SIGTERM)
