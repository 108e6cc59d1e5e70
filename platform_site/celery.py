"""The Celery application. A message carries one id and nothing else; leases in PostgreSQL decide who works.

Who sends: `platform_site.api.nudges`, after a commit, and beat for the sweeps. Who works: `manage.py work`.
"""

import os
import signal
from typing import TYPE_CHECKING, Any

from celery import Celery, signals
from kombu.transport import redis

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "platform_site.settings")

# A connection that is lost would put back the nudges in hand on its way out, and over itself: an AttributeError, and
# the end of every worker when Redis vanishes without a word. The visibility timeout brings them back.
redis.Channel.do_restore = False

if TYPE_CHECKING:
    from platform_site.api.sweeps import Clock

_clocks: "list[Clock]" = []

app = Celery("platform")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@signals.import_modules.connect(weak=False)
def _schedule_the_sweeps(sender: Celery, **_: Any) -> None:
    """After autodiscovery (connected before us) every app's sweeps are known."""
    from platform_site.api.sweeps import beat_schedule

    sender.conf.beat_schedule = {**sender.conf.beat_schedule, **beat_schedule()}


@signals.worker_init.connect(weak=False)
def _start_the_second_clocks(**_: Any) -> None:
    """Before the worker has met Redis: it may start while Redis is away, and there is work all the same."""
    from django.db import connections

    from platform_site.api.sweeps import Clock

    for alias in connections:
        clock = Clock(alias)
        clock.start()
        _clocks.append(clock)


@signals.worker_shutdown.connect(weak=False)
def stop_the_second_clocks(**_: Any) -> None:
    """A sweep that is at it may be cut off anywhere; none begins any more."""
    for clock in _clocks:
        clock.stop()
    for clock in _clocks:
        clock.join(1.0)
    _clocks.clear()


@signals.beat_embedded_init.connect(weak=False)
def _beat_dies_with_its_worker(**_: Any) -> None:
    """The beat inside a worker is a child process, which would outlive a worker that was killed."""
    from platform_site.services.launch import die_with_parent

    die_with_parent(os.getppid(), signal.SIGTERM)
