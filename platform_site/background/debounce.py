"""Notifies workers of a region's queue: after a commit, the queue's sender thread sends one Celery message for all
commits within `PAUSE`. A lost message only delays the work until the periodic job."""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from django.db import transaction

PAUSE: Final = 0.02
_MAX_FACTOR: Final = 4
"""The maximum factor of the pause during consecutive commits: the worker is running then."""


class Debouncer:
    """Of one queue. `send`, which must not raise, gets a region's alias, at most once per `pause` seconds."""

    def __init__(self, name: str, send: Callable[[str], object], pause: float = PAUSE) -> None:
        self._name, self._send, self._pause = name, send, pause
        self._lock = threading.Lock()
        self._wanted: set[str] = set()
        self._flag = threading.Event()
        self._thread: threading.Thread | None = None

    def after_commit(self, using: str) -> None:
        transaction.on_commit(partial(self.wake, using), using=using)

    def wake(self, using: str) -> None:
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
            pause = min(2 * pause, _MAX_FACTOR * self._pause) if self._flag.is_set() else self._pause
