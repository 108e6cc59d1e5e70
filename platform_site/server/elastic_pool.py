"""A thread pool in which one thread at a time is active, because threads compete for the interpreter lock. The active
thread runs the queued jobs, one after the other. Another one becomes active when its job is stuck (has run for
`stuck_after`), or calls `will_wait`; the thread that was replaced finishes its job, and is idle then if the other one
is still active. Clients (`client_of`) take turns. Jobs that have waited for `queue_timeout` are refused."""

import logging
import threading
import time
from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Generic, TypeVar

logger = logging.getLogger(__name__)

Job = TypeVar("Job")


@dataclass(eq=False, kw_only=True)
class ElasticThreadPool(Generic[Job]):
    """`work(job)` runs in a thread; `on_retire()` in an ending thread, to close connections; `refuse(job)` on the event
    loop, where `submit` is called. Times in seconds."""

    work: Callable[[Job], None]
    refuse: Callable[[Job], None]
    on_retire: Callable[[], None]
    call_later: Callable[[float, Callable[[], None]], object]
    client_of: Callable[[Job], str]
    max_threads: int = 16
    max_waiting: int = 4
    """Jobs that are replaced because they called `will_wait`; further ones must be stuck."""
    stuck_after: float = 0.010
    queue_timeout: float = 2.0
    idle_seconds: float = 30.0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[str, deque[tuple[float, Job]]] = {}
        """By client, in the order of their next turns."""
        self._active: _Thread | None = None
        self._idle: list[_Thread] = []
        self._threads: set[_Thread] = set()
        self._waiting_threads: set[threading.Thread] = set()
        self._has_timer = False
        self._is_stopping = False

    def submit(self, job: Job, since: float | None = None) -> None:
        """`since` (`time.monotonic`): since when it waits, if it has waited elsewhere before."""
        now = time.monotonic()
        new = None
        with self._lock:
            queue = self._queues.setdefault(self.client_of(job), deque())
            insort(queue, (now if since is None else since, job), key=itemgetter(0))
            if self._active is None:
                new = self._activate_another(now)
            had_timer, self._has_timer = self._has_timer, True
        self._start(new)
        if not had_timer:
            self.call_later(self.stuck_after, self._check_queue)

    def will_wait(self) -> None:
        """Called in a job, before it waits."""
        thread = threading.current_thread()
        new = None
        with self._lock:
            if self._active is thread and len(self._waiting_threads) < self.max_waiting:
                self._waiting_threads.add(thread)
                self._active = None
                if self._queues:
                    new = self._activate_another(time.monotonic())
        self._start(new)

    def stop(self, seconds: float = 5.0) -> None:
        """End running and queued jobs, then the threads, within `seconds`."""
        deadline = time.monotonic() + seconds
        with self._lock:
            self._is_stopping = True
            idle, self._idle = self._idle, []
            threads = list(self._threads)
        for thread in idle:
            thread.may_run.release()
        for thread in threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _activate_another(self, now: float) -> "_Thread | None":
        """Returns a new thread, to be started without the lock: a start can take long on a busy machine."""
        if self._idle:
            active = self._idle.pop()  # the one that worked last: its caches are warm, and the others can end
            active.began = now
            self._active = active
            active.may_run.release()
        elif len(self._threads) < self.max_threads:
            active = _Thread(self, now)
            self._threads.add(active)
            self._active = active
            return active
        return None

    def _start(self, new: "_Thread | None") -> None:
        if new is None:
            return
        try:
            new.start()
        except RuntimeError:  # the system has no more threads: go on with those we have
            logger.exception("a thread for requests could not be started")
            with self._lock:
                self._threads.discard(new)
                if self._active is new:
                    self._active = None

    def _check_queue(self) -> None:
        """Runs while jobs are queued: removes late ones, and replaces a stuck thread."""
        now = time.monotonic()
        new = None
        late: list[Job] = []
        with self._lock:
            for client, queue in list(self._queues.items()):
                while queue and now - queue[0][0] >= self.queue_timeout:
                    late.append(queue.popleft()[1])
                if not queue:
                    del self._queues[client]
            self._has_timer = bool(self._queues)
            due = now if self._active is None else self._active.began + self.stuck_after
            if self._queues and due <= now:
                new, due = self._activate_another(now), now + self.stuck_after
        self._start(new)
        if self._has_timer:
            self.call_later(max(0.001, due - now), self._check_queue)
        for job in late:
            self.refuse(job)

    def _next_job(self, thread: "_Thread") -> Job | None:
        """Waits for a job; None to end the thread."""
        while True:
            with self._lock:
                self._waiting_threads.discard(thread)
                job = self._take_job(thread, time.monotonic())
                if job is not None:
                    return job
                if self._is_stopping:
                    self._threads.discard(thread)
                    return None
                self._idle.append(thread)
            while not thread.may_run.acquire(timeout=self.idle_seconds):
                with self._lock:
                    if thread in self._idle and len(self._threads) > 1:
                        self._idle.remove(thread)
                        self._threads.discard(thread)
                        return None

    def _take_job(self, thread: "_Thread", now: float) -> Job | None:
        """If this thread is the active one, or becomes it, since there is none or it is stuck. With the lock held."""
        active = self._active
        if active is not thread and active is not None and now - active.began < self.stuck_after:
            return None
        if not self._queues:
            if active is thread:
                self._active = None
            return None
        self._active, thread.began = thread, now
        client, queue = next(iter(self._queues.items()))
        del self._queues[client]
        _, job = queue.popleft()
        if queue:
            self._queues[client] = queue  # behind the others
        return job


class _Thread(threading.Thread):
    def __init__(self, pool: ElasticThreadPool[Any], now: float) -> None:
        super().__init__(name="requests", daemon=True)
        self.pool = pool
        self.began = now
        self.may_run = threading.Lock()
        self.may_run.acquire()

    def run(self) -> None:
        pool = self.pool
        try:
            while (job := pool._next_job(self)) is not None:
                try:
                    pool.work(job)
                except BaseException:  # the thread must go on
                    logger.exception("a job raised")
                del job  # an idle thread must not keep it in memory
        finally:
            pool.on_retire()
