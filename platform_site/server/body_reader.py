"""Bodies of a stated length, awaited without the event loop.

Granian tells of a body's arrival by the event loop's `call_soon_threadsafe`, from a thread of its own. Most bodies are
there already when they are asked for, so a task that awaits one costs its making, a time-out and three turns of the
loop for nothing. Here the loop hands the news on at once, in Granian's thread (`tell_at_once`), and what is left for it
is one timer for all bodies together.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final, Protocol

from platform_site.http import errors
from platform_site.server.elastic_pool import CallLater

DISCONNECTED: Final = "The request body broke off."
_NO_CONTEXT: Final = Context()

Then = Callable[[bytes | errors.ApiError], None]
"""Told the whole body, or why there is none. Called once, in Granian's thread or the loop's."""


class Future(Protocol):
    """What is used of the future that Granian makes, an internal of its minor release as the rest of `worker`."""

    def add_done_callback(self, callback: Callable[["Future"], None], context: Context, /) -> None: ...
    def cancel(self) -> bool: ...
    def done(self) -> bool: ...
    def result(self) -> bytes: ...


class BodyReader:
    """The bodies that one process waits for, each for `seconds` at most. `later` is a thread-safe `loop.call_later`."""

    def __init__(self, later: CallLater, seconds: float, late: errors.ApiError) -> None:
        """A body that is `late` gets that for an answer."""
        self._later, self._seconds, self._late = later, seconds, late
        self._line: dict[_Body, None] = {}  # the first to come is the first to be late
        self._lock = threading.Lock()
        self._timer_set = False

    def expect(self, future: Future, then: Then) -> None:
        """Call `then` when the body is there, broke off, or is late."""
        arrival = _Body(self._line, then, future, time.monotonic() + self._seconds)
        with self._lock:
            self._line[arrival] = None
            alarm, self._timer_set = not self._timer_set, True
        if alarm:
            self._later(self._seconds, self._tick)
        future.add_done_callback(arrival, _NO_CONTEXT)
        if future.done():  # before a callback was set
            arrival(future)

    def _tick(self) -> None:
        now = time.monotonic()
        with self._lock:
            line = tuple(self._line)
            next_at = next((arrival.deadline for arrival in line if arrival.deadline > now), None)
            self._timer_set = next_at is not None
        if next_at is not None:
            self._later(next_at - now, self._tick)
        for arrival in line:
            if arrival.deadline > now:
                break
            arrival.give_up(self._late)


class _Body:
    """One body. Whichever comes first, Granian with the body or the timer, takes it out of the line and goes on."""

    __slots__ = ("_future", "_line", "_then", "deadline")

    def __init__(self, line: dict["_Body", None], then: Then, future: Future, deadline: float) -> None:
        self._line, self._then, self._future, self.deadline = line, then, future, deadline

    def __call__(self, future: Future) -> None:
        if not self._is_first():
            return
        then = self._let_go()
        try:
            body: bytes | errors.ApiError = future.result()
        except Exception:  # RSGI raises its own for a connection that broke
            body = errors.InvalidRequest(DISCONNECTED)
        then(body)

    def give_up(self, why: errors.ApiError) -> None:
        if self._is_first():
            self._future.cancel()
            self._let_go()(why)

    def _is_first(self) -> bool:
        return self._line.pop(self, self) is None

    def _let_go(self) -> Then:
        """What to go on with. The future keeps us, and Python's collector does not look into it: while we kept the
        future, neither would ever be freed, nor the request."""
        then = self._then
        del self._then, self._future
        return then


def set_result_now(loop: asyncio.AbstractEventLoop) -> None:
    """Let `loop` hand the arrival of a body on in the thread that tells of it; everything else it takes as before."""
    soon = loop.call_soon_threadsafe

    def call(callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Any:
        if type(callback) is _Body:
            return callback(*args)
        return soon(callback, *args, context=context)

    loop.call_soon_threadsafe = call  # type: ignore[method-assign, assignment]  # typeshed asks for type variables
