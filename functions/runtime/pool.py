"""The pool of warm function processes of one worker: bounded; the coldest are evicted, idle ones end. A process belongs
to one (environment, function, version) for life. Concurrent calls of one program queue for its few processes: a call is
short, and starting a process costs as much as a hundred calls. Another process is started only for a call that has
waited `QUEUE_SECONDS`, and at once if calls are known to be slow. One thread watches memory every 20 ms while calls
run, and ends idle processes. Another thread starts all processes, because the kernel ends a child that asked to die
with its parent when the *thread* that started it ends, and server threads come and go."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from functions.runtime import imports, programs
from functions.runtime.calls import Call, Host, Outcome
from functions.runtime.calls_ahead import Turn
from functions.runtime.errors import LoadFailed, ProcessGone, StartFailed
from functions.runtime.process import Process
from functions.runtime.programs import Busy, Ending, Program, ProgramProcesses, Running
from platform_site.concurrency import loop_requests
from platform_site.concurrency.fair_semaphore import FairSemaphore, Full


class Pool:
    """At most `size` processes, running ones included. Thread-safe."""

    MEMORY_OVERHEAD_MB = 96
    """What Deno itself weighs beyond the tenant's heap limit."""
    SHORT_CALL = 0.02
    PAUSE_AFTER = 0.05
    """Seconds without a call after which a process is stopped: one that is called all the time need not be woken."""
    QUEUE_SECONDS = 0.05
    """What a call waits for a process of its program before it starts another: about what that takes."""
    STARTS_AT_ONCE = 2
    """Of one program: a burst of first calls does not start a process for each."""
    MOST_CHECKS = 3
    """Deployments that are tried out at the same time: they come on top of `size`, so they are few."""
    FIRM_CHECK = 3.0
    """Seconds in which a deployment is tried out whoever else waits for that
    (`platform_site.concurrency.fair_semaphore`)."""
    WAITING_CHECKS = 4

    def __init__(
        self,
        *,
        size: int,
        idle_seconds: float,
        max_calls: int,
        wait_seconds: float,
        load_seconds: float = 10.0,
        required_sandbox_layers: frozenset[str] = frozenset(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.size = size
        self.idle_seconds = idle_seconds
        self.max_calls = max_calls
        self.wait_seconds = wait_seconds
        self.load_seconds = load_seconds
        self.required_sandbox_layers = required_sandbox_layers
        self.clock = clock
        self._lock = threading.RLock()
        # Entered by the lock itself throughout, which takes no call of Python.
        self._changed = threading.Condition(self._lock)
        self._idle: OrderedDict[Process, tuple[str, float]] = OrderedDict()  # oldest use first
        self._running: dict[str, Running] = {}
        self._crowds: dict[str, ProgramProcesses] = {}
        self._places = 0
        self._watcher: threading.Thread | None = None
        self._dozes = False
        self._alarm = threading.Event()
        self._closed = False
        self._starter = ThreadPoolExecutor(1, "function-starter")
        self._checks = FairSemaphore(
            self.MOST_CHECKS, each=self.MOST_CHECKS - 1, firm=self.FIRM_CHECK, line=self.WAITING_CHECKS
        )

    # ── calls ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def call(self, program: Program, call: Call, host: Host) -> Outcome:
        """Run `call` in a warm process of `program`, or in a new one. Raises Busy when no place came free within
        `wait_seconds`, LoadFailed for a module that does not load, StartFailed where Deno does not start."""
        for _ in range(3):
            taken = self._take(program, call)
            if taken is None or (taken[2] is not None and not taken[0].ahead.wait(taken[2], self.QUEUE_SECONDS)):
                return loop_requests.in_thread(partial(self.call, program, call, host))
            process, is_warm, turn = taken
            try:
                if not is_warm:
                    self._load(process, program)
                with self._lock:
                    limit = (program.memory_mb + self.MEMORY_OVERHEAD_MB) * 1024 * 1024
                    self._running[call.run_id] = Running(process, limit)
                    self._watch()
                try:
                    outcome = process.call(call, host, None if turn is None else turn.sent)
                finally:
                    with self._lock:
                        self._running.pop(call.run_id, None)
            except ProcessGone:
                self._discard(process, program.key, was_busy=True)
                continue
            except BaseException:
                self._discard(process, program.key, was_busy=True)
                raise
            outcome.sandbox_layers = tuple(process.sandbox_layers)
            self._give_back(process, program, outcome)
            return outcome
        raise Busy("no process took the call")

    def cancel(self, run_id: str) -> bool:
        """End a run of this pool. False if it is not running here."""
        with self._lock:  # until it is killed: the process may be another run's the moment after
            running = self._running.get(run_id)
            if running is not None:
                running.process.kill("cancelled")
        return running is not None

    def warm(self, program: Program) -> None:
        """Start and load a process ahead of its first call; nothing where no place is free. Raises LoadFailed."""
        with self._lock:
            if self._closed or self._places >= self.size or any(key == program.key for key, _ in self._idle.values()):
                return
            self._places += 1
            crowd = self._crowd_of(program.key)
            crowd.alive += 1
            crowd.starting += 1
        process = self._made(program, was_busy=False)
        try:
            self._load(process, program)
        except BaseException:
            self._discard(process, program.key, was_busy=False)
            raise
        self._shelve(process, program.key, was_busy=False)

    def check(self, program: Program) -> None:
        """Load a program in a process of its own, outside of the pool's places, and end it. Raises LoadFailed,
        StartFailed, and Busy when `MOST_CHECKS` others took longer than `wait_seconds` beyond the time that each has at
        least, or when others wait and this one had its time."""
        ending = Ending()
        try:
            with self._checks.held(
                program.owner, wait=self.FIRM_CHECK + self.wait_seconds, give_way=ending.end
            ) as place:
                process = self._started(program)
                try:
                    ending.reaches(process)
                    process.wait_until_ready()
                    process.load(program.source, seconds=self.load_seconds)
                except (LoadFailed, StartFailed):
                    if place.is_leaving:
                        raise Busy("loading took too long while other deployments waited for their check") from None
                    raise
                finally:
                    ending.reaches(None)
                    process.close()
        except Full:
            raise Busy("too many other deployments are being checked") from None

    def sizes(self) -> tuple[int, int]:
        """How many processes are idle, and how many run a call."""
        with self._lock:
            return len(self._idle), len(self._running)

    def close(self) -> None:
        """End everything. Running calls end as crashed."""
        with self._lock:
            self._closed = True
            gone = [*self._idle, *(running.process for running in self._running.values())]
            self._idle.clear()
            self._changed.notify_all()
            for crowd in self._crowds.values():
                while crowd.line:
                    crowd.call_next()
        for process in gone:
            process.close()
        self._starter.shutdown(wait=False)

    # ── places ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def _take(self, program: Program, call: Call) -> tuple[Process, bool, Turn | None] | None:
        """A process of the program, and whether it is warm; if not, it has a place. On the event loop a warm one, one
        that runs another call with the turn of this one, or None: nothing may be started or waited for there."""
        on_loop = loop_requests.current() is not None
        began = time.monotonic()
        deadline, patient_until = began + self.wait_seconds, began + min(self.QUEUE_SECONDS, self.wait_seconds)
        evicted: Process | None = None
        with self._lock:
            while True:
                if self._closed:
                    raise Busy("the pool is closed")
                for process in reversed(self._idle):
                    if self._idle[process][0] == program.key:
                        del self._idle[process]
                        process.resume()
                        crowd = self._crowds[program.key]
                        crowd.busy += 1
                        if on_loop:
                            crowd.on_loop.add(process)
                        return process, True, None
                crowd = self._crowd_of(program.key)
                if on_loop and (following := self._following(crowd, call)) is not None:
                    return following
                until = deadline if crowd.starting >= self.STARTS_AT_ONCE else patient_until
                short = crowd.usual <= self.QUEUE_SECONDS
                if (crowd.starting or (crowd.busy and short)) and (left := until - time.monotonic()) > 0:
                    self._stand_in_line(crowd, left)
                    continue
                if on_loop:
                    self._forget_crowd(program.key)
                    return None
                if self._places < self.size:
                    self._places += 1
                    break
                if self._idle:
                    evicted = programs.coldest(self._idle, self.clock())
                    self._leave(self._idle.pop(evicted)[0])
                    break
                if not self._changed.wait(max(0.0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                    self._forget_crowd(program.key)
                    raise Busy("every process is busy")
            crowd = self._crowd_of(program.key)
            crowd.alive += 1
            crowd.busy += 1
            crowd.starting += 1
        if evicted is not None:
            evicted.close()  # its place becomes ours
        return self._made(program, was_busy=True), False, None

    def _following(self, crowd: ProgramProcesses, call: Call) -> tuple[Process, bool, Turn | None] | None:
        """The process that will run the call behind short ones, if no thread waits. Call with the lock held."""
        if not crowd.on_loop or crowd.line or crowd.usual > self.SHORT_CALL:
            return None
        process = min(crowd.on_loop, key=lambda each: len(each.ahead))
        turn = process.ahead.send(call) if process.killed_for is None else None
        return None if turn is None else (process, True, turn)

    def _stand_in_line(self, crowd: ProgramProcesses, seconds: float) -> None:
        """Wait until one of its processes is free. Call with the lock held. A woken call may find the process taken by
        a newer one and wait again: a running thread is cheaper than one that must be woken."""
        mine = loop_requests.Gate()
        crowd.line.append(mine)
        self._lock.release()  # on the event loop it would be everybody's
        try:
            mine.wait(seconds)
        finally:
            self._lock.acquire()
            if mine in crowd.line:
                crowd.line.remove(mine)

    def _crowd_of(self, key: str) -> ProgramProcesses:
        crowd = self._crowds.get(key)
        if crowd is None:
            crowd = self._crowds[key] = ProgramProcesses()
        return crowd

    def _leave(self, key: str) -> None:
        """One process of the program less. Call with the lock held."""
        crowd = self._crowds[key]
        crowd.alive -= 1
        crowd.call_next()  # it may have to start one itself now
        self._forget_crowd(key)

    def _forget_crowd(self, key: str) -> None:
        crowd = self._crowds.get(key)  # of two who gave up, the first did
        if crowd is not None and not crowd.alive and not crowd.line:
            del self._crowds[key]

    def _load(self, process: Process, program: Program) -> None:
        try:
            process.wait_until_ready()
            process.load(program.source, seconds=self.load_seconds)
        finally:
            self._has_started(program.key)

    def _has_started(self, key: str) -> None:
        with self._lock:
            crowd = self._crowds[key]
            crowd.starting -= 1
            crowd.call_next()

    def _started(self, program: Program) -> Process:
        ahead = imports.ahead(program.source)
        return self._starter.submit(
            Process, program.memory_mb, program.owner, self.required_sandbox_layers, ahead
        ).result()

    def _made(self, program: Program, *, was_busy: bool) -> Process:
        try:
            return self._started(program)
        except BaseException:
            self._has_started(program.key)
            self._free_place(program.key, was_busy=was_busy)
            raise

    def _give_back(self, process: Process, program: Program, outcome: Outcome) -> None:
        with self._lock:
            self._crowds[program.key].took(outcome.duration)
        # One that was killed as its call ended may look alive for a moment, and would be the next call's end.
        healthy = outcome.reason in (None, "user_error", "output_too_large") and process.killed_for is None
        is_worn = process.calls >= self.max_calls
        if (
            not healthy
            or is_worn
            or process.ahead.has_stray
            or (self._is_due(process, outcome) and self._has_grown(process, program))
        ):
            self._discard(process, program.key, was_busy=True)
        elif not process.ahead.next():
            self._shelve(process, program.key, was_busy=True)

    def _is_due(self, process: Process, outcome: Outcome) -> bool:
        """Whether to look how large it is: after every call but short ones, of which every eighth."""
        return outcome.duration > self.SHORT_CALL or process.calls % 8 == 0

    def _has_grown(self, process: Process, program: Program) -> bool:
        most = (program.memory_mb * 3 // 4 + self.MEMORY_OVERHEAD_MB) * 1024 * 1024
        return process.rss_bytes() > most or process.grew_threads()

    def _shelve(self, process: Process, key: str, *, was_busy: bool) -> None:
        with self._lock:
            if not self._closed:
                crowd = self._crowds[key]
                crowd.busy -= was_busy
                crowd.on_loop.discard(process)
                now = self.clock()
                programs.heat(process, now)
                self._idle[process] = (key, now)
                self._watch()
                crowd.call_next()
                self._changed.notify()  # another program may need the slot
                return
        process.close()

    def _discard(self, process: Process, key: str, *, was_busy: bool) -> None:
        with self._lock:
            self._crowds[key].on_loop.discard(process)
        process.ahead.dismiss()
        loop_requests.in_thread(process.close)
        self._free_place(key, was_busy=was_busy)

    def _free_place(self, key: str, *, was_busy: bool) -> None:
        with self._lock:
            self._places -= 1
            self._crowds[key].busy -= was_busy
            self._leave(key)
            self._changed.notify()

    # ── the watcher ─────────────────────────────────────────────────────────────────────────────────────────────────
    def _watch(self) -> None:
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watching, name="function-pool", daemon=True)
            self._watcher.start()
        elif self._dozes:
            self._dozes = False
            self._alarm.set()

    def _watching(self) -> None:
        """Until the pool is empty; whatever ends it sooner leaves it to the next call to begin anew."""
        try:
            self._look_on()
        except BaseException:
            with self._lock:
                self._watcher = None
            raise

    def _look_on(self) -> None:
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
                self._dozes = not running and not resting
                self._alarm.clear()
            for process, key in expired:
                self._discard(process, key, was_busy=False)
            for run_id, each in running:
                if each.process.rss_bytes() > each.limit_bytes:
                    with self._lock:
                        if self._running.get(run_id) is each:
                            each.process.kill("memory")
                each.process.hurry()
            self._alarm.wait(min(1.0, self.idle_seconds / 4) if self._dozes else 0.02)
