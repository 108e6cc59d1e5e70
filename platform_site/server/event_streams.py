"""Sends Server-Sent Events on the event loop, without threads or tasks; queues are bounded."""

import asyncio
import contextlib
from collections import deque
from functools import lru_cache, partial
from typing import Final

from platform_site.http.event_streams import MessageQueue
from platform_site.server.http_message import Message


def start_stream(
    loop: asyncio.AbstractEventLoop, message: Message, head: tuple[int, list[tuple[str, str]]], queue: MessageQueue
) -> None:
    """Answer `message` with `queue` until one side ends it. `head` is status and headers."""
    stream = _Stream(message, head, queue)
    queue.notify = partial(_wake_ups_of(loop).add, stream)
    message.connection.on_change = stream.send
    stream.send()


class _Stream:
    __slots__ = ("_connection", "_pieces", "_queue")

    def __init__(self, message: Message, head: tuple[int, list[tuple[str, str]]], queue: MessageQueue) -> None:
        self._connection, self._queue = message.connection, queue
        self._connection.stream = queue
        self._pieces = message.respond_in_pieces(*head)
        message.release()

    def send(self) -> None:
        connection, queue = self._connection, self._queue
        if connection.is_gone:
            self._end()
            return
        while not connection.is_paused:
            data = queue.take()
            if data is None:
                self._end()
                self._pieces.end()
                return
            if not data:
                return
            self._pieces.send(data)
        if queue.is_closed:  # a client that does not read would not read the last message either
            self._end()
            connection.abort()

    def _end(self) -> None:
        self._connection.on_change = self._connection.stream = None
        self._queue.notify = lambda: None
        self._queue.close()
        self._queue.take()  # its messages would be kept until the next pass of the feed


class _WakeUps:
    """Collects the streams that have data, so that the loop is woken once for all of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: deque[_Stream] = deque()
        self._is_scheduled = False

    def add(self, stream: _Stream) -> None:
        self._due.append(stream)
        if not self._is_scheduled:
            self._is_scheduled = True
            with contextlib.suppress(RuntimeError):  # the process ends
                self._loop.call_soon_threadsafe(self._send_all)

    def _send_all(self) -> None:
        self._is_scheduled = False  # first: what comes from now on calls again
        while self._due:
            self._due.popleft().send()


_wake_ups_of: Final = lru_cache(maxsize=1)(_WakeUps)
