"""Pipelining on the event loop: calls are sent to a process while another one runs there. The runner begins each when
the previous one has ended. One request at a time reads the channel."""

import os
from collections import deque
from collections.abc import Callable
from typing import Final

import orjson

from functions.runtime.calls import Call
from platform_site.concurrency.loop_requests import Gate

MAX_QUEUED: Final = 8


class RunFrame:
    """The frame that begins a call. The runner repeats `tag` in the frames of this call."""

    __slots__ = ("body", "tag")

    def __init__(self, call: Call) -> None:
        self.tag = os.urandom(16).hex().encode()
        facts = {
            "run_id": call.run_id,
            "caller": dict(call.caller),
            "secrets": dict(call.secrets),
            "max_output": call.max_output,
        }
        self.body = b'{"t":"run","tag":"%b","input":%b,%b' % (self.tag, call.input.encode(), orjson.dumps(facts)[1:])


class QueuedCall:
    __slots__ = ("frame", "gate", "has_process")

    def __init__(self, frame: RunFrame) -> None:
        self.frame, self.gate, self.has_process = frame, Gate(), False


class CallsAhead:
    """The queued calls of one process, in order. `write` sends a frame, and returns False if it would block."""

    def __init__(self, write: Callable[[bytes], bool]) -> None:
        self._write = write
        self._queue: deque[QueuedCall] = deque()
        self.has_abandoned_call = False
        """If so, the process must not be used after the current call."""

    def __len__(self) -> int:
        return len(self._queue)

    def send(self, call: Call) -> QueuedCall | None:
        """None if it cannot be sent now."""
        if self.has_abandoned_call or len(self._queue) >= MAX_QUEUED:
            return None
        queued = QueuedCall(RunFrame(call))
        if not self._write(queued.frame.body):
            return None
        self._queue.append(queued)
        return queued

    def wait(self, queued: QueuedCall, seconds: float) -> bool:
        """Whether the process is free for the call. If not, the call is given up, and its outcome is ignored."""
        queued.gate.wait(seconds)
        if queued in self._queue:
            self._queue.remove(queued)
            self.has_abandoned_call = True
        return queued.has_process

    def next(self) -> bool:
        """Give the process to the first queued call. False if there is none."""
        if not self._queue:
            return False
        queued = self._queue.popleft()
        queued.has_process = True
        queued.gate.open()
        return True

    def reject_all(self) -> None:
        while self._queue:
            self._queue.popleft().gate.open()
