"""A program, what the pool knows of its processes, and how another thread ends one."""

import math
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from functions.runtime.process import Process
from platform_site.concurrency.loop_requests import Gate

_HEAT_HALVES_AFTER: Final = 10.0
"""Seconds. Who is called more often than that keeps its place while others come and go."""
_MOST_HEAT: Final = 8.0
"""So that a program that was busy once cools down as fast as others."""


@dataclass(frozen=True, slots=True)
class Program:
    """What a process is warm for. `key` tells versions apart for ever (a version's id)."""

    key: str
    owner: str
    """The environment: two never share a process."""
    source: bytes
    memory_mb: int


class Busy(RuntimeError):
    """Every place in the pool is taken by running calls; try again shortly."""


class Ending:
    """By which another thread ends a process that may not have started yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: Process | None = None
        self._has_come = False

    def end(self) -> None:
        with self._lock:
            self._has_come = True
            self._kill()

    def reaches(self, process: Process | None) -> None:
        with self._lock:
            self._process = process
            if self._has_come:
                self._kill()

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill("cancelled")


@dataclass(slots=True)
class Running:
    process: Process
    limit_bytes: int


@dataclass(slots=True)
class ProgramProcesses:
    """What the pool knows of one program while it has processes of it."""

    alive: int = 0
    """Its processes, idle and busy ones and those that start."""
    busy: int = 0
    starting: int = 0
    usual: float = 0.0
    """Seconds that its calls take, as a mean that forgets."""
    on_loop: set[Process] = field(default_factory=set)
    """Those that run calls of requests on the event loop."""
    line: deque[Gate] = field(default_factory=deque)
    """Calls that wait for one of its processes, the first first."""

    def took(self, seconds: float) -> None:
        self.usual += (seconds - self.usual) / 4

    def call_next(self) -> None:
        """Wake the first waiting call, which leaves the queue: two free processes wake two calls."""
        if self.line:
            self.line.popleft().open()


def coldest(idle: Iterable[Process], now: float) -> Process:
    """The idle process that was called least of late; of those between which is less than a factor of two, the one that
    was started last. Not the one whose last call lies furthest back: of twenty functions called in a circle over
    sixteen places that is always the next one needed, and none would ever be warm. Here the newcomers of such a circle
    replace each other and the rest stay."""

    def warmth(process: Process) -> tuple[int, float]:
        return math.ceil(math.log2(process.heat * _cooled(now - process.heated_at) or 1e-9)), -process.started_at

    return min(idle, key=warmth)


def heat(process: Process, now: float) -> None:
    """It was called."""
    process.heat = min(_MOST_HEAT, 1 + process.heat * _cooled(now - process.heated_at))
    process.heated_at = now


def _cooled(seconds: float) -> float:
    return float(0.5 ** (seconds / _HEAT_HALVES_AFTER))
