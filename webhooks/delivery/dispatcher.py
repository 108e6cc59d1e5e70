"""Relays, claims, sends in threads and records, until the region's queue is empty. Only the dispatcher's own thread
uses PostgreSQL. During an outage outcomes stay in memory until their leases end."""

import contextlib
import logging
import queue
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from typing import Final

from django.conf import settings
from django.db import DatabaseError, InterfaceError, OperationalError, connections

from platform_site.background.periodic import log_failures
from webhooks.delivery.attempts import make_attempt
from webhooks.delivery.circuit_breaker import Receivers
from webhooks.delivery.queue import START_WITHIN, AttemptOutcome, ClaimedDelivery, claim, disable, record, release
from webhooks.delivery.relay import relay_batch

logger = logging.getLogger(__name__)

MAX_THREADS: Final = 256
"""Maximum attempts in flight; a waiting thread costs about 100 KB."""
CLAIM_AT_ONCE: Final = 128
POLL_SECONDS: Final = 0.2
"""Seconds to wait for an outcome or notification before checking the queue again, or for a lost database."""
LINGER_SECONDS: Final = 0.25
"""Seconds to wait for more work before ending, so that a burst does not restart the loop."""
SHUTDOWN_SECONDS: Final = 8.0
MIN_PASS_SECONDS: Final = 0.01
SMALL_PASS: Final = 8
"""A pass with fewer events takes at least MIN_PASS_SECONDS: single writes would otherwise cost four statements and
three commits per event, on the CPUs of the writers."""


class SenderThreads:
    """Threads that make attempts: as many as needed, up to MAX_THREADS. Attempts beyond a receiver's concurrency wait
    here, so that a thread takes the next one without the dispatcher."""

    def __init__(self, receivers: Receivers) -> None:
        self._receivers = receivers
        # Not SimpleQueue: on a busy machine CPython 3.11's `get` can miss its timeout and wait forever.
        self.outcomes: queue.Queue[AttemptOutcome | ClaimedDelivery | None] = queue.Queue()
        """Also claims that became too old to start, and None to wake the dispatcher."""
        self._work: queue.SimpleQueue[ClaimedDelivery | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._active: Counter[str] = Counter()
        self._queues: defaultdict[str, deque[ClaimedDelivery]] = defaultdict(deque)

    def submit(self, claimed: ClaimedDelivery) -> None:
        with self._lock:
            if self._active[claimed.receiver] >= self._receivers.concurrency_of(claimed.receiver):
                self._queues[claimed.receiver].append(claimed)
                return
            self._active[claimed.receiver] += 1
            active = self._active.total()
        if active > len(self._threads):
            thread = threading.Thread(target=self._run, name="webhook-sender", daemon=True)
            with contextlib.suppress(RuntimeError):  # the system has no more threads: one of those that run takes it
                thread.start()
                self._threads.append(thread)
        self._work.put(claimed)

    def _run(self) -> None:
        while (claimed := self._work.get()) is not None:
            following: ClaimedDelivery | None = claimed
            while following is not None:
                # Too old to start: its webhook may have been disabled, or its lease may end too early.
                is_stale = following.age() > min(START_WITHIN, settings.WEBHOOK_LEASE / 2)
                self.outcomes.put(following if is_stale else make_attempt(following))
                following = self._next(claimed.receiver)

    def _next(self, receiver: str) -> ClaimedDelivery | None:
        with self._lock:
            waiting = self._queues.get(receiver)
            if waiting and self._active[receiver] <= self._receivers.concurrency_of(receiver):
                return waiting.popleft()
            self._active[receiver] -= 1
            return None

    def withdraw(self, receiver: str) -> list[ClaimedDelivery]:
        with self._lock:
            return list(self._queues.pop(receiver, ()))

    def unstarted(self) -> list[ClaimedDelivery]:
        with self._lock:
            left = [claimed for waiting in self._queues.values() for claimed in waiting]
            self._queues.clear()
        with contextlib.suppress(queue.Empty):
            while True:
                if (item := self._work.get_nowait()) is not None:
                    left.append(item)
        return left

    def close(self) -> None:
        for _ in self._threads:
            self._work.put(None)


class Dispatcher:
    """One thread runs it; others may request a check."""

    def __init__(self, using: str) -> None:
        self.using = using
        self.receivers = Receivers()
        self.check_requested = threading.Event()
        self._senders = SenderThreads(self.receivers)
        """Those of this run: late outcomes of an earlier one are ignored."""

    def request_check(self) -> None:
        self.check_requested.set()
        self._senders.outcomes.put(None)

    def run(self, *, should_stop: Callable[[], bool] = lambda: False, linger: float = LINGER_SECONDS) -> int:
        """Work until the queue is empty. Returns the number of attempts. Raises DatabaseError if PostgreSQL is
        unavailable and no outcome is left to record."""
        senders = self._senders = SenderThreads(self.receivers)
        made = 0
        try:
            idle_since: float | None = None
            while not should_stop():
                begun = time.monotonic()
                self.check_requested.clear()
                try:
                    relayed = relay_batch(self.using)
                    claimed = self._claim(MAX_THREADS - self.receivers.in_flight)
                except (OperationalError, InterfaceError):
                    connections[self.using].close()
                    if not self.receivers.in_flight:
                        raise
                    relayed, claimed = 0, []
                for each in claimed:
                    self.receivers.started(each.receiver)
                    senders.submit(each)
                made += len(claimed)
                results = self._collect(wait=0 if relayed or claimed else POLL_SECONDS)
                self._record_all(results, should_stop)
                if relayed or claimed or self.receivers.in_flight or self.check_requested.is_set():
                    idle_since = None
                elif idle_since is None:
                    idle_since = time.monotonic()
                elif time.monotonic() - idle_since > linger:
                    break
                if max(relayed, len(claimed), len(results)) < SMALL_PASS:
                    time.sleep(max(0.0, begun + MIN_PASS_SECONDS - time.monotonic()))
            self._finish()
            return made
        finally:
            # Both are empty unless this thread failed: then the leases of the remaining attempts run out.
            self._release(senders.unstarted())
            self.receivers.reset_in_flight()
            senders.close()

    def _claim(self, free: int) -> list[ClaimedDelivery]:
        if free <= 0:
            return []
        free_slots, default_slots = self.receivers.free_slots(time.monotonic())
        return claim(self.using, min(free, CLAIM_AT_ONCE), free_slots=free_slots, default_slots=default_slots)

    def _collect(self, wait: float) -> list[AttemptOutcome]:
        results: list[AttemptOutcome] = []
        stale: list[ClaimedDelivery] = []
        with contextlib.suppress(queue.Empty):
            item = self._senders.outcomes.get(timeout=wait)
            while True:
                if isinstance(item, AttemptOutcome):
                    results.append(item)
                elif item is not None:
                    stale.append(item)
                if len(results) >= CLAIM_AT_ONCE:
                    break
                item = self._senders.outcomes.get_nowait()
        now = time.monotonic()
        for result in results:
            receiver, responded = result.claimed.receiver, result.response_status is not None
            if self.receivers.ended(receiver, responded=responded, seconds=result.duration.total_seconds(), now=now):
                stale += self._senders.withdraw(receiver)
        self._release(stale)
        return results

    def _release(self, claims: list[ClaimedDelivery]) -> None:
        for claimed in claims:
            self.receivers.released(claimed.receiver)
        with contextlib.suppress(DatabaseError, InterfaceError):
            release(self.using, claims)

    def _record_all(self, results: list[AttemptOutcome], should_stop: Callable[[], bool] = lambda: False) -> None:
        """Recording twice is harmless, so it is retried after a broken connection."""
        begun = time.monotonic()
        while results:
            try:
                for found in record(self.using, results):
                    # If its lock is held for too long, the next failure disables it.
                    with log_failures(f"disabling {found.webhook_id}"):
                        disable(self.using, found)
                return
            except (OperationalError, InterfaceError):
                connections[self.using].close()
                timeout = SHUTDOWN_SECONDS if should_stop() else settings.WEBHOOK_LEASE.total_seconds()
                if time.monotonic() - begun > timeout:
                    raise
                time.sleep(POLL_SECONDS)
            except DatabaseError:
                if len(results) > 1:
                    # One of them cannot be recorded. The others must be, or they would be sent again.
                    for result in results:
                        self._record_all([result], should_stop)
                    return
                logger.exception("an outcome could not be recorded", extra={"delivery": results[0].claimed.delivery_id})
                return

    def _finish(self) -> None:
        self._release(self._senders.unstarted())
        deadline = time.monotonic() + SHUTDOWN_SECONDS
        while self.receivers.in_flight and time.monotonic() < deadline:
            self._record_all(self._collect(wait=POLL_SECONDS))
        if left := self.receivers.in_flight:
            logger.warning("stopped with attempts in flight; their leases run out", extra={"attempts": left})
