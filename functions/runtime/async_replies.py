"""Requests of a call that need the network run in threads beside it. The thread of the call keeps serving the code and
writes the replies; a pipe wakes it, since it waits for the process by `poll`."""

import contextlib
import contextvars
import os
import threading
import time
from collections.abc import Callable
from typing import Final

MAX_AT_ONCE: Final = 6
"""Per call, as many as browsers have connections to a host: each holds a request and a reply in memory."""


class AsyncReplies:
    """The requests in progress of one call. `wake` is the write end of the pipe; it does not block."""

    def __init__(self, wake: int) -> None:
        self._wake = wake
        self._changed = threading.Condition()
        self._working = 0
        self._replies: list[bytes] = []
        self._is_closed = False

    @property
    def is_full(self) -> bool:
        with self._changed:
            return self._working + len(self._replies) >= MAX_AT_ONCE

    @property
    def is_busy(self) -> bool:
        with self._changed:
            return self._working > 0

    def begin(self, answer: Callable[[], bytes]) -> None:
        """Call `answer`, which never raises, in a new thread with the context of the caller."""
        with self._changed:
            self._working += 1
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=[self._run, answer], name="function-reply", daemon=True).start()

    def take(self) -> list[bytes]:
        with self._changed:
            replies, self._replies = self._replies, []
            return replies

    def wait(self, deadline: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._working == 0, max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """The call is over: further replies are dropped, and the pipe is not used."""
        with self._changed:
            self._is_closed = True

    def _run(self, answer: Callable[[], bytes]) -> None:
        reply = answer()
        with self._changed:
            self._working -= 1
            self._changed.notify_all()
            if not self._is_closed:
                self._replies.append(reply)
                with contextlib.suppress(BlockingIOError):  # full of notifications already
                    os.write(self._wake, b".")
