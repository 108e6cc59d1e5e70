"""Questions of one call whose answers come from far away: they are made in threads beside it, a few at a time.

The thread of the call goes on with what the code says meanwhile, and hands the answers in: it alone writes into the
channel. It is woken through a pipe, since it waits for the process of the code by `poll`. Used by `process`.
"""

import contextlib
import contextvars
import os
import threading
import time
from collections.abc import Callable
from typing import Final

MOST_AT_ONCE: Final = 6
"""Of one call, as many as browsers have connections to a host. Each holds a question and an answer in memory, so the
code waits with what it asks beyond that."""


class Asides:
    """What is under way for one call. `wake` is the end of the pipe that is written to; it does not block."""

    def __init__(self, wake: int) -> None:
        self._wake = wake
        self._changed = threading.Condition()
        self._working = 0
        self._made: list[bytes] = []
        self._is_closed = False

    @property
    def is_full(self) -> bool:
        """Whether another one has to wait until one has been taken."""
        with self._changed:
            return self._working + len(self._made) >= MOST_AT_ONCE

    @property
    def is_busy(self) -> bool:
        """Whether any is under way."""
        with self._changed:
            return self._working > 0

    def begin(self, answer: Callable[[], bytes]) -> None:
        """Let `answer` be made, in the context of the caller. It never raises."""
        with self._changed:
            self._working += 1
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=[self._make, answer], name="function-aside", daemon=True).start()

    def take(self) -> list[bytes]:
        """What was made since the last time."""
        with self._changed:
            made, self._made = self._made, []
            return made

    def wait(self, deadline: float) -> None:
        """Until none is under way, or the deadline, a moment of `time.monotonic`."""
        with self._changed:
            self._changed.wait_for(lambda: self._working == 0, max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """The call is over: whatever is made from now on is nobody's, and the pipe is left alone."""
        with self._changed:
            self._is_closed = True

    def _make(self, answer: Callable[[], bytes]) -> None:
        made = answer()
        with self._changed:
            self._working -= 1
            self._changed.notify_all()
            if not self._is_closed:
                self._made.append(made)
                with contextlib.suppress(BlockingIOError):  # full of wake-ups as it is
                    os.write(self._wake, b".")
