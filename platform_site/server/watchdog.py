"""Logs whatever stops the event loop for more than 50 ms, with the stack of its thread.

A thread asks the loop for an answer, and looks every 25 ms whether it came. It is a stop if the loop's thread computes
for so long, or sleeps elsewhere than in the loop. A thread that is ready and has no core, or that waits for the
interpreter, is on a busy machine: it wakes every 5 ms to ask for the interpreter, which tells it from one that sleeps.
"""

import asyncio
import logging
import re
import sys
import threading
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

from platform_site.observability.metrics import LOOP_STOPS

INTERVAL: Final = 0.025
"""Seconds between two looks: two in vain are a stop."""
COMPUTED: Final = 0.05
"""Seconds of CPU."""
STATUS: Final = re.compile(r"^State:\s+(\S).*^voluntary_ctxt_switches:\s+(\d+)", re.MULTILINE | re.DOTALL)
"""Of proc_pid_status(5)."""

logger = logging.getLogger(__name__)


class Look(NamedTuple):
    """What the loop's thread does: seconds of CPU that it has used, its state, and how often it began to wait."""

    cpu: float
    state: str
    waits: int


class Watchdog:
    """Watches the event loop of the thread that makes it. Linux only."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watched = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._watched)
        self._status = Path(f"/proc/self/task/{threading.get_native_id()}/status")
        self._answered = True
        self._asked_at = self._answered_at = 0.0
        self._cpu_when_asked = 0.0
        self._between_callbacks: FrameType | None = None
        """What the thread executes while the loop waits for its sockets."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        before: Look | None = None
        reported = False
        while not self._ended.wait(INTERVAL):
            if self._answered:
                if reported:
                    taken = self._answered_at - self._asked_at
                    logger.warning("the event loop went on after %.0f ms", 1000 * taken)
                before, reported = None, False
                self._ask()
            elif not reported:
                now = self._look()
                reported = self._is_stopped(before, now) and self._report()
                before = now

    def _ask(self) -> None:
        self._answered = False
        self._asked_at, self._cpu_when_asked = time.monotonic(), time.clock_gettime(self._clock)
        self._loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        self._between_callbacks = sys._getframe(1)
        self._answered_at = time.monotonic()
        self._answered = True

    def _look(self) -> Look:
        cpu = time.clock_gettime(self._clock)
        found = STATUS.search(self._status.read_text())
        return Look(cpu, found[1], int(found[2])) if found else Look(cpu, "?", 0)

    def _is_stopped(self, before: Look | None, now: Look) -> bool:
        if now.cpu - self._cpu_when_asked > COMPUTED:
            return True
        return before is not None and before.state == now.state == "S" and before.waits == now.waits

    def _report(self) -> bool:
        """Whether it is a callback of ours that the loop waits for."""
        frame = sys._current_frames().get(self._watched)
        if frame is None or frame is self._between_callbacks:
            return False
        LOOP_STOPS.inc()
        # The stack has lines of code and no values, so no secrets.
        logger.warning("the event loop stands still\n%s", "".join(traceback.format_stack(frame)))
        return True
