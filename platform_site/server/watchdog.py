"""Logs what blocks the event loop for more than 50 ms, with its stack: its thread computes, or sleeps outside of the
loop's own wait. A wait for a CPU core or for the interpreter lock, for which it wakes every 5 ms, is not reported."""

import asyncio
import logging
import re
import sys
import threading
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Final

from platform_site.observability.metrics import LOOP_STOPS

INTERVAL: Final = 0.025
"""Seconds between checks."""
MAX_CPU_SECONDS: Final = 0.05
_STATUS: Final = re.compile(r"^State:\s+(\S).*^voluntary_ctxt_switches:\s+(\d+)", re.MULTILINE | re.DOTALL)
"""The state of a thread (S: sleeping), and how often it has waited."""

logger = logging.getLogger(__name__)


class Watchdog:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watched = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._watched)
        self._status = Path(f"/proc/self/task/{threading.get_native_id()}/status")
        self._has_answered = True
        self._asked = self._answered = (0.0, 0.0)
        """Seconds, and CPU seconds of the loop's thread."""
        self._between_callbacks: FrameType | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        before: tuple[str, ...] | None = None
        is_reported = False
        while not self._ended.wait(INTERVAL):
            if self._has_answered:
                if is_reported:
                    taken, used = (1000 * (end - start) for start, end in zip(self._asked, self._answered, strict=True))
                    logger.warning("the event loop went on after %.0f ms, %.0f of them computing", taken, used)
                before, is_reported = None, False
                self._has_answered, self._asked = False, self._now()
                self._loop.call_soon_threadsafe(self._answer)
            elif not is_reported:
                found = _STATUS.search(self._status.read_text())
                state = found.groups() if found else None
                is_sleeping = state is not None and state[0] == "S" and state == before
                is_computing = self._now()[1] - self._asked[1] > MAX_CPU_SECONDS
                before = state
                frame = sys._current_frames().get(self._watched)
                if (is_computing or is_sleeping) and frame is not self._between_callbacks:
                    is_reported = True
                    LOOP_STOPS.inc()
                    # Lines of code without values, so without secrets.
                    stack = "".join(traceback.format_stack(frame))
                    doing = "it computes" if is_computing else "it sleeps"
                    logger.warning("the event loop is blocked: %s\n%s", doing, stack)

    def _answer(self) -> None:
        self._between_callbacks = sys._getframe(1)
        self._answered, self._has_answered = self._now(), True

    def _now(self) -> tuple[float, float]:
        return time.monotonic(), time.clock_gettime(self._clock)
