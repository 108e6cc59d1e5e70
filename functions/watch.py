"""What a process does for its runs while they execute: it renews their leases and looks whether one was cancelled.

Short runs never meet it: a thread looks every half second, and only while something executes. So a lease can be short
however long a function may run, and a run can be cancelled from any process. A run whose lease another process has
taken over is ended here, since its outcome would not count any more.
"""

import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from django.conf import settings
from django.db import DatabaseError, connections

from functions import runs
from functions.runs import Started

logger = logging.getLogger("platform.functions")

LOOK_SECONDS: Final = 0.5


class Watch:
    """The runs that this process executes. `end(run_id)` ends one of them."""

    def __init__(self, end: Callable[[str], object]) -> None:
        self._end = end
        self._lock = threading.Lock()
        self._executing: dict[str, dict[str, Started]] = defaultdict(dict)
        """For each region, by run id."""
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    @contextmanager
    def over(self, started: Started) -> Iterator[None]:
        """Watch over the run until the end of the block."""
        with self._lock:
            if self._pid != os.getpid():  # forked: the other process watches over its own
                self._pid, self._thread = os.getpid(), None
                self._executing.clear()
            self._executing[started.cluster][started.run_id] = started
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="function-watch", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._executing[started.cluster].pop(started.run_id, None)

    def _watch(self) -> None:
        """Ends itself after a while without work."""
        renewed_at, idle_looks = time.monotonic(), 0
        while True:
            time.sleep(LOOK_SECONDS)
            with self._lock:
                now = {using: dict(mine) for using, mine in self._executing.items() if mine}
                idle_looks = 0 if now else idle_looks + 1
                if idle_looks > 20:
                    self._thread = None
                    return
            if idle_looks == 1:
                connections.close_all()
            is_due = time.monotonic() - renewed_at >= settings.FUNCTION_LEASE.total_seconds() / 4
            if is_due:
                renewed_at = time.monotonic()
            for using, executing in now.items():
                self._look(using, executing, renew=is_due)

    def _look(self, using: str, executing: dict[str, Started], *, renew: bool) -> None:
        try:
            gone = set(runs.cancelled_among(using, list(executing)))
            if renew:
                gone |= set(executing) - runs.renew(using, executing.values())
        except DatabaseError as error:
            # Away for longer than a lease: others may begin our runs again, and only one outcome will count.
            connections[using].close()
            logger.warning("region %s: leases could not be renewed: %s", using, type(error).__name__)
            return
        for run_id in gone:
            with self._lock:
                still_ours = run_id in self._executing[using]
            if still_ours:
                self._end(run_id)
