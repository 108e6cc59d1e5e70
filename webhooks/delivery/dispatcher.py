"""The loop that empties a region's queue: relay, claim, send in threads, record; as long as there is anything to do.

One dispatcher runs in each worker process and region, in the thread of the Celery task that woke it. Only that
thread speaks to PostgreSQL; the threads that send speak HTTP and nothing else, so a receiver that hangs holds a socket,
never a connection or a transaction. The loop ends when nothing is due and nothing is in flight, or the worker is told
to stop: then claims that no thread has started go back, and attempts in flight get `GRACE` to finish.

While PostgreSQL is away outcomes are kept for as long as their leases last: what has arrived is not sent again because
its booking met a restart.
"""

import contextlib
import logging
import queue
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from django.conf import settings
from django.db import DatabaseError, InterfaceError, OperationalError, connections

from platform_site.background.periodic import apart
from webhooks.delivery import failing_webhooks
from webhooks.delivery.attempts import attempt
from webhooks.delivery.circuit_breaker import Receivers
from webhooks.delivery.queue import START_WITHIN, Claimed, Result, claim, give_back, record
from webhooks.delivery.relay import relay_batch

logger = logging.getLogger(__name__)

MAX_THREADS: Final = 256
"""Attempts in flight at the same time. Most of them wait for a receiver, which costs a thread some 100 KB."""
CLAIM_AT_ONCE: Final = 128
TICK: Final = 0.2
"""How long the loop waits for an outcome, or to be asked, before it looks at the queue again."""
LINGER: Final = 0.25
"""How long it stays after the last work, so that a burst does not pay for a wake-up each time."""
GRACE: Final = 8.0
RECONNECT: Final = 0.2
"""How long to wait before PostgreSQL is asked again while it is away."""


class Senders:
    """Threads that make attempts: as many as are needed, up to MAX_THREADS, kept while there is work.

    `room` at `submit` bounds how many attempts a receiver gets at the same time; more of them wait here in line, so
    that a thread that is done goes on without asking the dispatcher.
    """

    def __init__(self, outcomes: "queue.SimpleQueue[Result | Claimed | None]") -> None:
        self._work: queue.SimpleQueue[Claimed | None] = queue.SimpleQueue()
        self._outcomes = outcomes
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._active: Counter[str] = Counter()
        self._room: dict[str, int] = {}
        self._lines: defaultdict[str, deque[Claimed]] = defaultdict(deque)
        self.busy = 0
        """Claims submitted whose outcome was not collected yet. Only the dispatcher's thread counts."""

    def submit(self, claimed: Claimed, room: int) -> None:
        self.busy += 1
        with self._lock:
            self._room[claimed.host] = room
            if self._active[claimed.host] >= room:
                self._lines[claimed.host].append(claimed)
                return
            self._active[claimed.host] += 1
            active = self._active.total()
        if active > len(self._threads):
            thread = threading.Thread(target=self._run, name="webhook-sender", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._work.put(claimed)

    def _run(self) -> None:
        while (claimed := self._work.get()) is not None:
            following: Claimed | None = claimed
            while following is not None:
                self._outcomes.put(following if _is_stale(following) else attempt(following))
                following = self._next(claimed.host)

    def _next(self, host: str) -> Claimed | None:
        with self._lock:
            line = self._lines.get(host)
            if line and self._active[host] <= self._room[host]:
                return line.popleft()
            self._active[host] -= 1
            return None

    def recall(self, host: str, room: int) -> list[Claimed]:
        """The receiver's room has shrunk: take back what stands in line for it."""
        with self._lock:
            self._room[host] = room
            left = list(self._lines.pop(host, ()))
        self.busy -= len(left)
        return left

    def unstarted(self) -> list[Claimed]:
        """Take back what no thread has begun."""
        with self._lock:
            left = [claimed for line in self._lines.values() for claimed in line]
            self._lines.clear()
        with contextlib.suppress(queue.Empty):
            while True:
                if (item := self._work.get_nowait()) is not None:
                    left.append(item)
        self.busy -= len(left)
        return left

    def close(self) -> None:
        for _ in self._threads:
            self._work.put(None)


def _is_stale(claimed: Claimed) -> bool:
    """Too old to begin: its webhook may have been switched off, or its lease end before the attempt does."""
    return claimed.age() > min(START_WITHIN, settings.WEBHOOK_LEASE / 2)


PACE: Final = 0.01
SMALL: Final = 8
"""A turn that had fewer than SMALL events is followed by the next one PACE seconds after its beginning, not at once.
While rows are written one by one, a turn for each event would cost four statements and three commits an event, on the
processors that answer the writers; the first event after a rest waits for nobody, and a backlog makes full turns."""


class Dispatcher:
    """One region's loop in this process. `run` may be called by one thread at a time; others leave at once."""

    def __init__(self, using: str) -> None:
        self.using = using
        self.receivers = Receivers()
        self._running = threading.Lock()
        self._asked = threading.Event()
        self._outcomes: queue.SimpleQueue[Result | Claimed | None] = queue.SimpleQueue()

    def ask(self) -> None:
        """Look at the queue: now if `run` is at it, else as soon as it is called."""
        self._asked.set()
        self._outcomes.put(None)

    def wait_until_asked(self, seconds: float = 60.0) -> bool:
        return self._asked.wait(seconds)

    def run(self, *, should_stop: Callable[[], bool] = lambda: False, linger: float = LINGER) -> int:
        """Work until the queue is empty. Returns the number of attempts made; 0 if another thread is at it, which is
        told to look at the queue now.

        Raises DatabaseError when PostgreSQL is away and no outcome is left to be booked.
        """
        self.ask()  # first, so that whoever is about to leave sees it
        made = 0
        while self._asked.is_set() and self._running.acquire(blocking=False):
            try:
                made += self._work(should_stop, linger)
            finally:
                self._running.release()
            if should_stop():
                break
        return made

    def _work(self, should_stop: Callable[[], bool], linger: float) -> int:
        self._outcomes = queue.SimpleQueue()
        senders = Senders(self._outcomes)
        made = 0
        try:
            idle_since: float | None = None
            begun, is_small = -PACE, False
            while not should_stop():
                if is_small and (pause := begun + PACE - time.monotonic()) > 0:
                    time.sleep(pause)
                begun = time.monotonic()
                self._asked.clear()
                try:
                    relayed = relay_batch(self.using).events
                    claimed = self._claim(MAX_THREADS - senders.busy)
                except (OperationalError, InterfaceError):
                    connections[self.using].close()
                    if not senders.busy:
                        raise
                    relayed, claimed = 0, []
                for each in claimed:
                    self.receivers.started(each.host)
                    senders.submit(each, self.receivers.room_of(each.host))
                made += len(claimed)
                results = self._collect(senders, wait=TICK if not (relayed or claimed) else 0)
                self._book(results, should_stop)
                is_small = max(relayed, len(claimed), len(results)) < SMALL
                if relayed or claimed or senders.busy or self._asked.is_set():
                    idle_since = None
                elif idle_since is None:
                    idle_since = time.monotonic()
                elif time.monotonic() - idle_since > linger:
                    break
            self._finish(senders)
            return made
        finally:
            # Nothing is left of either, unless we failed: then what runs on is nobody's, and its leases run out.
            self._give_back(senders.unstarted())
            self.receivers.forget_claims()
            senders.close()

    def _claim(self, room: int) -> list[Claimed]:
        if room <= 0:
            return []
        hosts, rooms, first_room = self.receivers.limits(time.monotonic())
        return claim(
            self.using, min(room, CLAIM_AT_ONCE), hosts=hosts, rooms=rooms, first_room=first_room,
            lease=settings.WEBHOOK_LEASE,
        )  # fmt: skip

    def _collect(self, senders: Senders, wait: float) -> list[Result]:
        """The outcomes that are there; waits up to `wait` seconds for the first, or to be told of new work."""
        results: list[Result] = []
        stale: list[Claimed] = []
        with contextlib.suppress(queue.Empty):
            item = self._outcomes.get(timeout=wait) if wait else self._outcomes.get_nowait()
            while True:
                if isinstance(item, Result):
                    results.append(item)
                elif item is not None:
                    stale.append(item)
                if len(results) >= CLAIM_AT_ONCE:
                    break
                item = self._outcomes.get_nowait()
        senders.busy -= len(results) + len(stale)
        now = time.monotonic()
        for result in results:
            host, answered = result.claimed.host, result.response_status is not None
            before = self.receivers.room_of(host)
            self.receivers.ended(host, answered=answered, seconds=result.duration.total_seconds(), now=now)
            if (room := self.receivers.room_of(host)) < before:
                stale += senders.recall(host, room)
        self._give_back(stale)
        return results

    def _give_back(self, claims: list[Claimed]) -> None:
        """Best effort: what cannot be given back waits for the end of its lease."""
        for claimed in claims:
            self.receivers.returned(claimed.host)
        with contextlib.suppress(DatabaseError, InterfaceError):
            give_back(self.using, claims)

    def _book(self, results: list[Result], should_stop: Callable[[], bool] = lambda: False) -> None:
        """Record outcomes. Booking twice is harmless, so a connection that broke in between is no reason to give up."""
        begun = time.monotonic()
        while results:
            try:
                self._record(results)
                return
            except (OperationalError, InterfaceError):
                connections[self.using].close()
                patience = GRACE if should_stop() else settings.WEBHOOK_LEASE.total_seconds()
                if time.monotonic() - begun > patience:
                    raise
                time.sleep(RECONNECT)
            except DatabaseError:
                if len(results) > 1:
                    # One of them cannot be booked; the others must not be sent again for its sake.
                    for result in results:
                        self._book([result], should_stop)
                    return
                logger.exception("an outcome could not be booked", extra={"delivery": results[0].claimed.delivery_id})
                return

    def _record(self, results: list[Result]) -> None:
        patience: timedelta = settings.WEBHOOK_PATIENCE
        for found in record(self.using, results, patience=patience):
            # Somebody may be switching it, for longer than we wait: the next failure disables it then.
            with apart(f"disabling {found.webhook_id}"):
                failing_webhooks.disable(self.using, found.webhook_id, found.reason, depth=found.depth)

    def _finish(self, senders: Senders) -> None:
        self._give_back(senders.unstarted())
        deadline = time.monotonic() + GRACE
        while senders.busy and time.monotonic() < deadline:
            self._book(self._collect(senders, wait=TICK))
        if senders.busy:
            logger.warning("stopped with attempts in flight; their leases run out", extra={"attempts": senders.busy})
