"""Requests on the event loop: each runs in a greenlet, which lets the loop go on while it waits. A request runs here
only if all that it waits for knows of this module: statements by `platform_site.postgres.libpq`, round trips to Redis,
and what it sends to a thread itself. Whatever else would wait (a cursor, a password hash) calls `must_not_wait` first,
and the request is repeated from its beginning in the pool of threads."""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import greenlet

from platform_site.concurrency import server_hints

Result = TypeVar("Result")

_getcurrent: Final = greenlet.getcurrent
_LATE: Final = object()

logger = logging.getLogger(__name__)


class LoopRequest(greenlet.greenlet):  # type: ignore[misc]  # it has no types
    """One request. Its parent is the loop's own greenlet; `connections` are those that it has borrowed, by alias."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
        super().__init__(work)
        self.loop = loop
        self.connections: dict[str, Any] = {}
        self.may_be_counted = False
        """Whether a round trip to Redis was begun, which counts the request for its limits."""
        self.has_written = False
        """Whether it may have changed something, so that it cannot be repeated."""

    def wait(self) -> Any:
        """Let the loop go on until another callback switches to this request; what that hands over."""
        return self.parent.switch()

    def pause(self, seconds: float) -> None:
        """Let the loop go on for so long."""
        self.loop.call_later(seconds, self.switch)
        self.wait()

    def in_thread(self, call: Callable[[], Result]) -> Result:
        """What `call()` returns or raises, in another thread."""
        future = _executor().submit(call)
        future.add_done_callback(lambda _: self.loop.call_soon_threadsafe(self.switch))
        self.wait()
        return future.result()


def current() -> LoopRequest | None:
    """The request that runs on the loop now; None in threads, tests, commands and workers."""
    found = _getcurrent()
    return found if type(found) is LoopRequest else None


def must_not_wait() -> None:
    """What follows waits. Raises Parked for a request on the loop: it is repeated in a thread. One that has written is
    not, and the whole loop waits for it."""
    found = _getcurrent()
    if type(found) is LoopRequest:
        if found.has_written:
            logger.warning("a request on the event loop waits after it wrote", stack_info=True)
            return
        raise server_hints.Parked(lambda go_on: go_on(), lambda: None)


def will_write() -> None:
    """What follows is a statement that changes something, and mostly waiting. A request on the loop cannot be repeated
    from here on."""
    found = _getcurrent()
    if type(found) is LoopRequest:
        found.has_written = True
    else:
        server_hints.will_block()


def sleep(seconds: float) -> None:
    """`time.sleep`, also for a request on the loop."""
    found = current()
    if found is None:
        time.sleep(seconds)
    else:
        found.pause(seconds)


class Readiness:
    """Tells a request when a socket can be read. It watches a duplicate of the descriptor: libpq may close its own
    at any time, and the loop must not watch a closed one. Ends by itself once the other side has closed."""

    __slots__ = ("_descriptor", "_loop", "_request")

    def __init__(self, loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
        self._loop = loop
        self._request: LoopRequest | None = None
        self._descriptor: int | None = os.dup(descriptor)
        loop.add_reader(self._descriptor, self._wake)

    @property
    def is_open(self) -> bool:
        """Whether nothing has come that nobody waited for."""
        return self._descriptor is not None

    def wait(self, request: LoopRequest, *, writable: bool = False, seconds: float | None = None) -> bool:
        """Wait until the socket can be read, or also written. False once `seconds` are over."""
        descriptor, loop = self._descriptor, self._loop
        if descriptor is None:
            return True
        timer = loop.call_later(seconds, self._wake, _LATE) if seconds is not None else None
        if writable:
            loop.add_writer(descriptor, self._wake)
        self._request = request
        try:
            return request.wait() is not _LATE
        finally:
            if writable:
                loop.remove_writer(descriptor)
            if timer is not None:
                timer.cancel()

    def _wake(self, outcome: Any = None) -> None:
        request, self._request = self._request, None
        if request is not None:
            request.switch(outcome)
        else:
            self.close()

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)


_threads: ThreadPoolExecutor | None = None
_most = 32


def serve_by(threads: int) -> None:
    """As `availability.serve_by`. Twice as many open connections, so that those that wait for a silent database leave
    some for the others."""
    global _most
    _most = 2 * threads


def _executor() -> ThreadPoolExecutor:
    global _threads
    if _threads is None:
        _threads = ThreadPoolExecutor(_most, thread_name_prefix="loop-helper")
    return _threads


def _after_fork() -> None:
    global _threads
    _threads = None


os.register_at_fork(after_in_child=_after_fork)
