"""One connection to Redis for all loop requests: one write per iteration."""

import asyncio
import time
from collections import deque
from typing import Any, Final

import hiredis
import redis

from platform_site.concurrency.loop_requests import LoopRequest
from platform_site.redis.connection import UNUSABLE, Connection

_READ_SECONDS: Final = 0.002


class _Exchange:
    def __init__(self, request: LoopRequest, expected: int, deadline: float) -> None:
        self.request, self.expected, self.deadline = request, expected, deadline
        self.replies: list[Any] = []


class LoopConnection(asyncio.Protocol):
    def __init__(self, loop: asyncio.AbstractEventLoop, connection: Connection) -> None:
        self._loop, self._connection = loop, connection  # kept: deleting it would close the socket
        self._transport: Any = None
        self._reader = hiredis.Reader()
        self._pending: deque[_Exchange] = deque()
        self._unsent: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self.is_new = True
        self.is_closed = False

    def exchange(self, request: LoopRequest, packed: bytes, expected: int, deadline: float) -> list[Any]:
        """Returns `expected` replies (or ReplyErrors). Raises OSError, or ReadOnlyError: close the connection then."""
        if self.is_closed:
            raise ConnectionResetError("Redis closed the connection")
        if not self._unsent:
            self._loop.call_soon(self._send)
        self._unsent.append(packed)
        self._pending.append(_Exchange(request, expected, deadline))
        if self._timer is None:
            self._timer = self._loop.call_later(deadline - time.monotonic(), self._check_deadline)
        outcome = request.wait()
        if isinstance(outcome, Exception):
            raise outcome
        replies: list[Any] = outcome
        return replies

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        reader, pending = self._reader, self._pending
        reader.feed(data)
        try:
            while pending and (reply := reader.gets()) is not False:
                if isinstance(reply, hiredis.ReplyError) and str(reply).startswith(UNUSABLE):
                    return self._fail(redis.ReadOnlyError(str(reply)))
                first = pending[0]
                first.replies.append(reply)
                if len(first.replies) == first.expected:
                    pending.popleft()
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

    def _check_deadline(self, late: _Exchange | None = None) -> None:
        """`late` was late at the last check: then its replies might have been unread."""
        self._timer = None
        if not self._pending:
            return
        first = self._pending[0]
        left = first.deadline - time.monotonic()
        if left > 0:
            self._timer = self._loop.call_later(left, self._check_deadline)
        elif first is late:
            self._fail(TimeoutError("Redis is late"))
        else:
            self._timer = self._loop.call_later(_READ_SECONDS, self._check_deadline, first)

    def _fail(self, error: Exception) -> None:
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()
        pending, self._pending = self._pending, deque()
        for each in pending:
            self._loop.call_soon(each.request.switch, error)
