"""HTTP/1.1 on the event loop (uvloop, httptools). A connection answers one request at a time; pipelined requests wait.
A client that is late is disconnected: with its head after HEAD_SECONDS, with its body after BODY_SECONDS (408), and
when it has read nothing of a response for WRITE_SECONDS."""

import asyncio
import ctypes
import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from typing import Any, Final

from platform_site.embedded.sockets import BACKLOG
from platform_site.http import errors
from platform_site.server.http_message import EventStream, Message
from platform_site.server.http_parser import RequestParser
from platform_site.server.request_head import Forwarding, check_head

logger = logging.getLogger(__name__)

HEAD_SECONDS: Final = 10.0
BODY_SECONDS: Final = 15.0
LINGER_SECONDS: Final = 4.0
"""How long a client may send behind its last response, such as the rest of a body that is too large."""
IDLE_SECONDS: Final = 75.0
WRITE_SECONDS: Final = 60.0
_SECONDS_OF_STATE: Final = {"idle": IDLE_SECONDS, "head": HEAD_SECONDS, "body": BODY_SECONDS}
MAX_UNREAD: Final = 128 * 1024 * 1024
"""Bytes of all responses and event streams of a process that clients do not read."""
MAX_INCOMPLETE: Final = 128 * 1024 * 1024
"""Bytes of all bodies of a process that have not arrived as a whole."""
SEND_BUFFER: Final = 256 * 1024
"""Bytes that the kernel buffers besides for each connection; by default up to 4 MB."""
_EXPIRY_CHECK_SECONDS: Final = 0.5
_CLOSED_TOGETHER: Final = 64
"""Idle connections, if there are too many: finding the oldest takes milliseconds."""
_NEVER: Final = float("inf")
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class RequestTimeout(errors.ApiError):
    status, code, message = 408, "invalid_request", f"The request body did not arrive within {BODY_SECONDS:g} seconds."


@dataclass(eq=False)
class HttpServer:
    """All connections of a process. `handle(message)` answers a complete request, or its refusal."""

    loop: asyncio.AbstractEventLoop
    forwarding: Forwarding
    handle: Callable[[Message], None]
    max_connections: int

    def __post_init__(self) -> None:
        self.thread = threading.get_ident()
        self.connections: set[HttpConnection] = set()
        self.is_stopping = False
        self._server: asyncio.Server

    async def start(self, listener: Any) -> None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # connections inherit it
        self._server = await self.loop.create_server(lambda: HttpConnection(self), sock=listener, backlog=BACKLOG)
        self._expire_connections()

    def _expire_connections(self) -> None:
        now = self.loop.time()
        for connection in [each for each in self.connections if each.deadline <= now]:
            connection.expire(now)
        self._limit_unread()
        self._limit_incomplete()
        self.loop.call_later(_EXPIRY_CHECK_SECONDS, self._expire_connections)

    def _limit_unread(self) -> None:
        """Close connections, those with the most first, until the others have at most MAX_UNREAD. Bytes of a client
        that reads count as a tenth. Connections without unread bytes come last, so they are never closed."""
        unread = [(each.count_unread(), each) for each in self.connections]
        total = sum(size for size, _ in unread)
        if total <= MAX_UNREAD:
            return
        logger.warning("clients leave %d MB unread: the connections with the most are closed", total >> 20)
        for size, connection in sorted(unread, key=lambda each: -each[0] / (10 if each[1].reads else 1)):
            if total <= MAX_UNREAD:
                break
            total -= size
            if connection.stream is not None:
                connection.stream.queue.overflow()
            connection.abort()
        self.loop.call_later(_EXPIRY_CHECK_SECONDS, self.loop.run_in_executor, None, return_memory)

    def has_room(self) -> bool:
        """Whether there may be another connection. If there are too many, those that were idle for the longest time are
        closed: a few requests per second could keep enough of them open to keep all other clients out."""
        if len(self.connections) < self.max_connections:
            return True
        idle = [each for each in self.connections if each.is_idle]
        if idle:
            logger.warning("idle connections are closed: there are %d", self.max_connections)
        for connection in nsmallest(_CLOSED_TOGETHER, idle, key=lambda each: each.deadline):
            self.connections.discard(connection)
            connection.abort()
        return bool(idle)

    def _limit_incomplete(self) -> None:
        """Refuse requests, the slowest first, until the bodies of the others have at most MAX_INCOMPLETE."""
        total = sum(each.incomplete for each in self.connections)
        if total <= MAX_INCOMPLETE:
            return
        logger.warning("clients have sent %d MB of incomplete bodies: the slowest are refused", total >> 20)
        for connection in sorted(self.connections, key=lambda each: each.deadline):
            if total <= MAX_INCOMPLETE:
                break
            if connection.incomplete:
                total -= connection.incomplete
                connection.refuse(errors.Unavailable())
        self.loop.call_later(_EXPIRY_CHECK_SECONDS, self.loop.run_in_executor, None, return_memory)

    def stop_listening(self) -> None:
        self.is_stopping = True
        self._server.close()

    async def finish(self) -> None:
        while self.connections:
            for connection in list(self.connections):
                connection.close_if_idle()
            await asyncio.sleep(0.02)


def return_memory() -> None:
    """Return freed memory to the system: glibc keeps it, several times MAX_UNREAD after many large responses."""
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


class HttpConnection(asyncio.Protocol):
    """Deadlines, order of responses and flow control of one connection. `finish` alone is called in other threads."""

    _parser: RequestParser
    _transport: Any

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self._answering: Message | None = None
        self.stream: EventStream | None = None
        self._was_answered = False
        self._unread = 0
        self.reads = False
        """Whether the client has read some of the bytes that were unread before."""
        self._unwritten = 0
        """In the buffer when its deadline was set: by then the client must have read some."""
        self.deadline = server.loop.time() + HEAD_SECONDS
        self.is_gone = False
        self.is_paused = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        address = (peer[0] if peer else "", *(own[:2] if own else ("", 80)))
        self._parser = RequestParser(partial(check_head, self.server.forwarding, address))
        transport.set_write_buffer_limits(high=1024 * 1024)
        if self.server.has_room():
            self.server.connections.add(self)
        else:
            logger.warning("a connection was closed: there are %d", self.server.max_connections)
            transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_gone = True
        self._parser.close()
        self.deadline = _NEVER
        self.server.connections.discard(self)
        if self.stream is not None:
            self.stream.send()

    def eof_received(self) -> bool:
        """A half-closed client still gets its response, but no stream."""
        parser = self._parser
        is_answering = self._answering is not None or bool(parser.messages)
        if self.stream is not None or parser.state not in ("idle", "done") or not is_answering:
            return False
        parser.state = "done"
        return True

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False
        if self.stream is not None:
            self.stream.send()
        elif self._answering is None:
            self._go_on()

    def data_received(self, data: bytes) -> None:
        parser = self._parser
        before = parser.state
        if before == "done":
            return
        parser.feed(data)
        if self._answering is not None or self.is_paused:
            self._transport.pause_reading()  # what was read waits, and nothing more is read
        elif parser.messages:
            self._begin_next()
        elif parser.state != before:
            self._resume_reading()

    def _begin_next(self) -> None:
        waiting = self._parser.messages
        if self._answering is None and waiting:
            self._answering = message = waiting.popleft()
            message.connection = self
            self.deadline = _NEVER
            self.server.handle(message)

    def write(self, data: bytes) -> None:
        if not self.is_gone:
            self._transport.write(data)

    def finish(self, message: Message, data: bytes) -> None:
        if threading.get_ident() == self.server.thread:
            self._finish(message, data)
        else:
            self.server.loop.call_soon_threadsafe(self._finish, message, data)

    def _finish(self, message: Message, data: bytes) -> None:
        self._answering = None
        self._was_answered = True
        if self.is_gone:
            return
        self._transport.write(data)
        if message.is_last or self.server.is_stopping:
            # Drop input until the client closes, for LINGER_SECONDS at most: closing now could send a reset, and the
            # client could lose the response.
            self._parser.close()
            self._transport.write_eof()
            self._transport.resume_reading()
            self.deadline = self.server.loop.time() + LINGER_SECONDS
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Begin the next request, once the client has read the response."""
        if self.is_paused:
            self._unwritten = self._transport.get_write_buffer_size()
            self.deadline = self.server.loop.time() + WRITE_SECONDS
        elif self._parser.messages:
            self.server.loop.call_soon(self._begin_next)
        elif self._parser.state == "done":  # the client has closed its half
            self._close()
        else:
            self._resume_reading()

    def _resume_reading(self) -> None:
        parser = self._parser
        if parser.expects_continue:
            parser.expects_continue = False
            self._transport.write(_CONTINUE)
        self.deadline = self.server.loop.time() + _SECONDS_OF_STATE[parser.state]
        self._transport.resume_reading()

    def _close(self) -> None:
        self._transport.close()
        self.deadline = self.server.loop.time() + WRITE_SECONDS

    def abort(self) -> None:
        self._transport.abort()

    def expire(self, now: float) -> None:
        state, left = self._parser.state, self._transport.get_write_buffer_size()
        if left:
            if left == self._unwritten:
                self._transport.abort()
            self._unwritten, self.deadline = left, now + WRITE_SECONDS
        elif state == "body":
            self.refuse(RequestTimeout())
        else:
            self._close()

    @property
    def is_idle(self) -> bool:
        """Between two requests."""
        waits = self._answering is not None or self._parser.messages or self._transport.get_write_buffer_size()
        return self._was_answered and not waits and self._parser.state == "idle"

    @property
    def incomplete(self) -> int:
        return self._parser.body_size

    def refuse(self, error: errors.ApiError) -> None:
        self._parser.refuse(error)
        self._begin_next()

    def count_unread(self) -> int:
        """Bytes unread at this and the previous count: a client that reads fast has none."""
        before, self._unread = self._unread, self._transport.get_write_buffer_size()
        if self.stream is not None:
            self._unread += self.stream.queue.size
        self.reads = self._unread < before
        return min(before, self._unread)

    def close_if_idle(self) -> None:
        if self._answering is None and not self._parser.messages and self._parser.state in ("idle", "head", "done"):
            self._transport.close()
