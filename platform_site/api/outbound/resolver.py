"""Names to addresses, under a deadline.

`getaddrinfo` knows none: a name server that swallows questions holds it for half a minute. It is asked in a thread that
may be left behind, of which there are at most MOST_PENDING at a time.
"""

import ipaddress
import os
import socket
import threading
import time
from typing import Final

from platform_site.api.outbound.networks import Address

MOST_PENDING: Final = 64
_pending = threading.Semaphore(MOST_PENDING)


class NotResolved(Exception):
    """There is no such name, or nobody could say."""


def resolve(host: str, port: int, deadline: float) -> list[Address]:
    """The addresses of `host` (a name, or an address as text) in the system's order, without repetitions.

    `deadline` is on `time.monotonic()`. Raises NotResolved, or TimeoutError.
    """
    try:
        return [ipaddress.ip_address(host)]
    except ValueError:
        pass
    if not _pending.acquire(timeout=max(0.0, deadline - time.monotonic())):
        raise TimeoutError("too many names are being resolved")
    pending, outcome = _pending, list[list[Address]]()
    done = threading.Event()

    def ask() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            outcome.append([ipaddress.ip_address(sockaddr[0]) for *_, sockaddr in found])
        except (OSError, ValueError):
            pass  # no outcome is the outcome
        finally:
            pending.release()
            done.set()

    try:
        threading.Thread(target=ask, name="resolve", daemon=True).start()
    except RuntimeError:  # the system has no more threads; its place is the next one's
        pending.release()
        raise NotResolved(host) from None
    if not done.wait(max(0.0, deadline - time.monotonic())):
        raise TimeoutError("the name server took too long")
    if not outcome or not outcome[0]:
        raise NotResolved(host)
    return list(dict.fromkeys(outcome[0]))


def _after_fork() -> None:
    global _pending
    _pending = threading.Semaphore(MOST_PENDING)  # the threads that held it stayed with the parent


os.register_at_fork(after_in_child=_after_fork)
