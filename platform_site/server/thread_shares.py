"""Shares of a process's request threads, so that no owner can hold all of them. Owners are projects, accounts
(for the console and their own endpoints), and the networks of clients without a caller. A request that finds the share
of its owner taken is parked (`server_hints.Parked`). Calls of functions are counted, but have limits of their own
(`functions.execution.request_concurrency`)."""

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from platform_site.concurrency.server_hints import Parked
from platform_site.http.errors import Unavailable

_CALLS: Final = "calls"


class OverShare(Unavailable):
    message = "Too many slow requests of this project, account or network are running. Try again shortly."


@dataclass(eq=False)
class ThreadShares:
    """An owner may have half of the threads that no other holds, and at least one. A request waits for at most
    `timeout` seconds, including its wait for a thread. `call_later` is called in threads."""

    threads: int
    timeout: float
    call_later: Callable[[float, Callable[[], None]], object]
    lock: threading.Lock = field(default_factory=threading.Lock)
    waiting: dict[str, deque["ThreadShare"]] = field(default_factory=dict)
    _held: Counter[str] = field(default_factory=Counter)

    def grant(self) -> None:
        """Give free places to those that wait, first to the owner that holds the fewest."""
        granted = []
        with self.lock:
            for owner in sorted(self.waiting, key=self._held.__getitem__):
                while owner in self.waiting and self.has_room(owner):
                    share = self.waiting[owner][0]
                    self.end_wait(share)
                    self.take(share)
                    granted.append(share)
        for each in granted:
            each.resume()

    # ── All of these are called with the lock held ──

    def has_room(self, owner: str) -> bool:
        held = self._held[owner]
        return held < max(1, math.ceil((self.threads - self._held.total() + held) / 2))

    def take(self, share: "ThreadShare") -> None:
        share.is_held = True
        self._held[share.owner] += 1

    def release(self, share: "ThreadShare") -> None:
        if share.is_held:
            share.is_held = False
            self._held[share.owner] -= 1
            if not self._held[share.owner]:
                del self._held[share.owner]

    def end_wait(self, share: "ThreadShare") -> None:
        queue = self.waiting[share.owner]
        queue.remove(share)
        if not queue:
            del self.waiting[share.owner]


@dataclass(eq=False, slots=True)
class ThreadShare:
    shares: ThreadShares
    owner: str = ""
    is_held: bool = False
    has_expired: bool = False
    since: float = field(default_factory=time.monotonic)
    resume: Callable[[], None] = lambda: None

    def enter(self, owner: str) -> None:
        """Raises Parked, and OverShare after waiting."""
        shares = self.shares
        with shares.lock:
            if self.is_held:  # it has waited, or runs again
                return
            if self.owner != _CALLS:
                self.owner = owner
            if self.owner == _CALLS or (owner not in shares.waiting and shares.has_room(owner)):
                shares.take(self)
                return
        if self._seconds_left() <= 0:
            raise OverShare
        raise Parked(self._wait)

    def count_as_call(self) -> None:
        with self.shares.lock:
            self.shares.release(self)
            self.owner = _CALLS
            self.shares.take(self)
        self.shares.grant()

    def leave(self) -> None:
        with self.shares.lock:
            self.shares.release(self)
        self.shares.grant()

    def _seconds_left(self) -> float:
        return self.since + self.shares.timeout - time.monotonic()

    def _wait(self, resume: Callable[[], None]) -> None:
        with self.shares.lock:
            self.resume = resume
            self.shares.waiting.setdefault(self.owner, deque()).append(self)
        self.shares.grant()  # a place may have become free meanwhile
        self.shares.call_later(max(0.0, self._seconds_left()), self._expire)

    def _expire(self) -> None:
        with self.shares.lock:
            is_waiting = self in self.shares.waiting.get(self.owner, ())
            if is_waiting:
                self.shares.end_wait(self)
                self.has_expired = True
        if is_waiting:
            self.resume()
