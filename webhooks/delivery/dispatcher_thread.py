"""A thread for each region in a worker process: asleep until it is woken, then at the dispatcher until nothing is due.

It keeps its connection to the region's database, so that waking costs neither a connection nor one of Celery's threads,
and a worker holds one connection for each region however many nudges come. `wake` and `stop` are all that is called
from outside (`webhooks.tasks`).
"""

import logging
import threading
import time
from typing import Final

from django.db import Error, close_old_connections, connections

from webhooks.delivery.dispatcher import GRACE, Dispatcher

logger = logging.getLogger("platform.webhooks")

TRIES: Final = 3
"""How often the loop comes back to a database that is away, a moment later each time; then the sweep wakes it."""

_loops: dict[str, "Loop"] = {}
_making: Final = threading.Lock()
_stopping: Final = threading.Event()


class Loop(threading.Thread):
    """The thread of one region."""

    def __init__(self, using: str) -> None:
        super().__init__(name=f"webhooks-{using}", daemon=True)
        self._using = using
        self._dispatcher = Dispatcher(using)

    def wake(self) -> None:
        self._dispatcher.ask()

    def run(self) -> None:
        failures = 0
        try:
            while not _stopping.is_set():
                if not self._dispatcher.wait_until_asked():
                    continue
                try:
                    close_old_connections()
                    self._dispatcher.run(should_stop=_stopping.is_set)
                    failures = 0
                except Error as error:
                    connections[self._using].close()
                    failures += 1
                    logger.warning("region %s: dispatching stopped: %s", self._using, type(error).__name__)
                    if failures < TRIES:
                        time.sleep(0.1 * 5**failures)
                        self.wake()
                    else:
                        failures = 0
                except Exception:
                    logger.exception("region %s: dispatching failed", self._using)
        finally:
            connections.close_all()


def wake(using: str) -> None:
    """Let the region's queue be emptied, by a thread of this process. Returns at once."""
    with _making:
        loop = _loops.get(using)
        if loop is None or not loop.is_alive():
            loop = _loops[using] = Loop(using)
            loop.start()
    loop.wake()


def ask_to_stop() -> None:
    """Begin nothing any more; attempts in flight may end."""
    _stopping.set()
    for loop in list(_loops.values()):
        loop.wake()


def stop() -> None:
    """Wait until the threads have ended, claims given back and outcomes booked."""
    ask_to_stop()
    deadline = time.monotonic() + GRACE + 1
    for loop in list(_loops.values()):
        loop.join(max(0.0, deadline - time.monotonic()))
