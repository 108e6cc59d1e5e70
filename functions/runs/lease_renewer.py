"""What a process does for its runs while they execute: it renews their leases and looks whether one was cancelled.
Short runs never meet it: a thread for each region looks every half second, and only while something executes there. So
a lease can be short however long a function may run, and a run can be cancelled from any process. A run whose lease
another process has taken over is ended here, since its outcome would not count any more."""

import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from django.conf import settings
from django.db import Error, connections

from functions.runs import leases
from functions.runs.start import Started

logger = logging.getLogger("platform.functions")

RENEW_SECONDS: Final = 0.5


class LeaseRenewer:
    """The runs that this process executes. `end(run_id)` ends one of them. Each region has a thread of its own: one
    region that does not answer costs the others no lease."""

    def __init__(self, end: Callable[[str], object]) -> None:
        self._end = end
        self._lock = threading.Lock()
        self._executing: dict[str, dict[str, Started]] = defaultdict(dict)
        """For each region, by run id."""
        self._threads: dict[str, threading.Thread] = {}
        self._pid = os.getpid()

    def begin(self, started: Started) -> None:
        """Watch over the run until `end`, which has to be called whatever comes of this."""
        using = started.cluster
        with self._lock:
            if self._pid != os.getpid():  # forked: the other process watches over its own
                self._pid = os.getpid()
                self._threads.clear()
                self._executing.clear()
            self._executing[using][started.run_id] = started
            if using not in self._threads:
                thread = threading.Thread(
                    target=self._watch, args=(using,), name=f"function-watch-{using}", daemon=True
                )
                thread.start()
                self._threads[using] = thread

    def end(self, started: Started) -> None:
        with self._lock:
            self._executing[started.cluster].pop(started.run_id, None)

    def _watch(self, using: str) -> None:
        """Ends itself after a while without work."""
        renewed_at, idle_looks = time.monotonic(), 0
        while True:
            time.sleep(RENEW_SECONDS)
            with self._lock:
                executing = dict(self._executing[using])
                idle_looks = 0 if executing else idle_looks + 1
                if idle_looks > 20:
                    self._threads.pop(using, None)
                    return
            began = time.monotonic()
            is_due = began - renewed_at >= settings.FUNCTION_LEASE.total_seconds() / 4
            try:
                if idle_looks == 1:
                    connections.close_all()
                if executing:
                    self._look(using, executing, renew=is_due)
            except Exception as error:  # whatever it is, the next look is as due as this one
                # Away for longer than a lease: others may begin our runs again, and only one outcome will count.
                trace = None if isinstance(error, Error) else error
                logger.warning(
                    "region %s: leases could not be renewed: %s", using, type(error).__name__, exc_info=trace
                )
                with suppress(Error):
                    connections[using].close()
            else:
                if is_due:
                    renewed_at = began

    def _look(self, using: str, executing: dict[str, Started], *, renew: bool) -> None:
        gone = set(leases.cancelled_among(using, list(executing)))
        if renew:
            gone |= set(executing) - leases.renew(using, executing.values())
        for run_id in gone:
            with self._lock:
                still_ours = run_id in self._executing[using]
            if still_ours:
                self._end(run_id)
