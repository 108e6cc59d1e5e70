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

Item = TypeVar("Item")

PAUSE: Final = 0.05
"""Seconds to gather items."""


class Batch(Generic[Item]):
    """`process` is called with all new items, in order. Thread-safe; empty after a fork."""

    def __init__(self, process: Callable[[list[Item]], None], *, max_items: int) -> None:
        self._process, self._max_items = process, max_items
        self._reset()
        _all.add(self)

    def _reset(self) -> None:
        self._waiting: deque[Item] = deque()
        self._lock = threading.Lock()
        self._processing = threading.Lock()
        self._wanted = threading.Event()
        self._is_woken = False
        self._thread: threading.Thread | None = None

    def put(self, item: Item) -> bool:
        """False, and the item is dropped, if `max_items` are waiting."""
        waiting = self._waiting
        if len(waiting) >= self._max_items:
            return False
        waiting.append(item)
        if not settings.FASTPATH:
            self.flush()
        elif not self._is_woken:
            self._wake_thread()
        return True

    def flush(self) -> None:
        with self._processing:
            waiting = self._waiting
            taken = [waiting.popleft() for _ in range(len(waiting))]
            if taken:
                try:
                    self._process(taken)
                except Exception:
                    logger.exception("a batch was lost")

    def _wake_thread(self) -> None:
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="batch", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the system has no more threads: the next item tries again
                    return
                self._thread = thread
            self._is_woken = True
            self._wanted.set()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            time.sleep(PAUSE)
            self._is_woken = False  # before checking, so that a later item starts it again
            self.flush()


_all: Final["weakref.WeakSet[Batch[Any]]"] = weakref.WeakSet()


def _after_fork() -> None:
    for each in _all:
        each._reset()


os.register_at_fork(after_in_child=_after_fork)
