"""Names to addresses, under a deadline.

`getaddrinfo` knows none: a name server that swallows questions holds it for half a minute. It is asked in a thread that
may be left behind, of which there are at most MOST_PENDING at a time, and MOST_OF_ONE on behalf of one owner: whose
names are never answered keeps nobody else's waiting.
"""

import ipaddress
import os
import socket
import threading
import time
from collections import Counter
from typing import Final

from platform_site.api.outbound.networks import Address

MOST_PENDING: Final = 64
MOST_OF_ONE: Final = 8


class _Places:
    """How many names are being asked for, and on whose behalf."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken: Counter[str] = Counter()

    def take(self, owner: str, seconds: float) -> bool:
        """Whether a place came free in so many seconds."""
        with self._changed:
            is_free = self._changed.wait_for(lambda: self._has_room(owner), max(0.0, seconds))
            if is_free:
                self._taken[owner] += 1
            return is_free

    def give_back(self, owner: str) -> None:
        with self._changed:
            self._taken[owner] -= 1
            if not self._taken[owner]:
                del self._taken[owner]
            self._changed.notify_all()

    def _has_room(self, owner: str) -> bool:
        return self._taken[owner] < MOST_OF_ONE and self._taken.total() < MOST_PENDING


_places = _Places()


class NotResolved(Exception):
    """There is no such name, or nobody could say."""


def resolve(host: str, port: int, deadline: float, owner: str) -> list[Address]:
    """The addresses of `host` (a name, or an address as text) in the system's order, without repetitions.

    `owner` is on whose behalf, as for `Client.request`. `deadline` is on `time.monotonic()`. Raises NotResolved, or
    TimeoutError.
    """
    try:
        return [ipaddress.ip_address(host)]
    except ValueError:
        pass
    places, outcome = _places, list[list[Address]]()
    if not places.take(owner, deadline - time.monotonic()):
        raise TimeoutError("too many names are being resolved")
    done = threading.Event()

    def ask() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            outcome.append([ipaddress.ip_address(sockaddr[0]) for *_, sockaddr in found])
        except (OSError, ValueError):
            pass  # no outcome is the outcome
        finally:
            places.give_back(owner)
            done.set()

    try:
        threading.Thread(target=ask, name="resolve", daemon=True).start()
    except RuntimeError:  # the system has no more threads; its place is the next one's
        places.give_back(owner)
        raise NotResolved(host) from None
    if not done.wait(max(0.0, deadline - time.monotonic())):
        raise TimeoutError("the name server took too long")
    if not outcome or not outcome[0]:
        raise NotResolved(host)
    return list(dict.fromkeys(outcome[0]))


def _after_fork() -> None:
    global _places
    _places = _Places()  # the threads that held them stayed with the parent


os.register_at_fork(after_in_child=_after_fork)
