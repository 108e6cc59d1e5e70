"""Notifies workers that a region's queue has work, in batches. After a commit that queued something, the process wakes
that queue's sending thread, which sends one Celery message for everything that was committed within `PAUSE`. So a burst
costs one message per 20 to 80 ms, and a request only sets a flag. A lost message delays the work by one period of the
queue's periodic job."""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from django.db import transaction

PAUSE: Final = 0.02
_LONGEST: Final = 4
"""While one commit follows another the pause doubles up to this many: the worker is at work then and looks by itself,
and a message costs a millisecond here and another one there."""


class Debouncer:
    """Those of one queue. `send` sends the message for a region's alias; it must not raise. Between two messages
    is at least the time `pause`, in seconds."""

    def __init__(self, name: str, send: Callable[[str], object], pause: float = PAUSE) -> None:
        self._name, self._send, self._pause = name, send, pause
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
        pause = self._pause
        while True:
            self._flag.wait()
            self._flag.clear()
            while self._wanted:
                self._send(self._wanted.pop())
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST * self._pause) if self._flag.is_set() else self._pause
