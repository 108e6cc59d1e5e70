"""Logs what blocks the event loop for more than 50 ms, with its stack: its thread computes, or sleeps outside of the
loop's own wait. A thread that only waits for a CPU core or for the interpreter lock, for which it wakes every 5 ms, is
not reported."""

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
"""Seconds between checks; without a response at two, the loop has stopped."""
MAX_CPU: Final = 0.05
"""CPU seconds before a response."""
STATUS: Final = re.compile(r"^State:\s+(\S).*^voluntary_ctxt_switches:\s+(\d+)", re.MULTILINE | re.DOTALL)

logger = logging.getLogger(__name__)


class ThreadState(NamedTuple):
    cpu: float
    state: str
    """S: sleeping."""
    waits: int
    """Voluntary context switches."""


class Watchdog:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watched = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._watched)
        self._status = Path(f"/proc/self/task/{threading.get_native_id()}/status")
        self._answered = True
        self._asked_at = self._answered_at = 0.0
        self._cpu_when_asked = self._cpu_when_answered = 0.0
        self._between_callbacks: FrameType | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        before: ThreadState | None = None
        reported = False
        while not self._ended.wait(INTERVAL):
            if self._answered:
                if reported:
                    taken, used = self._answered_at - self._asked_at, self._cpu_when_answered - self._cpu_when_asked
                    logger.warning(
                        "the event loop went on after %.0f ms, %.0f of them computing", 1000 * taken, 1000 * used
                    )
                before, reported = None, False
                self._ask()
            elif not reported:
                now = self._state()
                frame = sys._current_frames().get(self._watched)
                is_in_callback = frame is not self._between_callbacks
                if is_in_callback and (doing := self._stopped_by(before, now)):
                    self._report(doing, frame)
                    reported = True
                before = now

    def _ask(self) -> None:
        self._answered = False
        self._asked_at, self._cpu_when_asked = time.monotonic(), time.clock_gettime(self._clock)
        self._loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        self._between_callbacks = sys._getframe(1)
        self._answered_at, self._cpu_when_answered = time.monotonic(), time.clock_gettime(self._clock)
        self._answered = True

    def _state(self) -> ThreadState:
        cpu = time.clock_gettime(self._clock)
        found = STATUS.search(self._status.read_text())
        return ThreadState(cpu, found[1], int(found[2])) if found else ThreadState(cpu, "?", 0)

    def _stopped_by(self, before: ThreadState | None, now: ThreadState) -> str | None:
        used = now.cpu - self._cpu_when_asked
        if used > MAX_CPU:
            return "it computes"
        if before is not None and before.state == now.state == "S" and before.waits == now.waits:
            return "it sleeps"
        return None

    def _report(self, doing: str, frame: FrameType | None) -> None:
        LOOP_STOPS.inc()
        # The stack has lines of code and no values, so no secrets.
        logger.warning("the event loop is blocked: %s\n%s", doing, "".join(traceback.format_stack(frame)))
