"""The warm processes of one worker: bounded in number, least recently used out, idle ones ended.

A process belongs to one (environment, function, version) for life. A thread of the pool watches memory every 20 ms
while calls run, and ends what idled too long. Another one starts all processes, because the kernel ends a child that
asked to die with its parent when the *thread* that started it ends, and threads of the server come and go.
"""

import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from functions.runtime.process import Call, Host, LoadFailed, Outcome, Process, ProcessGone


@dataclass(frozen=True, slots=True)
class Program:
    """What a process is warm for. `key` tells versions apart for ever (a version's id)."""

    key: str
    owner: str
    """The environment: two never share a process, an uid or a directory."""
    source: bytes
    memory_mb: int


class Busy(RuntimeError):
    """Every place in the pool is taken by running calls; try again shortly."""


class Clock(Protocol):
    def __call__(self) -> float: ...


@dataclass(slots=True)
class Running:
    process: Process
    limit_bytes: int


class Pool:
    """At most `size` processes, running ones included. Thread-safe."""

    MEMORY_OVERHEAD_MB = 96
    """What Deno itself weighs beyond the tenant's heap limit."""
    SHORT_CALL = 0.02
    PAUSE_AFTER = 0.05
    """Seconds without a call after which a process is stopped: one that is called all the time need not be woken."""
    MOST_CHECKS = 2
    """Deployments that are tried out at the same time: they come on top of `size`, so they are few."""

    def __init__(
        self,
        *,
        size: int,
        idle_seconds: float,
        max_calls: int,
        wait_seconds: float,
        load_seconds: float = 10.0,
        required_walls: frozenset[str] = frozenset(),
        clock: Clock = time.monotonic,
    ) -> None:
        self.size = size
        self.idle_seconds = idle_seconds
        self.max_calls = max_calls
        self.wait_seconds = wait_seconds
        self.load_seconds = load_seconds
        self.required_walls = required_walls
        self.clock = clock
        self._changed = threading.Condition()
        self._idle: OrderedDict[Process, tuple[str, float]] = OrderedDict()  # oldest use first
        self._running: dict[str, Running] = {}
        self._places = 0
        self._watcher: threading.Thread | None = None
        self._dozes = False
        self._alarm = threading.Event()
        self._closed = False
        self._starter = ThreadPoolExecutor(1, "function-starter")
        self._checks = threading.BoundedSemaphore(self.MOST_CHECKS)

    # ── calls ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def call(self, program: Program, call: Call, host: Host) -> Outcome:
        """Run `call` in a warm process of `program`, or in a new one.

        Raises Busy when no place came free within `wait_seconds`, LoadFailed for a module that does not load,
        StartFailed where Deno does not start.
        """
        for _ in range(3):
            process, is_warm = self._take(program)
            try:
                if not is_warm:
                    process.wait_until_ready()
                    process.load(program.source, seconds=self.load_seconds)
                with self._changed:
                    limit = (program.memory_mb + self.MEMORY_OVERHEAD_MB) * 1024 * 1024
                    self._running[call.run_id] = Running(process, limit)
                    self._watch()
                try:
                    outcome = process.call(call, host)
                finally:
                    with self._changed:
                        self._running.pop(call.run_id, None)
            except ProcessGone:
                self._discard(process)
                continue
            except BaseException:
                self._discard(process)
                raise
            outcome.walls = tuple(process.walls)
            self._give_back(process, program, outcome)
            return outcome
        raise Busy("no process took the call")

    def cancel(self, run_id: str) -> bool:
        """End a run of this pool. False if it is not running here."""
        with self._changed:
            running = self._running.get(run_id)
        if running is None:
            return False
        running.process.kill("cancelled")
        return True

    def warm(self, program: Program) -> None:
        """Start and load a process ahead of its first call; nothing where no place is free. Raises LoadFailed."""
        with self._changed:
            if self._closed or self._places >= self.size or any(key == program.key for key, _ in self._idle.values()):
                return
            self._places += 1
        self._settle(program, self._made(program))

    def check(self, program: Program) -> None:
        """Load a program in a process of its own, outside of the pool's places, and end it.

        Raises LoadFailed, StartFailed, and Busy when `MOST_CHECKS` others took longer than `wait_seconds`.
        """
        if not self._checks.acquire(timeout=self.wait_seconds):
            raise Busy("other deployments are being tried out")
        try:
            process = self._started(program)
            try:
                process.wait_until_ready()
                process.load(program.source, seconds=self.load_seconds)
            finally:
                process.close()
        finally:
            self._checks.release()

    def forget(self, key: str) -> None:
        """End the idle processes of one version (deleted, or no longer active)."""
        with self._changed:
            gone = [process for process, (theirs, _) in self._idle.items() if theirs == key]
            for process in gone:
                del self._idle[process]
        for process in gone:
            self._discard(process)

    def sizes(self) -> tuple[int, int]:
        """How many processes are idle, and how many run a call."""
        with self._changed:
            return len(self._idle), len(self._running)

    def close(self) -> None:
        """End everything. Running calls end as crashed."""
        with self._changed:
            self._closed = True
            gone = [*self._idle, *(running.process for running in self._running.values())]
            self._idle.clear()
            self._changed.notify_all()
        for process in gone:
            process.close()
        self._starter.shutdown(wait=False)

    # ── places ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def _take(self, program: Program) -> tuple[Process, bool]:
        """A warm process of the program, or a place and a new process."""
        deadline = time.monotonic() + self.wait_seconds
        evicted: Process | None = None
        with self._changed:
            while True:
                if self._closed:
                    raise Busy("the pool is closed")
                for process in reversed(self._idle):
                    if self._idle[process][0] == program.key:
                        del self._idle[process]
                        process.resume()
                        return process, True
                if self._places < self.size:
                    self._places += 1
                    break
                if self._idle:
                    evicted, _ = self._idle.popitem(last=False)
                    break
                if not self._changed.wait(max(0.0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                    raise Busy("every process is busy")
        if evicted is not None:
            evicted.close()  # its place becomes ours
        return self._made(program), False

    def _started(self, program: Program) -> Process:
        return self._starter.submit(Process, program.memory_mb, program.owner, self.required_walls).result()

    def _made(self, program: Program) -> Process:
        try:
            return self._started(program)
        except BaseException:
            self._free_place()
            raise

    def _settle(self, program: Program, process: Process) -> None:
        """Load a new process and put it among the idle ones."""
        try:
            process.wait_until_ready()
            process.load(program.source, seconds=self.load_seconds)
        except BaseException:
            self._discard(process)
            raise
        self._shelve(process, program.key)

    def _give_back(self, process: Process, program: Program, outcome: Outcome) -> None:
        healthy = outcome.reason in (None, "user_error", "output_too_large") and process.calls < self.max_calls
        if not healthy or (self._is_due(process, outcome) and self._has_grown(process, program)):
            self._discard(process)
        else:
            self._shelve(process, program.key)

    def _is_due(self, process: Process, outcome: Outcome) -> bool:
        """Whether to look how large it is: after every call but short ones, of which every eighth."""
        return outcome.duration > self.SHORT_CALL or process.calls % 8 == 0

    def _has_grown(self, process: Process, program: Program) -> bool:
        most = (program.memory_mb * 3 // 4 + self.MEMORY_OVERHEAD_MB) * 1024 * 1024
        return process.rss_bytes() > most or process.grew_threads()

    def _shelve(self, process: Process, key: str) -> None:
        with self._changed:
            if not self._closed:
                self._idle[process] = (key, self.clock())
                self._watch()
                self._changed.notify()
                return
        process.close()

    def _discard(self, process: Process) -> None:
        process.close()
        self._free_place()

    def _free_place(self) -> None:
        with self._changed:
            self._places -= 1
            self._changed.notify()

    # ── the watcher ─────────────────────────────────────────────────────────────────────────────────────────────────
    def _watch(self) -> None:
        if self._watcher is None or not self._watcher.is_alive():
            self._watcher = threading.Thread(target=self._watching, name="function-pool", daemon=True)
            self._watcher.start()
        elif self._dozes:
            self._dozes = False
            self._alarm.set()

    def _watching(self) -> None:
        """Every 20 ms while calls run, every second otherwise, woken by the next call; ends itself when the pool is
        empty."""
        while True:
            with self._changed:
                if not self._running and not self._idle:
                    self._watcher = None
                    return
                running = list(self._running.values())
                now = self.clock()
                expired = [p for p, (_, used) in self._idle.items() if now - used > self.idle_seconds]
                for process in expired:
                    del self._idle[process]
                resting = [(p, used) for p, (_, used) in self._idle.items() if not p.is_paused]
                for process, used in resting:  # under the lock: nobody can take one that is about to be stopped
                    if now - used >= self.PAUSE_AFTER:
                        process.pause()
                self._dozes = not running and not resting
                self._alarm.clear()
            for process in expired:
                self._discard(process)
            for each in running:
                if each.process.rss_bytes() > each.limit_bytes:
                    each.process.kill("memory")
            self._alarm.wait(min(1.0, self.idle_seconds / 4) if self._dozes else 0.02)


__all__ = ["Busy", "LoadFailed", "Pool", "Program"]
