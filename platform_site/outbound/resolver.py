"""Name resolution with a deadline. `getaddrinfo` has no timeout: a silent name server blocks it for half a minute. It
runs in a thread that can be abandoned, at most MOST_PENDING at a time, and MOST_OF_ONE per owner, under a
`platform_site.concurrency.fair_semaphore`: a lookup cannot be ended early, but owners whose names are never resolved
get fewer and fewer slots, and none of those reserved for owners whose names were resolved."""

import ipaddress
import os
import socket
import threading
import time
from typing import Final

from platform_site.concurrency.fair_semaphore import FairSemaphore
from platform_site.outbound.ssrf import Address

MOST_PENDING: Final = 64
MOST_OF_ONE: Final = 8
FIRM: Final = 2.0
"""Seconds after which a look-up is slow."""


def _made() -> FairSemaphore:
    return FairSemaphore(MOST_PENDING, each=MOST_OF_ONE, firm=FIRM)


_semaphore = _made()


class NotResolved(Exception):
    """The name does not exist or could not be resolved."""


def resolve(host: str, port: int, deadline: float, owner: str) -> list[Address]:
    """The IP addresses of `host` (a name, or an IP address as text) in the system's order, without repetitions. `owner`
    is the owner of the call, as for `Client.request`. `deadline` is on `time.monotonic()`. Raises NotResolved, or
    TimeoutError."""
    try:
        return [ipaddress.ip_address(host)]
    except ValueError:
        pass
    places, outcome = _semaphore, list[list[Address]]()
    place = places.take(owner, wait=deadline - time.monotonic())
    if place is None:
        raise TimeoutError("too many names are being resolved")
    done = threading.Event()

    def ask() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            outcome.append([ipaddress.ip_address(sockaddr[0]) for *_, sockaddr in found])
        except (OSError, ValueError):
            pass  # no outcome is the outcome
        finally:
            places.give_back(place)
            done.set()

    try:
        threading.Thread(target=ask, name="resolve", daemon=True).start()
    except RuntimeError:  # the system has no more threads; its place is the next one's
        places.give_back(place)
        raise NotResolved(host) from None
    if not done.wait(max(0.0, deadline - time.monotonic())):
        raise TimeoutError("the name server took too long")
    if not outcome or not outcome[0]:
        raise NotResolved(host)
    return list(dict.fromkeys(outcome[0]))


def _after_fork() -> None:
    global _semaphore
    _semaphore = _made()  # the threads that held them stayed with the parent


os.register_at_fork(after_in_child=_after_fork)
