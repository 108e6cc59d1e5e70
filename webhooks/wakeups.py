"""Telling a worker that a region's queue has work, at a cost that a row write does not feel.

After a commit that left an event, this process wakes its one sending thread, which sends one Celery message for all
that was committed within `PAUSE`. So a burst of writes costs a message each 20 to 80 ms instead of one each, and a
write pays for setting a flag. A message that is lost costs one period of the sweep (`webhooks.tasks`), nothing else.
"""

import threading
import time
from functools import partial
from typing import Final

from django.db import transaction

from platform_site.api import nudges

PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 0.08
"""While one write follows another the pause doubles up to this: the worker is at work then and looks by itself, and a
message costs a millisecond here and another one there."""

_lock = threading.Lock()
_wanted: set[str] = set()
_flag = threading.Event()
_thread: threading.Thread | None = None


def after_commit(using: str) -> None:
    """Wake a worker for the region `using` once the transaction at hand has committed; at once outside of one."""
    transaction.on_commit(partial(wake, using), using=using)


def after_control_commit(environment_id: str) -> None:
    """Let a worker carry over what the control database's transaction at hand tells the environment."""
    from webhooks.tasks import carry_over_control_events

    nudges.nudge(carry_over_control_events, environment_id)


def wake(using: str) -> None:
    """Wake a worker for the region now. Never waits, never raises."""
    global _thread
    _wanted.add(using)
    _flag.set()
    if _thread is None or not _thread.is_alive():  # the first time, and after a fork
        with _lock:
            if _thread is None or not _thread.is_alive():
                _thread = threading.Thread(target=_sending, name="webhook-wakeups", daemon=True)
                _thread.start()


def _sending() -> None:
    from webhooks.tasks import dispatch

    pause = PAUSE
    while True:
        _flag.wait()
        _flag.clear()
        while _wanted:
            nudges.send_now(dispatch, _wanted.pop())
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE) if _flag.is_set() else PAUSE
