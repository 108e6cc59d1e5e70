"""HTTP/1.1 on the event loop (uvloop, httptools). A connection answers one request at a time; pipelined requests wait.
Limits as in docs/explanation/reliability.md: HEAD_SECONDS, BODY_SECONDS, WRITE_SECONDS."""

import asyncio
import ctypes
import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import Any, Final

from platform_site.embedded.sockets import BACKLOG
from platform_site.http import errors
from platform_site.http.event_streams import MessageQueue
from platform_site.server.http_message import Message
from platform_site.server.http_parser import Refused, RequestParser
from platform_site.server.request_checks import is_too_large

logger = logging.getLogger(__name__)

HEAD_SECONDS: Final = 10.0
BODY_SECONDS: Final = 15.0
DRAIN_SECONDS: Final = 2.0
IDLE_SECONDS: Final = 75.0
WRITE_SECONDS: Final = 60.0
MAX_UNREAD: Final = 128 * 1024 * 1024
"""Bytes of all responses and event streams of a process that clients do not read."""
SEND_BUFFER: Final = 256 * 1024
"""What the kernel takes of them for each connection, besides. Without it: up to 4 MB."""
_PAUSE_AT: Final = 8
_PAUSE_BYTES: Final = 64 * 1024
"""While a request is answered, reading pauses at so many waiting requests, or so many bytes of them."""
_EXPIRY_CHECK_SECONDS: Final = 0.5
_NEVER: Final = float("inf")
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

Peer = tuple[str, str, int]
"""The client's IP, and the local IP and port."""


class RequestTimeout(errors.ApiError):
    status, code, message = 408, "invalid_request", f"The request body did not arrive within {BODY_SECONDS:g} seconds."


class HttpServer:
    """All connections of a process, on its event loop. `check(message, peer)` returns the error to refuse a request
    head with, or None; `handle(message)` answers a complete request. Connections beyond `max_connections` are
    closed."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        check: Callable[[Message, Peer], errors.ApiError | None],
        handle: Callable[[Message], None],
        max_connections: int,
    ) -> None:
        self.loop, self.check, self.handle, self.max_connections = loop, check, handle, max_connections
        self._thread = threading.get_ident()
        self.connections: set[HttpConnection] = set()
        self.is_stopping = False
        self._server: asyncio.Server | None = None

    def is_on_loop(self) -> bool:
        return threading.get_ident() == self._thread

    async def start(self, listener: Any) -> None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # connections inherit it
        self._server = await self.loop.create_server(lambda: HttpConnection(self), sock=listener, backlog=BACKLOG)
        if self.is_stopping:  # stopped before it had started
            self._server.close()
        self._expire_connections()

    def _expire_connections(self) -> None:
        now = self.loop.time()
        for connection in [each for each in self.connections if each.deadline <= now]:
            connection.expire(now)
        self._limit_unread()
        self.loop.call_later(_EXPIRY_CHECK_SECONDS, self._expire_connections)

    def _limit_unread(self) -> None:
        """Close connections until the others have at most MAX_UNREAD: first those that read nothing since the last
        count, and of these and of the others those with the most."""
        unread = [(each.count_unread(), each) for each in self.connections]
        total = sum(size for size, _ in unread)
        if total <= MAX_UNREAD:
            return
        logger.warning("clients leave %d MB unread: the connections with the most are closed", total >> 20)
        for size, connection in sorted(unread, key=lambda each: (each[1].reads, -each[0])):
            if total <= MAX_UNREAD:
                break
            total -= size
            if connection.stream is not None:
                connection.stream.overflow()
            connection.abort()
        self.loop.call_later(_EXPIRY_CHECK_SECONDS, self.loop.run_in_executor, None, return_memory)

    def stop_listening(self) -> None:
        self.is_stopping = True
        if self._server is not None:
            self._server.close()

    def close_idle(self) -> None:
        for connection in list(self.connections):
            connection.close_if_idle()

    async def finish(self) -> None:
        while self.connections:
            self.close_idle()
            await asyncio.sleep(0.02)


def return_memory() -> None:
    """Return freed memory to the system: glibc keeps it, several times MAX_UNREAD after many large responses."""
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


class HttpConnection(RequestParser):
    __slots__ = (
        "_answering", "_descriptor", "_is_all_written", "_is_answered", "_is_reading_paused", "_peer", "_server",
        "_transport", "_unread", "_unwritten", "_writing", "_written_at", "deadline", "reads",
    )  # fmt: skip

    def __init__(self, server: HttpServer) -> None:
        super().__init__()
        self._server = server
        self._transport: Any = None
        self._answering: Message | None = None
        self._is_answered = False
        self.on_change: Callable[[], None] | None = None
        self.stream: MessageQueue | None = None
        self._unread = 0
        self.reads = False
        """Whether the client read from what it left unread before."""
        self._unwritten = 0
        self._written_at = 0.0
        self._is_all_written = False
        """Whether all previous responses are written, so that a thread may write directly."""
        self._is_reading_paused = False
        self.deadline = server.loop.time() + HEAD_SECONDS
        self.is_gone = False
        self._writing = threading.Lock()
        """Held while a thread writes to the descriptor."""
        self.is_paused = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._descriptor = transport.get_extra_info("socket").fileno()
        peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        self._peer = (peer[0] if peer else "", *(own[:2] if own else ("", 80)))
        transport.set_write_buffer_limits(high=1024 * 1024)
        if len(self._server.connections) < self._server.max_connections:
            self._server.connections.add(self)
        else:
            logger.warning("a connection was closed: there are %d", self._server.max_connections)
            transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        with self._writing:
            self.is_gone = True
        self._state = "done"
        self.deadline = _NEVER
        self._server.connections.discard(self)
        self._waiting.clear()
        self._parsing = None
        if self.on_change is not None:
            self.on_change()

    def eof_received(self) -> bool:
        """A half-closed client still gets its response, but no stream."""
        if (
            self.on_change is not None
            or self._state in ("head", "body", "drain")
            or (self._answering is None and not self._waiting)
        ):
            return False
        self._state = "done"
        return True

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False
        if self.on_change is not None:
            self.on_change()
        elif self._answering is None:
            self._go_on()

    def data_received(self, data: bytes) -> None:
        if self._state == "done":
            return
        if self._answering is None:
            if self._state == "idle":
                self.deadline = self._server.loop.time() + HEAD_SECONDS
        elif (
            len(self._waiting) >= _PAUSE_AT
            or self._size + sum(len(message.body) for message in self._waiting) > _PAUSE_BYTES
        ):
            self._is_reading_paused = True
            self._transport.pause_reading()
        self.feed(data)

    def _check_head(self, message: Message) -> None:
        message.refusal = self._server.check(message, self._peer)
        if message.refusal is not None:
            raise Refused(message.refusal)
        meta = message.meta
        stated = meta.get("CONTENT_LENGTH")
        if stated is not None and is_too_large(stated):
            if "HTTP_EXPECT" in meta:
                raise Refused(errors.PayloadTooLarge())
            self._drain()
        elif "HTTP_EXPECT" in meta and (stated or "HTTP_TRANSFER_ENCODING" in meta) and self._answering is None:
            if meta["HTTP_EXPECT"].lower() == "100-continue" and meta["SERVER_PROTOCOL"] == "HTTP/1.1":
                self._put(_CONTINUE)
        if self._answering is None:
            self.deadline = self._server.loop.time() + (DRAIN_SECONDS if self._state == "drain" else BODY_SECONDS)

    def _queue(self, message: Message) -> None:
        if self._answering is None and not self._waiting:
            is_written = self._written_at != self._server.loop.time() and not self._transport.get_write_buffer_size()
            self._handle(message, is_all_written=is_written)
        else:
            self._waiting.append(message)
            if self._answering is None:  # a thread has just answered it
                self._go_on()

    def _handle(self, message: Message, *, is_all_written: bool = False) -> None:
        self._answering, self._is_answered, self._is_all_written = message, False, is_all_written
        self.deadline = _NEVER
        self._server.handle(message)

    def _refuse(self, error: errors.ApiError) -> None:
        message = self._parsing or Message(self)
        self._parsing = None
        self._state = "done"
        message.refusal, message.is_last = error, True
        self._queue(message)

    def claim_response(self, message: Message) -> bool:
        if self._answering is not message or self._is_answered:
            return False
        self._is_answered = True
        message.is_last = message.is_last or self._server.is_stopping
        return True

    def write(self, data: bytes) -> None:
        """From any thread."""
        if self._server.is_on_loop():
            self._put(data)
        else:
            self._server.loop.call_soon_threadsafe(self._put, data)

    def _put(self, data: bytes) -> None:
        if not self.is_gone:
            self._transport.write(data)
            self._written_at = self._server.loop.time()

    def finish(self, data: bytes, is_last: bool) -> None:
        if self._server.is_on_loop():
            self._finish(data, is_last)
        elif is_last or self._server.is_stopping or not self._is_all_written or not self._write_now(data):
            self._server.loop.call_soon_threadsafe(self._finish, data, is_last)

    def _write_now(self, data: bytes) -> bool:
        """Write a whole response in this thread, without waking the loop. False if nothing was written."""
        with self._writing:  # otherwise the descriptor could be closed meanwhile and reused by another connection
            if self.is_gone:
                return False
            try:
                written = os.write(self._descriptor, data)
            except OSError:
                return False
        loop = self._server.loop
        if written < len(data):
            loop.call_soon_threadsafe(self._finish, data[written:], False)
            return True
        self.deadline = loop.time() + IDLE_SECONDS
        self._answering = None
        if self._waiting or self._state != "idle" or self._is_reading_paused:  # read after `_answering` was cleared
            loop.call_soon_threadsafe(self._go_on)
        return True

    def _finish(self, data: bytes, is_last: bool) -> None:
        is_refused = self._answering is not None and self._answering.refusal is not None
        self._answering = None
        if self.is_gone:
            return
        if data:
            self._put(data)
        if is_last or self._server.is_stopping:
            self._state = "done"
            self._waiting.clear()
            if is_refused and self._transport.can_write_eof():
                # Drop the client's input for DRAIN_SECONDS: closing now would send a reset, and the client could lose
                # the response.
                self._transport.write_eof()
                self.deadline = self._server.loop.time() + DRAIN_SECONDS
            else:
                self._transport.close()
                self.deadline = self._server.loop.time() + WRITE_SECONDS
            return
        self._go_on()

    def _go_on(self) -> None:
        """Go on with the next request, once the client has read the response."""
        now = self._server.loop.time()
        if self.is_paused:
            self._unwritten = self._transport.get_write_buffer_size()
            self.deadline = now + WRITE_SECONDS
        elif self._answering is None:
            if self._waiting:
                self._server.loop.call_soon(self._begin_next)
            elif self._state == "done":  # the client has closed its half
                self._transport.close()
                self.deadline = now + WRITE_SECONDS
            elif self._state == "idle":
                self.deadline = now + IDLE_SECONDS
                self._resume_reading()
            else:
                self.deadline = now + (HEAD_SECONDS if self._state == "head" else BODY_SECONDS)
                self._resume_reading()

    def _resume_reading(self) -> None:
        if self._is_reading_paused:
            self._is_reading_paused = False
            self._transport.resume_reading()

    def _begin_next(self) -> None:
        if self._answering is None and self._waiting and not self.is_gone:
            self._handle(self._waiting.popleft())

    def abort(self) -> None:
        self._server.loop.call_soon_threadsafe(self._transport.abort)

    def expire(self, now: float) -> None:
        left = self._transport.get_write_buffer_size()
        if left:
            if left == self._unwritten:
                self._transport.abort()
            self._unwritten, self.deadline = left, now + WRITE_SECONDS
        elif self._state in ("body", "drain"):
            self._refuse(RequestTimeout() if self._state == "body" else errors.PayloadTooLarge())
        else:
            self._transport.close()
            self.deadline = now + WRITE_SECONDS

    def count_unread(self) -> int:
        """The bytes that the client has not read, but no more than at the previous count: a client that reads fast has
        none."""
        before, self._unread = self._unread, self._transport.get_write_buffer_size()
        if self.stream is not None:
            self._unread += self.stream.size
        self.reads = self._unread < before
        return min(before, self._unread)

    def close_if_idle(self) -> None:
        if self._answering is None and not self._waiting and self._state in ("idle", "head", "done"):
            self._transport.close()
