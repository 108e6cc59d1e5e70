import math
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from functions.runtime.process import Process
from platform_site.concurrency.loop_requests import Gate

_HALF_LIFE: Final = 10.0
"""Seconds. A process that is called more often than this is not evicted in favor of rarely called ones."""
_MAX_RECENT_USES: Final = 8.0
"""A bound, so that a process that was busy once becomes evictable as fast as others."""


@dataclass(frozen=True, slots=True)
class Program:
    key: str
    """Identifies the version, and is never reused."""
    owner: str
    """The environment: environments never share a process."""
    source: bytes
    memory_mb: int


class Busy(RuntimeError):
    pass


class Ending:
    """A handle with which another thread ends a process that may not have started yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: Process | None = None
        self._is_ended = False

    def end(self) -> None:
        with self._lock:
            self._is_ended = True
            self._kill()

    def set_process(self, process: Process | None) -> None:
        with self._lock:
            self._process = process
            if self._is_ended:
                self._kill()

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill("cancelled")


@dataclass(slots=True)
class ProgramProcesses:
    alive: int = 0
    """With the starting ones."""
    starting: int = 0
    mean_seconds: float = 0.0
    """Exponential moving average of the call duration."""
    on_loop: set[Process] = field(default_factory=set)
    """Processes that run calls of requests on the event loop."""
    waiting: deque[Gate] = field(default_factory=deque)

    def wake_next(self) -> None:
        """Wake the first waiting call, which leaves the queue."""
        if self.waiting:
            self.waiting.popleft().open()


def least_used(idle: Iterable[Process], now: float) -> Process:
    """The idle process with the fewest recent calls, to be evicted; if within a factor of two, the one started last.
    Not LRU: of twenty functions called round-robin with sixteen processes, the least recently used one is always the
    next one needed, and none would ever be warm. Here the newest processes replace each other and the others stay."""

    def rank(process: Process) -> tuple[int, float]:
        recent_uses = process.recent_uses * _decay(now - process.uses_counted_at)
        return math.ceil(math.log2(recent_uses or 1e-9)), -process.started_at

    return min(idle, key=rank)


def record_use(process: Process, now: float) -> None:
    process.recent_uses = min(_MAX_RECENT_USES, 1 + process.recent_uses * _decay(now - process.uses_counted_at))
    process.uses_counted_at = now


def _decay(seconds: float) -> float:
    return float(0.5 ** (seconds / _HALF_LIFE))
