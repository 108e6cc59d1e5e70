"""A program, what the pool knows of its processes, and how another thread ends one."""

import threading
from collections import deque
from dataclasses import dataclass, field

from functions.runtime.process import Process


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
    line: deque[threading.Condition] = field(default_factory=deque)
    """Threads that wait for one of its processes, the first first."""

    def took(self, seconds: float) -> None:
        self.usual += (seconds - self.usual) / 4

    def call_next(self) -> None:
        """Wake the first waiting call, which leaves the queue: two free processes wake two calls."""
        if self.line:
            self.line.popleft().notify()
