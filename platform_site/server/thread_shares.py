"""Shares of a process's request threads, so that no owner can hold all of them. Owners are projects, accounts
(for the console and their own endpoints), and the networks of clients without a caller. A request that finds the share
of its owner taken gives its thread back (`server_hints.Parked`), waits for a place, and is repeated. Calls of functions
are counted, but have limits of their own (`functions.execution.request_concurrency`)."""

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from platform_site.concurrency.server_hints import Parked
from platform_site.http.errors import Unavailable

_CALLS: Final = "calls"


class OverShare(Unavailable):
    message = "Too many slow requests of this project, account or network are running. Try again shortly."


@dataclass(eq=False)
class ThreadShares:
    """An owner may have half of the threads that no other holds, and at least one. A request waits for at most
    `timeout` seconds, including its wait for a thread. `later(seconds, call)` is called in threads."""

    threads: int
    timeout: float
    later: Callable[[float, Callable[[], None]], object]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _held: Counter[str] = field(default_factory=Counter)
    _waiting: dict[str, deque["ThreadShare"]] = field(default_factory=dict)

    def enter(self, share: "ThreadShare", owner: str) -> None:
        with self._lock:
            if share.is_held:  # it has waited, or runs again
                return
            if share.owner != _CALLS:
                share.owner = owner
            if share.owner == _CALLS or (owner not in self._waiting and self._has_room(owner)):
                self._take(share)
                return
        if self._seconds_left(share) <= 0:
            raise OverShare
        raise Parked(partial(self._wait, share))

    def _seconds_left(self, share: "ThreadShare") -> float:
        return share.since + self.timeout - time.monotonic()

    def count_as_call(self, share: "ThreadShare") -> None:
        with self._lock:
            self._release(share)
            share.owner = _CALLS
            self._take(share)
        self._grant()

    def leave(self, share: "ThreadShare") -> None:
        with self._lock:
            self._release(share)
        self._grant()

    def _wait(self, share: "ThreadShare", resume: Callable[[], None]) -> None:
        with self._lock:
            share.resume = resume
            self._waiting.setdefault(share.owner, deque()).append(share)
        self._grant()  # a place may have become free meanwhile
        self.later(max(0.0, self._seconds_left(share)), partial(self._expire, share))

    def _grant(self) -> None:
        """Give free places to those who wait, first to the owner that holds the fewest."""
        granted = []
        with self._lock:
            for owner in sorted(self._waiting, key=self._held.__getitem__):
                while owner in self._waiting and self._has_room(owner):
                    share = self._waiting[owner][0]
                    self._remove(share)
                    self._take(share)
                    granted.append(share)
        for each in granted:
            each.resume()

    def _expire(self, share: "ThreadShare") -> None:
        with self._lock:
            is_waiting = share in self._waiting.get(share.owner, ())
            if is_waiting:
                self._remove(share)
                share.has_expired = True
        if is_waiting:
            share.resume()

    # ── All of these are called with the lock held ──

    def _has_room(self, owner: str) -> bool:
        held = self._held[owner]
        return held < max(1, math.ceil((self.threads - self._held.total() + held) / 2))

    def _take(self, share: "ThreadShare") -> None:
        share.is_held = True
        self._held[share.owner] += 1

    def _release(self, share: "ThreadShare") -> None:
        if share.is_held:
            share.is_held = False
            self._held[share.owner] -= 1
            if not self._held[share.owner]:
                del self._held[share.owner]

    def _remove(self, share: "ThreadShare") -> None:
        queue = self._waiting[share.owner]
        queue.remove(share)
        if not queue:
            del self._waiting[share.owner]


@dataclass(eq=False, slots=True)
class ThreadShare:
    """That of one request in a thread."""

    shares: ThreadShares
    owner: str = ""
    is_held: bool = False
    has_expired: bool = False
    """Whether it has waited in vain."""
    since: float = field(default_factory=time.monotonic)
    resume: Callable[[], None] = lambda: None

    def enter(self, owner: str) -> None:
        """Called once the owner is known. Raises Parked, and OverShare after waiting."""
        self.shares.enter(self, owner)

    def count_as_call(self) -> None:
        """Called before the request waits for a function, also if its owner is not known."""
        self.shares.count_as_call(self)

    def leave(self) -> None:
        """Called when the request leaves its thread."""
        self.shares.leave(self)
