import logging
import threading
import time
from typing import Final

from django.db import Error, close_old_connections, connections

from webhooks.delivery.dispatcher import SHUTDOWN_SECONDS, Dispatcher

logger = logging.getLogger("platform.webhooks")

MAX_RESTARTS: Final = 3
"""Retries of an unavailable database, with growing pauses; then a periodic job wakes the thread."""

_threads: dict[str, "DispatcherThread"] = {}
_lock: Final = threading.Lock()
_stopping: Final = threading.Event()


class DispatcherThread(threading.Thread):
    def __init__(self, using: str) -> None:
        super().__init__(name=f"webhooks-{using}", daemon=True)
        self._using = using
        self.dispatcher = Dispatcher(using)

    def run(self) -> None:
        failures = 0
        try:
            while not _stopping.is_set():
                if not self.dispatcher.check_requested.wait(60):
                    continue
                try:
                    close_old_connections()
                    self.dispatcher.run(should_stop=_stopping.is_set)
                    failures = 0
                except Error as error:
                    connections[self._using].close()
                    failures += 1
                    logger.warning("region %s: dispatching stopped: %s", self._using, type(error).__name__)
                    if failures < MAX_RESTARTS:
                        time.sleep(0.1 * 5**failures)
                        self.dispatcher.request_check()
                    else:
                        failures = 0
                except Exception:
                    logger.exception("region %s: dispatching failed", self._using)
        finally:
            connections.close_all()


def wake(using: str) -> None:
    with _lock:
        thread = _threads.get(using)
        if thread is None or not thread.is_alive():
            thread = _threads[using] = DispatcherThread(using)
            thread.start()
    thread.dispatcher.request_check()


def ask_to_stop() -> None:
    """Start nothing any more; attempts in flight may end."""
    _stopping.set()
    for thread in list(_threads.values()):
        thread.dispatcher.request_check()


def stop() -> None:
    """Wait until the threads have ended, with claims released and outcomes recorded."""
    ask_to_stop()
    deadline = time.monotonic() + SHUTDOWN_SECONDS + 1
    for thread in list(_threads.values()):
        thread.join(max(0.0, deadline - time.monotonic()))
