"""Batches small items of many threads, processed a moment later in another thread: for access log and metrics, which
would cost each request locks and system calls (a quarter of the CPU of reading a row)."""

import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from django.conf import settings

logger = logging.getLogger(__name__)

Thing = TypeVar("Thing")

PAUSE: Final = 0.05
"""Seconds to gather items."""


class Batch(Generic[Thing]):
    """`deal` gets all new items, in order. Thread-safe; empty after a fork."""

    def __init__(self, deal: Callable[[list[Thing]], None], *, most: int) -> None:
        self._deal, self._most = deal, most
        self._forget()
        _all.add(self)

    def _forget(self) -> None:
        self._waiting: deque[Thing] = deque()
        self._lock = threading.Lock()
        self._dealing = threading.Lock()
        self._wanted = threading.Event()
        self._is_called = False
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, thing: Thing) -> bool:
        """False, and nothing done, if too many wait."""
        waiting = self._waiting
        if len(waiting) >= self._most:
            return False
        waiting.append(thing)
        if not settings.FASTPATH:
            self.flush()
        elif not self._is_called:
            self._call()
        return True

    def flush(self) -> None:
        with self._dealing:
            waiting = self._waiting
            taken = [waiting.popleft() for _ in range(len(waiting))]
            if taken:
                try:
                    self._deal(taken)
                except Exception:
                    logger.exception("a batch was lost")

    def _call(self) -> None:
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="batch", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the system has no more threads: the next item tries again
                    return
                self._thread = thread
            self._is_called = True
            self._wanted.set()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            time.sleep(PAUSE)
            self._is_called = False  # before checking, so that a later item starts it again
            self.flush()


_all: Final["weakref.WeakSet[Batch[Any]]"] = weakref.WeakSet()


def _after_fork() -> None:
    """The child has no threads; the items are the parent's."""
    for each in _all:
        each._forget()


os.register_at_fork(after_in_child=_after_fork)
