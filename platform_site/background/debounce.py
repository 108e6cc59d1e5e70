"""Debounces notifications: after a commit, a sender thread sends one notification per region for all commits within
`pause` seconds. A lost notification only delays the work until the next poll or periodic job."""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from django.db import transaction

PAUSE: Final = 0.02
_MAX_FACTOR: Final = 4
"""While commits keep coming, the pause doubles: the receiver is busy anyway."""


class Debouncer:
    """`send` receives a region's alias, at most once per `pause` seconds, and must not raise."""

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
