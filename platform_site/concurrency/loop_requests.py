"""Requests on the event loop. Each runs in a greenlet, which yields to the loop while it waits for PostgreSQL
(`platform_site.postgres.libpq`), Redis, a warm function process or a helper thread. Code that would block in any other
way calls `require_thread` first, and the request is repeated in a thread."""

import asyncio
import contextvars
import logging
import os
import random
import select
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, TypeVar

import greenlet
from django.conf import settings

from platform_site.concurrency import server_hints

Result = TypeVar("Result")

_getcurrent: Final = greenlet.getcurrent
_TIMED_OUT: Final = object()

logger = logging.getLogger(__name__)


class LoopRequest:
    def __init__(self, loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
        self.loop, self.work = loop, work
        self._worker: _Worker | None = None
        self.connections: dict[str, Any] = {}
        self.project_id = ""
        self.has_used_redis = False
        """Rate limits may have counted the request."""
        self.has_written = False

    def switch(self, outcome: Any = None) -> None:
        """Start or resume the work, with `outcome` as the result of `wait`. Does nothing after its end."""
        worker = self._worker
        if worker is None:
            worker = _idle.workers.pop() if _idle.workers else _Worker()
            worker.request, self._worker = self, worker
        if worker.request is self:
            worker.switch(outcome)

    def wait(self) -> Any:
        return _getcurrent().parent.switch()

    def pause(self, seconds: float) -> None:
        self.loop.call_later(seconds, self.switch)
        self.wait()

    def in_thread(self, call: Callable[[], Result]) -> Result:
        future = _executor().submit(contextvars.copy_context().run, call)
        future.add_done_callback(lambda _: self.loop.call_soon_threadsafe(self.switch))
        self.wait()
        return future.result()

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Let the loop call it, from any thread. On the loop itself this takes no system call."""
        is_here = asyncio._get_running_loop() is self.loop
        (self.loop.call_soon if is_here else self.loop.call_soon_threadsafe)(callback)


class _Worker(greenlet.greenlet):  # type: ignore[misc]  # it has no types
    """Runs one request after the other: a new greenlet maps memory for its stack. Its parent is the loop's greenlet."""

    def __init__(self) -> None:
        super().__init__()
        self.request: LoopRequest | None = None

    def run(self, _: Any) -> None:
        idle = _idle.workers
        while self.request is not None:  # not in a variable, which would keep the last one
            contextvars.Context().run(self.request.work)
            self.request = None
            if len(idle) >= _MAX_IDLE:
                return
            idle.append(self)
            self.parent.switch()


class _Idle(threading.local):
    # By thread: a greenlet cannot be switched to from another one.
    def __init__(self) -> None:
        self.workers: list[_Worker] = []


_idle: Final = _Idle()
_MAX_IDLE: Final = 64


def current() -> LoopRequest | None:
    here = _getcurrent()
    return here.request if type(here) is _Worker else None


def require_thread() -> None:
    """Call before an operation that blocks. On the event loop it raises NeedsThread, unless the request has written and
    cannot be repeated: then it only logs a warning."""
    request = current()
    if request is not None:
        if request.has_written:
            logger.warning("a request on the event loop waits after it wrote", stack_info=True)
            return
        raise server_hints.NeedsThread


def will_write() -> None:
    """Called before a statement that writes: the request cannot be repeated from here on."""
    request = current()
    if request is not None:
        request.has_written = True
    else:
        server_hints.will_block()


def in_thread(call: Callable[[], Result]) -> Result:
    """Run a blocking `call()`: directly in a thread, or in a helper thread for a request on the loop."""
    request = current()
    return call() if request is None else request.in_thread(call)


def run_or_repeat_in_thread(call: Callable[[], Result], fallback: Callable[[], Result]) -> Result:
    """For a part of a request that cannot be repeated as a whole: if `call()` would block the loop before it has
    written anything, `fallback()` runs in a thread instead."""
    request = current()
    if request is None:
        return call()
    had_written, request.has_written = request.has_written, False
    try:
        return call()
    except server_hints.NeedsThread:
        return request.in_thread(fallback)
    finally:
        request.has_written = request.has_written or had_written


class Gate:
    """A one-time event: its creator, a thread or a request on the loop, waits until another opens it."""

    def __init__(self) -> None:
        self._request = current()
        self._is_open = self._is_waiting = False
        if self._request is None:
            self._lock = threading.Lock()
            self._lock.acquire()

    def wait(self, seconds: float | None = None) -> bool:
        request = self._request
        if request is None:
            return self._lock.acquire(timeout=-1 if seconds is None else max(0.0, seconds))
        if not self._is_open:
            timer = None if seconds is None else request.loop.call_later(max(0.0, seconds), self._wake)
            self._is_waiting = True
            request.wait()
            if timer is not None:
                timer.cancel()
        return self._is_open

    def open(self) -> None:
        if self._request is None:
            self._lock.release()
        else:
            self._is_open = True
            self._request.call_soon(self._wake)

    def _wake(self) -> None:
        if self._is_waiting and self._request is not None:
            self._is_waiting = False
            self._request.switch()


def sleep(seconds: float) -> None:
    request = current()
    if request is None:
        time.sleep(seconds)
    else:
        request.pause(seconds)


def pause_before_repetition() -> None:
    """After a deadlock: transactions that are repeated at once could block each other again."""
    sleep(random.uniform(0.02, 0.1))  # noqa: S311 - a pause, not a secret


class Readiness:
    """Waits until a socket is readable. Uses a duplicate of the descriptor, because libpq may close its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
        self._loop = loop
        self._request: LoopRequest | None = None
        self._descriptor: int | None = os.dup(descriptor)
        loop.add_reader(self._descriptor, self._wake)

    @property
    def is_open(self) -> bool:
        return self._descriptor is not None

    def wait(
        self, request: LoopRequest, *, writable: bool = False, again: bool = False, seconds: float | None = None
    ) -> bool:
        """False after `seconds`. `again`: not the first wait for a response."""
        descriptor, loop = self._descriptor, self._loop
        # uvloop never again calls the reader of a socket that had an error, as of a server that ended with unread
        # input. What it sent before is read first, so the error itself would not be noticed.
        if descriptor is None or (again and is_readable(descriptor)):
            return True
        timer = loop.call_later(seconds, self._wake, _TIMED_OUT) if seconds is not None else None
        if writable:
            loop.add_writer(descriptor, self._wake)
        self._request = request
        try:
            return request.wait() is not _TIMED_OUT
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

    def close_soon(self) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.close)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)


def is_readable(descriptor: int) -> bool:
    """Also after the other side has closed it, or an error."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


@lru_cache(maxsize=1)
def _executor() -> ThreadPoolExecutor:
    # Twice the threads of requests, so that a silent database does not occupy all of them.
    return ThreadPoolExecutor(2 * settings.WEB_THREADS, thread_name_prefix="loop-helper")


os.register_at_fork(after_in_child=_executor.cache_clear)
