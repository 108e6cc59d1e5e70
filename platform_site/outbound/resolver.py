"""Name resolution with a deadline, which `getaddrinfo` lacks: in threads that can be abandoned, shared fairly, so that
owners of unresolvable names get few."""

import ipaddress
import os
import socket
import threading
import time
from typing import Final

from platform_site.concurrency.fair_semaphore import FairSemaphore
from platform_site.outbound.ssrf import Address

MAX_PENDING: Final = 64
MAX_PER_OWNER: Final = 8
SLOW_AFTER: Final = 2.0


def _new_semaphore() -> FairSemaphore:
    return FairSemaphore(MAX_PENDING, per_owner=MAX_PER_OWNER, slow_after=SLOW_AFTER)


_semaphore = _new_semaphore()


class NotResolved(Exception):
    pass


def resolve(host: str, port: int, deadline: float, owner: str) -> list[Address]:
    """The unique IPs of `host`, in order, by `time.monotonic()`. Raises NotResolved, or TimeoutError."""
    try:
        return [ipaddress.ip_address(host)]
    except ValueError:
        pass
    semaphore, outcome = _semaphore, list[list[Address]]()
    slot = semaphore.acquire(owner, wait=deadline - time.monotonic())
    if slot is None:
        raise TimeoutError("too many names are being resolved")
    done = threading.Event()

    def ask() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            outcome.append([ipaddress.ip_address(sockaddr[0]) for *_, sockaddr in found])
        except (OSError, ValueError):
            pass  # without an outcome, `resolve` raises
        finally:
            semaphore.release(slot)
            done.set()

    try:
        threading.Thread(target=ask, name="resolve", daemon=True).start()
    except RuntimeError:  # the system has no more threads
        semaphore.release(slot)
        raise NotResolved(host) from None
    if not done.wait(max(0.0, deadline - time.monotonic())):
        raise TimeoutError("the name server took too long")
    if not outcome or not outcome[0]:
        raise NotResolved(host)
    return list(dict.fromkeys(outcome[0]))


def _after_fork() -> None:
    global _semaphore
    _semaphore = _new_semaphore()  # the threads that held them stayed with the parent


os.register_at_fork(after_in_child=_after_fork)
