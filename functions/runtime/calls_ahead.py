"""Calls that are sent to a process while another one runs there, so that it need not wait for them. The runner begins
each when the one before has ended. What it says is read by one request at a time: each of those has its turn. For
requests on the event loop, which are one thread."""

import os
from collections import deque
from collections.abc import Callable
from typing import Final

import orjson

from functions.runtime.calls import Call
from platform_site.concurrency.loop_requests import Gate

MOST: Final = 8


class Sent:
    """A call as its process is told of it, under a random tag."""

    __slots__ = ("frame", "tag")

    def __init__(self, call: Call) -> None:
        self.tag = os.urandom(16).hex().encode()
        facts = {
            "run_id": call.run_id,
            "caller": dict(call.caller),
            "secrets": dict(call.secrets),
            "max_output": call.max_output,
        }
        self.frame = b'{"t":"run","tag":"%b","input":%b,%b' % (self.tag, call.input.encode(), orjson.dumps(facts)[1:])


class Turn:
    """The place of a call that was sent."""

    __slots__ = ("gate", "has_come", "sent")

    def __init__(self, sent: Sent) -> None:
        self.sent, self.gate, self.has_come = sent, Gate(), False


class CallsAhead:
    """Those of one process, in their order. `write` sends a frame, if that is possible at once."""

    def __init__(self, write: Callable[[bytes], bool]) -> None:
        self._write = write
        self._turns: deque[Turn] = deque()
        self.has_stray = False
        """Whether one was given up: the process must not be used after the present call."""

    def __len__(self) -> int:
        return len(self._turns)

    def send(self, call: Call) -> Turn | None:
        """None if it cannot be sent now."""
        if self.has_stray or len(self._turns) >= MOST:
            return None
        turn = Turn(Sent(call))
        if not self._write(turn.sent.frame):
            return None
        self._turns.append(turn)
        return turn

    def wait(self, turn: Turn, seconds: float) -> bool:
        """Whether the turn has come. If not, the call is given up, and nothing that the process does for it counts."""
        turn.gate.wait(seconds)
        if turn in self._turns:
            self._turns.remove(turn)
            self.has_stray = True
        return turn.has_come

    def next(self) -> bool:
        """Let the first one have the process. False without any."""
        if not self._turns:
            return False
        turn = self._turns.popleft()
        turn.has_come = True
        turn.gate.open()
        return True

    def dismiss(self) -> None:
        """The process ends: they all go elsewhere."""
        while self._turns:
            self._turns.popleft().gate.open()
