"""Telling a worker that a region's queue has work, at a cost that a request does not feel.

After a commit that queued something, the process wakes the sending thread of that queue, which sends one Celery message
for all that was committed within `PAUSE`. So a burst costs a message each 20 to 80 ms instead of one each, and a
request pays for setting a flag. A message that is lost costs one period of the queue's sweep, nothing else.
"""

import threading
import time
from functools import partial
from typing import Final

from django.db import transaction

from platform_site.background import dispatch

PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 0.08
"""While one commit follows another the pause doubles up to this: the worker is at work then and looks by itself, and a
message costs a millisecond here and another one there."""


class Wakeups:
    """Those of one queue. `task` is the name of the task that works at it, called with a region's alias."""

    def __init__(self, name: str, task: str) -> None:
        self._name, self._task = name, task
        self._lock = threading.Lock()
        self._wanted: set[str] = set()
        self._flag = threading.Event()
        self._thread: threading.Thread | None = None

    def after_commit(self, using: str) -> None:
        """Wake a worker for the region `using` once the transaction at hand has committed; at once outside of one."""
        transaction.on_commit(partial(self.wake, using), using=using)

    def wake(self, using: str) -> None:
        """Wake a worker for the region now. Never waits, never raises."""
        self._wanted.add(using)
        self._flag.set()
        if self._thread is None or not self._thread.is_alive():  # the first time, and after a fork
            with self._lock:
                if self._thread is None or not self._thread.is_alive():
                    self._thread = threading.Thread(target=self._sending, name=self._name, daemon=True)
                    self._thread.start()

    def _sending(self) -> None:
        pause = PAUSE
        while True:
            self._flag.wait()
            self._flag.clear()
            while self._wanted:
                dispatch.send_now(self._task, self._wanted.pop())
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE) if self._flag.is_set() else PAUSE
