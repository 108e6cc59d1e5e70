"""The pool of warm function processes of one worker. A process belongs to one (environment, function, version) for
life. Concurrent calls of one program queue for its few processes: starting a process costs as much as a hundred calls.
So another one is started only for a call that has waited `QUEUE_SECONDS`, and at once if calls are known to be slow."""

import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from functions.runtime import imports, programs
from functions.runtime.calls import Call, Host, Outcome
from functions.runtime.calls_ahead import QueuedCall, RunFrame
from functions.runtime.errors import LoadFailed, ProcessGone, StartFailed
from functions.runtime.process import Process
from functions.runtime.programs import Busy, Ending, Program, ProgramProcesses
from platform_site.concurrency import loop_requests
from platform_site.concurrency.fair_semaphore import FairSemaphore, Full


@dataclass(eq=False, kw_only=True)
class Pool:
    """At most `size` processes, running ones included. Thread-safe."""

    size: int
    idle_seconds: float
    max_calls: int
    wait_seconds: float
    load_seconds: float = 10.0
    required_sandbox_layers: frozenset[str] = frozenset()
    clock: Callable[[], float] = time.monotonic

    MEMORY_OVERHEAD_MB = 96
    """Memory of Deno itself, beyond the tenant's heap limit."""
    SHORT_CALL = 0.02
    PAUSE_AFTER = 0.05
    """Seconds without a call after which a process is stopped (SIGSTOP), so that busy ones need no signals."""
    QUEUE_SECONDS = 0.05
    """About the time of a start."""
    STARTS_AT_ONCE = 2
    """Per program, so that a burst of first calls does not start a process for each."""
    MAX_CHECKS = 3
    """Concurrent checks of deployments. Their processes are in addition to `size`, so they are few."""
    SLOW_CHECK = 3.0
    """Seconds that a check may always take, even if others wait."""
    MAX_WAITING_CHECKS = 4

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._idle: OrderedDict[Process, tuple[str, float]] = OrderedDict()  # oldest use first
        self._running: dict[str, Process] = {}
        self._by_program: defaultdict[str, ProgramProcesses] = defaultdict(ProgramProcesses)
        self._process_count = 0
        self._watcher: threading.Thread | None = None
        self._waits_long = False
        self._wake_up = threading.Event()
        self._closed = False
        # A child that is killed with its parent is killed when the thread that started it ends. Server threads end.
        self._starter = ThreadPoolExecutor(1, "function-starter")
        self._checks = FairSemaphore(
            self.MAX_CHECKS,
            per_owner=self.MAX_CHECKS - 1,
            slow_after=self.SLOW_CHECK,
            max_waiting=self.MAX_WAITING_CHECKS,
        )

    # ── calls ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def call(self, program: Program, call: Call, host: Host) -> Outcome:
        """Run `call` in a warm or new process. Raises Busy if none became free within `wait_seconds`, LoadFailed for a
        module that does not load, StartFailed where Deno does not start."""
        for _ in range(3):
            acquired = self._acquire(program, call)
            if acquired is None:
                return loop_requests.in_thread(partial(self.call, program, call, host))
            process, sent_ahead = acquired
            try:
                try:
                    with self._lock:
                        self._running[call.run_id] = process
                        self._watch()
                    outcome = process.call(call, host, sent_ahead)
                finally:
                    with self._lock:
                        if self._running.get(call.run_id) is process:  # not a later attempt's
                            del self._running[call.run_id]
            except ProcessGone:
                self._discard(process, program.key)
            except BaseException:
                self._discard(process, program.key)
                raise
            else:
                outcome.sandbox_layers = tuple(process.sandbox_layers)
                self._finish_call(process, program, outcome)
                return outcome
        raise Busy("no process took the call")

    def cancel(self, run_id: str) -> bool:
        """False if it is not running here."""
        with self._lock:  # held until it is killed: the process may run another call right after
            process = self._running.get(run_id)
            if process is not None:
                process.kill("cancelled")
        return process is not None

    def warm(self, program: Program) -> None:
        """Start and load a process before its first call, if the pool is not full. Raises LoadFailed."""
        with self._lock:
            if (
                self._closed
                or self._process_count >= self.size
                or any(key == program.key for key, _ in self._idle.values())
            ):
                return
            self._count_new(program.key)
        self._add_idle(self._start(program), program.key)

    def check(self, program: Program) -> None:
        """Load a program in a process beyond `size`, and end it. Raises LoadFailed, StartFailed, and Busy: if no check
        could start, or if this one took longer than `SLOW_CHECK` while others waited."""
        ending = Ending()
        try:
            with self._checks.slot(
                program.owner, wait=self.SLOW_CHECK + self.wait_seconds, on_reclaim=ending.end
            ) as slot:
                process = self._start_process(program)
                try:
                    ending.set_process(process)
                    process.wait_until_ready()
                    process.load(program.source, seconds=self.load_seconds)
                except (LoadFailed, StartFailed):
                    if slot.is_reclaimed:
                        raise Busy("loading took too long while other deployments waited for their check") from None
                    raise
                finally:
                    ending.set_process(None)
                    process.close()
        except Full:
            raise Busy("too many other deployments are being checked") from None

    def sizes(self) -> tuple[int, int]:
        """Idle and running processes."""
        with self._lock:
            return len(self._idle), len(self._running)

    def close(self) -> None:
        """Running calls end as crashed."""
        with self._lock:
            self._closed = True
            processes = [*self._idle, *self._running.values()]
            self._idle.clear()
            self._changed.notify_all()
            for group in self._by_program.values():
                while group.waiting:
                    group.wake_next()
        for process in processes:
            process.close()
        self._starter.shutdown(wait=False)

    # ── processes ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def _acquire(self, program: Program, call: Call) -> tuple[Process, RunFrame | None] | None:
        """A process of the program that is free for the call, and the frame if the call was sent to it ahead. On the
        event loop None if a thread is needed, which may start a process. Raises as `call`."""
        on_loop = loop_requests.current() is not None
        began = time.monotonic()
        deadline, patient_until = began + self.wait_seconds, began + min(self.QUEUE_SECONDS, self.wait_seconds)
        with self._lock:
            while True:
                if self._closed:
                    raise Busy("the pool is closed")
                group = self._by_program[program.key]
                if (process := self._take_idle(program.key)) is not None:
                    if on_loop:
                        group.on_loop.add(process)
                    return process, None
                ahead = self._send_ahead(group, call) if on_loop else None
                if ahead is not None:
                    break
                # None is idle: those that are alive are starting, run calls, or are being closed.
                is_free_soon = group.starting or (group.alive and group.mean_seconds <= self.QUEUE_SECONDS)
                until = deadline if group.starting >= self.STARTS_AT_ONCE else patient_until
                if is_free_soon and (left := until - time.monotonic()) > 0:
                    self._wait_for_process(group, left)
                elif on_loop:
                    self._remove_if_unused(program.key)
                    return None
                elif self._process_count < self.size or self._idle:
                    evicted = self._count_new(program.key)
                    break
                elif not self._changed.wait(max(0.0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                    self._remove_if_unused(program.key)
                    raise Busy("every process is busy")
        if ahead is not None:
            process, queued = ahead
            return (process, queued.frame) if process.ahead.wait(queued, self.QUEUE_SECONDS) else None
        if evicted is not None:
            evicted.close()
        return self._start(program), None

    def _take_idle(self, key: str) -> Process | None:
        """The one that was used last. Call with the lock held."""
        for process in reversed(self._idle):
            if self._idle[process][0] == key:
                del self._idle[process]
                process.resume()
                return process
        return None

    def _send_ahead(self, group: ProgramProcesses, call: Call) -> tuple[Process, QueuedCall] | None:
        """The process that will run the call after short ones, if no thread waits. Call with the lock held."""
        if not group.on_loop or group.waiting or group.mean_seconds > self.SHORT_CALL:
            return None
        process = min(group.on_loop, key=lambda each: len(each.ahead))
        queued = process.ahead.send(call) if process.killed_for is None else None
        return None if queued is None else (process, queued)

    def _wait_for_process(self, group: ProgramProcesses, seconds: float) -> None:
        """Call with the lock held. A woken call may find the process taken by a newer one and wait again: a running
        thread is cheaper than one that must be woken."""
        gate = loop_requests.Gate()
        group.waiting.append(gate)
        self._lock.release()  # every request on the event loop would hold it
        try:
            gate.wait(seconds)
        finally:
            self._lock.acquire()
            if gate in group.waiting:
                group.waiting.remove(gate)

    def _count_new(self, key: str) -> Process | None:
        """In a full pool the new process replaces the returned one, which is to be closed. Call with the lock held."""
        evicted: Process | None = None
        if self._process_count >= self.size:
            evicted = programs.least_used(self._idle, self.clock())
            self._count_ended(self._idle.pop(evicted)[0])
        self._process_count += 1
        group = self._by_program[key]
        group.alive += 1
        group.starting += 1
        return evicted

    def _count_started(self, key: str) -> None:
        with self._lock:
            group = self._by_program[key]
            group.starting -= 1
            group.wake_next()

    def _count_ended(self, key: str) -> None:
        with self._lock:
            self._process_count -= 1
            group = self._by_program[key]
            group.alive -= 1
            group.wake_next()  # it may have to start one itself now
            self._remove_if_unused(key)
            self._changed.notify()

    def _remove_if_unused(self, key: str) -> None:
        group = self._by_program.get(key)  # if two callers gave up, the first removed it
        if group is not None and not group.alive and not group.waiting:
            del self._by_program[key]

    def _start(self, program: Program) -> Process:
        """Call after `_count_new`."""
        process: Process | None = None
        try:
            process = self._start_process(program)
            process.wait_until_ready()
            process.load(program.source, seconds=self.load_seconds)
        except BaseException:
            if process is not None:
                process.close()
            self._count_started(program.key)
            self._count_ended(program.key)
            raise
        self._count_started(program.key)
        return process

    def _start_process(self, program: Program) -> Process:
        preloaded = imports.preloaded(program.source)
        return self._starter.submit(Process, program.memory_mb, self.required_sandbox_layers, preloaded).result()

    def _finish_call(self, process: Process, program: Program, outcome: Outcome) -> None:
        with self._lock:
            group = self._by_program[program.key]
            group.mean_seconds += (outcome.duration - group.mean_seconds) / 4
        # Reading its memory takes time, compared with a short call.
        checks_memory = outcome.duration > self.SHORT_CALL or process.calls % 8 == 0
        most = (program.memory_mb * 3 // 4 + self.MEMORY_OVERHEAD_MB) * 1024 * 1024
        if (
            outcome.reason not in (None, "user_error", "output_too_large")
            or process.killed_for is not None  # it may still seem alive, and the next call would fail
            or process.calls >= self.max_calls
            or process.ahead.has_abandoned_call
            or (checks_memory and (process.rss_bytes() > most or process.grew_threads()))
        ):
            self._discard(process, program.key)
        elif not process.ahead.next():
            self._add_idle(process, program.key)

    def _add_idle(self, process: Process, key: str) -> None:
        with self._lock:
            if not self._closed:
                group = self._by_program[key]
                group.on_loop.discard(process)
                now = self.clock()
                programs.record_use(process, now)
                self._idle[process] = (key, now)
                self._watch()
                group.wake_next()
                self._changed.notify()  # another program may need the slot
                return
        process.close()

    def _discard(self, process: Process, key: str) -> None:
        with self._lock:
            self._by_program[key].on_loop.discard(process)
        process.ahead.reject_all()
        loop_requests.in_thread(process.close)
        self._count_ended(key)

    # ── the watcher ─────────────────────────────────────────────────────────────────────────────────────────────────
    def _watch(self) -> None:
        if self._watcher is None:
            watcher = threading.Thread(target=self._run_watcher, name="function-pool", daemon=True)
            watcher.start()  # raises if the system has no more threads: then the next call tries again
            self._watcher = watcher
        elif self._waits_long:
            self._waits_long = False
            self._wake_up.set()

    def _run_watcher(self) -> None:
        try:
            self._check_periodically()
        except BaseException:
            with self._lock:
                self._watcher = None
            raise

    def _check_periodically(self) -> None:
        """Every 20 ms while calls run, every second otherwise, woken by the next call."""
        while True:
            with self._lock:
                if not self._running and not self._idle:
                    self._watcher = None
                    return
                running = list(self._running.items())
                now = self.clock()
                expired = [(p, key) for p, (key, used) in self._idle.items() if now - used > self.idle_seconds]
                for process, _ in expired:
                    del self._idle[process]
                resting = [(p, used) for p, (_, used) in self._idle.items() if not p.is_paused]
                for process, used in resting:  # under the lock, so that no process is taken that is about to be stopped
                    if now - used >= self.PAUSE_AFTER:
                        process.pause()
                self._waits_long = not running and not resting
                self._wake_up.clear()
            for process, key in expired:
                self._discard(process, key)
            for run_id, process in running:
                if process.rss_bytes() > (process.memory_mb + self.MEMORY_OVERHEAD_MB) * 1024 * 1024:
                    with self._lock:
                        if self._running.get(run_id) is process:
                            process.kill("memory")
                process.interrupt_late_host()
            self._wake_up.wait(min(1.0, self.idle_seconds / 4) if self._waits_long else 0.02)
