"""One connection to Redis for all loop requests: one write per iteration."""

import asyncio
import time
from collections import deque
from typing import Any, Final

import hiredis
import redis

from platform_site.concurrency.loop_requests import LoopRequest
from platform_site.redis.connection import TAKES_NO_WRITES, Connection

_LATE: Final = "Redis is late"
_READ_SECONDS: Final = 0.002


class _Asked:
    __slots__ = ("deadline", "expected", "replies", "request")

    def __init__(self, request: LoopRequest, expected: int, deadline: float) -> None:
        self.request, self.expected, self.deadline = request, expected, deadline
        self.replies: list[Any] = []


class LoopConnection(asyncio.Protocol):
    def __init__(self, loop: asyncio.AbstractEventLoop, made: Connection) -> None:
        self._loop, self._made = loop, made  # which would close the socket
        self._transport: Any = None
        self._reader = hiredis.Reader()
        self._asked: deque[_Asked] = deque()
        self._unsent: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self.is_new = True
        self.is_closed = False

    def exchange(self, request: LoopRequest, packed: bytes, expected: int, deadline: float) -> list[Any]:
        """Returns `expected` replies (or ReplyErrors). Raises OSError, or ReadOnlyError: it is then useless."""
        if self.is_closed:
            raise ConnectionResetError("Redis closed the connection")
        if not self._unsent:
            self._loop.call_soon(self._send)
        self._unsent.append(packed)
        self._asked.append(_Asked(request, expected, deadline))
        if self._timer is None:
            self._timer = self._loop.call_later(deadline - time.monotonic(), self._look)
        outcome = request.wait()
        if isinstance(outcome, Exception):
            raise outcome
        replies: list[Any] = outcome
        return replies

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        reader, asked = self._reader, self._asked
        reader.feed(data)
        try:
            while asked and (reply := reader.gets()) is not False:
                if isinstance(reply, hiredis.ReplyError) and str(reply).startswith(TAKES_NO_WRITES):
                    return self._fail(redis.ReadOnlyError(str(reply)))
                first = asked[0]
                first.replies.append(reply)
                if len(first.replies) == first.expected:
                    asked.popleft()
                    self.is_new = False
                    first.request.switch(first.replies)
        except hiredis.HiredisError as error:
            self._fail(error)
        return None

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(error or ConnectionResetError("Redis closed the connection"))

    def _send(self) -> None:
        packed, self._unsent = b"".join(self._unsent), []
        if not self.is_closed:
            self._transport.write(packed)

    def _look(self, missed: _Asked | None = None) -> None:
        """One timer, for the first deadline. `missed` was late before: its replies may be unread."""
        self._timer = None
        if not self._asked:
            return
        first = self._asked[0]
        left = first.deadline - time.monotonic()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        elif first is missed:
            self._fail(TimeoutError(_LATE))
        else:
            self._timer = self._loop.call_later(_READ_SECONDS, self._look, first)

    def _fail(self, error: Exception) -> None:
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()
        asked, self._asked = self._asked, deque()
        for each in asked:
            self._loop.call_soon(each.request.switch, error)
