"""Renews the leases of the runs that this process executes, and ends those that were cancelled, or whose lease another
process has taken over. So leases can be short however long a function may run."""

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
from functions.runs.start import CreatedRun

logger = logging.getLogger("platform.functions")

RENEW_SECONDS: Final = 0.5


class LeaseRenewer:
    """A thread per region, so that an unavailable region does not delay the leases of others."""

    def __init__(self, cancel: Callable[[str], object]) -> None:
        self._cancel = cancel
        self._reset()
        os.register_at_fork(after_in_child=self._reset)  # the parent renews its own leases

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._executing: dict[str, dict[str, CreatedRun]] = defaultdict(dict)
        self._threads: dict[str, threading.Thread] = {}

    def start_renewing(self, started: CreatedRun) -> None:
        """Call `stop_renewing` even if this raises. Cancels an earlier attempt that still executes here: its lease has
        ended, or this one could not have been claimed."""
        using = started.cluster
        with self._lock:
            has_earlier_attempt = started.run_id in self._executing[using]
            self._executing[using][started.run_id] = started
            if using not in self._threads:
                thread = threading.Thread(
                    target=self._watch, args=(using,), name=f"function-watch-{using}", daemon=True
                )
                thread.start()
                self._threads[using] = thread
        if has_earlier_attempt:
            self._cancel(started.run_id)

    def stop_renewing(self, started: CreatedRun) -> None:
        with self._lock:
            executing = self._executing[started.cluster]
            if executing.get(started.run_id) is started:
                del executing[started.run_id]

    def _watch(self, using: str) -> None:
        renewed_at, idle_checks = time.monotonic(), 0
        while True:
            time.sleep(RENEW_SECONDS)
            with self._lock:
                executing = dict(self._executing[using])
                idle_checks = 0 if executing else idle_checks + 1
                if idle_checks > 20:
                    self._threads.pop(using, None)
                    return
            began = time.monotonic()
            is_due = began - renewed_at >= settings.FUNCTION_LEASE.total_seconds() / 4
            try:
                if idle_checks == 1:
                    connections.close_all()
                if executing:
                    self._check(using, executing, renew=is_due)
            except Exception as error:  # the thread must go on with the next check
                # After an outage longer than a lease others may execute our runs again; only one outcome counts.
                trace = None if isinstance(error, Error) else error
                logger.warning(
                    "region %s: leases could not be renewed: %s", using, type(error).__name__, exc_info=trace
                )
                with suppress(Error):
                    connections[using].close()
            else:
                if is_due:
                    renewed_at = began

    def _check(self, using: str, executing: dict[str, CreatedRun], *, renew: bool) -> None:
        to_cancel = set(leases.cancelled_among(using, list(executing)))
        if renew:
            to_cancel |= set(executing) - leases.renew(using, executing.values())
        for run_id in to_cancel:
            with self._lock:
                still_ours = self._executing[using].get(run_id) is executing[run_id]
            if still_ours:
                self._cancel(run_id)
