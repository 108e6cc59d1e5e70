"""The lane: Django runs in one thread at a time, and another joins only while that one is stuck.

Threads that run Python in one process fight for the interpreter lock, so more of them serve fewer requests; but one
thread alone would stop serving whenever it waits for a lock in PostgreSQL, a password hash or a function. So one thread
holds the lane. If requests are waiting and the holder has been in one request for longer than `patience`, it is set
aside: the lane passes to an idle thread, or a new one while there are fewer than `most`. A thread that was set aside
finishes its request and then rests. A job that knows that it will wait steps aside itself, at once, unless
`most_aside` others did: with more of them they would wait for the interpreter lock. What waited longer than
`longest_wait` is refused.

Nothing here knows of HTTP or Django. `submit`, `stop` and the timer run on the event loop's thread, the rest anywhere.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

logger = logging.getLogger(__name__)

Job = TypeVar("Job")


class CallLater(Protocol):
    def __call__(self, delay: float, callback: Callable[[], None], /) -> Any: ...


class ElasticThreadPool(Generic[Job]):
    """A line of jobs and the threads that do them.

    `work(job)` runs in a lane thread and must not raise; `refuse(job)` runs on the loop for a job that waited too long;
    `leave()` runs in a thread that retires (it closes the thread's database connections). Times are in seconds.
    """

    def __init__(
        self,
        *,
        work: Callable[[Job], None],
        refuse: Callable[[Job], None],
        leave: Callable[[], None],
        later: CallLater,
        most: int = 16,
        most_aside: int = 4,
        patience: float = 0.010,
        longest_wait: float = 2.0,
        linger: float = 30.0,
    ) -> None:
        self._work, self._refuse, self._leave, self._later = work, refuse, leave, later
        self._most_aside = most_aside
        self._aside: set[_Thread] = set()
        self._most, self._patience, self._longest_wait, self._linger = most, patience, longest_wait, linger
        self._lock = threading.Lock()
        self._line: deque[tuple[float, Job]] = deque()
        self._holder: _Thread | None = None
        self._idle: list[_Thread] = []
        self._threads: set[_Thread] = set()
        self._timer_set = False
        self._stopping = False

    @property
    def threads(self) -> int:
        """How many threads there are now, at work or idle."""
        return len(self._threads)

    @property
    def waiting(self) -> int:
        """How many jobs have not started."""
        return len(self._line)

    def submit(self, job: Job) -> None:
        """Put a job at the end of the line."""
        now = time.monotonic()
        with self._lock:
            self._line.append((now, job))
            if self._holder is None:
                self._pass_on(now)
            alarm, self._timer_set = not self._timer_set, True
        if alarm:
            self._later(self._patience, self._tick)

    def step_aside(self) -> None:
        """Called in a job that will wait from here on: another thread takes the lane now. Nothing elsewhere, and where
        `most_aside` have done so already."""
        thread = threading.current_thread()
        with self._lock:
            if self._holder is thread and isinstance(thread, _Thread) and len(self._aside) < self._most_aside:
                self._aside.add(thread)
                self._holder = None
                if self._line:
                    self._pass_on(time.monotonic())

    def stop(self, seconds: float = 5.0) -> None:
        """Let running and waiting jobs end, then the threads; wait up to `seconds` for that."""
        deadline = time.monotonic() + seconds
        with self._lock:
            self._stopping = True
            idle, self._idle = self._idle, []
            threads = list(self._threads)
        for thread in idle:
            thread.gate.release()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _pass_on(self, now: float) -> None:
        """Give the lane to a rested thread or a new one; with neither, leave it as it is. Call with the lock held."""
        if self._idle:
            holder = self._idle.pop()  # the one that rested last: its caches are warm, and the others can retire
            holder.began = now
            self._holder = holder
            holder.gate.release()
        elif len(self._threads) < self._most:
            holder = _Thread(self, now)
            self._threads.add(holder)
            self._holder = holder
            try:
                holder.start()
            except RuntimeError:  # the system has no more threads: go on with those we have
                logger.exception("a lane thread could not be started")
                self._threads.discard(holder)
                self._holder = None

    def _tick(self) -> None:
        """While jobs wait: refuse the ones that waited too long, and pass a stuck holder by."""
        now = time.monotonic()
        late: list[Job] = []
        with self._lock:
            while self._line and now - self._line[0][0] >= self._longest_wait:
                late.append(self._line.popleft()[1])
            again: float | None = None
            if self._line:
                if self._holder is None or now - self._holder.began >= self._patience:
                    self._pass_on(now)
                    again = self._patience
                else:
                    again = self._holder.began + self._patience - now
            self._timer_set = again is not None
        if again is not None:
            self._later(max(0.001, again), self._tick)
        for job in late:
            self._refuse(job)

    def _next(self, thread: "_Thread") -> Job | None:
        """What `thread` does next; None: retire. Called by the thread itself; rests in here."""
        while True:
            with self._lock:
                self._aside.discard(thread)
                now = time.monotonic()
                holder = self._holder
                if self._line and holder is not thread and (holder is None or now - holder.began >= self._patience):
                    holder = self._holder = thread
                if holder is thread:
                    if self._line:
                        thread.began = now
                        return self._line.popleft()[1]
                    self._holder = None
                if self._stopping:
                    self._threads.discard(thread)
                    return None
                self._idle.append(thread)
            while not thread.gate.acquire(timeout=self._linger):
                with self._lock:
                    if thread in self._idle and len(self._threads) > 1:
                        self._idle.remove(thread)
                        self._threads.discard(thread)
                        return None


class _Thread(threading.Thread):
    def __init__(self, lane: ElasticThreadPool[Any], now: float) -> None:
        super().__init__(name="lane", daemon=True)
        self.lane = lane
        self.began = now
        """When it was given the lane or began its present job."""
        self.gate = threading.Lock()
        self.gate.acquire()

    def run(self) -> None:
        lane = self.lane
        try:
            while (job := lane._next(self)) is not None:
                try:
                    lane._work(job)
                except BaseException:  # whatever it is, the lane must not lose its holder
                    logger.exception("a job in the lane raised")
                del job  # while resting, hold on to nothing
        finally:
            lane._leave()
