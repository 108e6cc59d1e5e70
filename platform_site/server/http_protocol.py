"""HTTP/1.1 on the event loop: uvloop's transport and httptools' parser in, one response after the other out.

A connection has one request in hand at a time; pipelined ones wait their turn. Limits, as in
docs/explanation/reliability.md: a head within HEAD_SECONDS and HEAD_BYTES, a body within BODY_SECONDS, and a client
that takes nothing of its response for WRITE_SECONDS is cut off. RFC 9112.
"""

import asyncio
import email.utils
import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import unquote

import httptools

from platform_site.http import errors
from platform_site.server.request_checks import BODY_LIMIT, is_too_large

logger = logging.getLogger(__name__)

HEAD_SECONDS: Final = 10.0
HEAD_BYTES: Final = 64 * 1024
MAX_HEADERS: Final = 100
MAX_PIPELINED: Final = 64
"""Requests that wait for the response to the one before."""
_PAUSE_AT: Final = 8
"""With so many waiting nothing more is read; what one reading brings may be more."""
BODY_SECONDS: Final = 15.0
DRAIN_BYTES: Final = 8 * 1024 * 1024
DRAIN_SECONDS: Final = 2.0
"""An oversized body is read and dropped up to here, so that the client is still listening when the 413 arrives."""
IDLE_SECONDS: Final = 75.0
WRITE_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.5
_NEVER: Final = float("inf")
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_ABSOLUTE: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://([^/?#]*)(.*)")
_FIRST_LINE: Final = re.compile(rb"[A-Za-z]{1,16} /")
_NOT_HTTP: Final = "This is not a request by HTTP/1.1."
_TRAILERS: Final = "The request body broke off, or has trailers."

Headers = list[tuple[str, str]]
Peer = tuple[str, str, int]
"""The address of a client, and the address and port that it has connected to."""


class RequestTimeout(errors.ApiError):
    """The body did not arrive in time."""

    status, code, message = 408, "invalid_request", f"The request body did not arrive within {BODY_SECONDS:g} seconds."


class Message:
    """One request as it arrived. `meta` is WSGI's environment without the `wsgi.` entries."""

    __slots__ = (
        "authority", "body", "connection", "headers", "is_last", "meta", "path", "refusal", "repeated", "scheme",
        "unreadable",
    )  # fmt: skip

    def __init__(self, connection: "HttpConnection") -> None:
        self.connection = connection
        self.meta: dict[str, Any] = {}
        self.path = ""
        self.authority: str | None = None
        """The host that the first line names, which counts before the header (RFC 9112, 3.2.2)."""
        self.headers: list[tuple[str, str]] = []
        """Names in lower case, and values of ASCII."""
        self.repeated: frozenset[str] = frozenset()
        """Names, in lower case, of headers that came more than once."""
        self.scheme = "http"
        self.unreadable: set[str] = set()
        """Names of headers whose value has bytes outside ASCII."""
        self.body: bytes = b""
        self.refusal: errors.ApiError | None = None
        """Why it cannot be answered otherwise."""
        self.is_last = False
        """The connection is closed after its response."""

    def release(self) -> None:
        """Let go of what was asked, for a response that lasts."""
        self.meta, self.headers, self.body = {}, [], b""

    # ── the response: once, from any thread ──────────────────────────────────────────────────────────────────────────
    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole response. Ignored if one was sent before."""
        connection = self.connection
        if not connection.take_turn(self):
            return
        lines, is_last = _head(status, headers, self.is_last or connection.is_leaving)
        if status >= 200 and status not in (204, 304):
            if b"Content-Length: " not in lines[1]:
                lines.append(b"content-length: %d\r\n" % len(body))
        lines.append(b"\r\n")
        if body and self.meta.get("REQUEST_METHOD") != "HEAD":
            lines.append(body)
        connection.finish(b"".join(lines), is_last)

    def respond_in_pieces(self, status: int, headers: Headers) -> "ResponseStream":
        """Begin a response of unknown length."""
        connection = self.connection
        if not connection.take_turn(self):
            return ResponseStream(connection, chunked=False, silent=True, is_last=True)
        chunked = self.meta.get("SERVER_PROTOCOL") == "HTTP/1.1" and not any(
            name.lower() == "content-length" for name, _ in headers
        )
        lines, is_last = _head(status, headers, self.is_last or connection.is_leaving or not chunked)
        lines.append(b"transfer-encoding: chunked\r\n\r\n" if chunked else b"\r\n")
        connection.write(b"".join(lines))
        silent = self.meta.get("REQUEST_METHOD") == "HEAD"
        return ResponseStream(connection, chunked=chunked and not silent, silent=silent, is_last=is_last)


class ResponseStream:
    """A response that is sent in pieces, from any thread."""

    __slots__ = ("_chunked", "_connection", "_is_last", "_silent")

    def __init__(self, connection: "HttpConnection", *, chunked: bool, silent: bool, is_last: bool) -> None:
        self._connection, self._chunked, self._silent, self._is_last = connection, chunked, silent, is_last

    def send(self, data: bytes) -> None:
        """Raises ConnectionError once the client is gone."""
        if self._connection.is_gone:
            raise ConnectionResetError("the client is gone")
        if data and not self._silent:
            self._connection.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def end(self) -> None:
        self._connection.finish(b"0\r\n\r\n" if self._chunked else b"", self._is_last)

    def abort(self) -> None:
        """The client must not take what it has for the whole."""
        self._connection.abort()


def _head(status: int, headers: Headers, is_last: bool) -> tuple[list[bytes], bool]:
    text = "".join([f"{name}: {value}\r\n" for name, value in headers]).encode("latin-1", "replace")
    if not is_last and ("Connection", "close") in headers:
        is_last = True
    elif is_last and ("Connection", "close") not in headers:
        text += b"connection: close\r\n"
    return [_status_line(status), text, _date(int(time.time()))], is_last


@lru_cache(maxsize=64)
def _status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode()


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    return f"date: {email.utils.formatdate(second, usegmt=True)}\r\n".encode()


class HttpServer:
    """The connections of one process. Both calls are made on the loop: `check(message, peer)` for a head, with the
    address of the client and ours, returns why it is refused; `begin(message)` is for a whole request. More than `most`
    connections are closed at once."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        check: Callable[[Message, Peer], errors.ApiError | None],
        begin: Callable[[Message], None],
        most: int,
    ) -> None:
        self.loop, self.check, self.begin, self._most = loop, check, begin, most
        self._thread = threading.get_ident()
        self.writing = threading.Lock()
        """Held while a thread writes to a descriptor, and until a lost connection is known as lost."""
        self.connections: set[HttpConnection] = set()
        self.leaving = False
        """This process ends soon: every response asks its client to come again by another connection."""
        self._server: asyncio.Server | None = None

    def is_on_loop(self) -> bool:
        return threading.get_ident() == self._thread

    def add(self, connection: "HttpConnection") -> bool:
        """Whether there may be one more."""
        if len(self.connections) >= self._most:
            logger.warning("a connection was closed: there are %d", self._most)
            return False
        self.connections.add(connection)
        return True

    async def start(self, listener: Any) -> None:
        self._server = await self.loop.create_server(lambda: HttpConnection(self), sock=listener)
        if self.leaving:  # asked to end before it had begun
            self._server.close()
        self._look()

    def _look(self) -> None:
        """One timer for all connections instead of one for each request."""
        now = self.loop.time()
        for connection in [each for each in self.connections if each.deadline <= now]:
            connection.expire(now)
        self.loop.call_later(_LOOK_SECONDS, self._look)

    def leave(self) -> None:
        """Accept no more connections, and close those that are idle; others end with their response."""
        self.leaving = True
        if self._server is not None:
            self._server.close()

    def close_idle(self) -> None:
        for connection in list(self.connections):
            connection.close_if_idle()

    async def finish(self) -> None:
        """Return when every connection is closed."""
        while self.connections:
            self.close_idle()
            await asyncio.sleep(0.02)


class HttpConnection(asyncio.Protocol):
    """One connection of a client."""

    __slots__ = (
        "_current", "_descriptor", "_head_bytes", "_in_hand",
        "_is_all_written", "_is_answered", "_is_reading_paused", "_parser", "_peer", "_pieces",
        "_server", "_size", "_state", "_transport", "_unwritten", "_url", "_waiting", "_written_at",
        "deadline", "is_gone", "is_paused", "on_change",
    )  # fmt: skip

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._transport: Any = None
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[Message] = deque()
        """Whole requests whose turn has not come."""
        self._in_hand: Message | None = None
        self._is_answered = False
        self._current: Message | None = None
        """The request that arrives now."""
        self._url = b""
        self._pieces: list[bytes] = []
        self._size = 0
        self._head_bytes = 0
        self._state = "idle"
        """What the client is at: idle, head, body, drain (a body that is too large), done (nothing more is read)."""
        self.on_change: Callable[[], None] | None = None
        """Called when the client is gone, and when it has taken what was written."""
        self._unwritten = 0
        self._written_at = 0.0
        self._is_all_written = False
        """Whether the transport has passed on all responses before the one in hand, so that a thread may write it."""
        self._is_reading_paused = False
        self.deadline = server.loop.time() + HEAD_SECONDS
        self.is_gone = False
        self.is_paused = False
        """The client does not take what was written."""

    @property
    def is_leaving(self) -> bool:
        return self._server.leaving

    # ── what the transport says ──────────────────────────────────────────────────────────────────────────────────────
    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._descriptor = transport.get_extra_info("socket").fileno()
        peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        self._peer = (peer[0] if peer else "", *(own[:2] if own else ("", 80)))
        transport.set_write_buffer_limits(high=1024 * 1024)
        if not self._server.add(self):
            transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        with self._server.writing:
            self.is_gone = True
        self._state = "done"
        self.deadline = _NEVER
        self._server.connections.discard(self)
        self._waiting.clear()
        self._current = None
        if self.on_change is not None:
            self.on_change()

    def eof_received(self) -> bool:
        """A client that only sends no more still gets what it has asked for, but for a stream."""
        if (
            self.on_change is not None
            or self._state in ("head", "body", "drain")
            or (self._in_hand is None and not self._waiting)
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
        elif self._in_hand is None:
            self._go_on()

    def data_received(self, data: bytes) -> None:
        if self._state == "done":
            return
        if self._in_hand is not None and len(self._waiting) >= _PAUSE_AT:
            self._is_reading_paused = True
            self._transport.pause_reading()
        if self._state == "idle":
            self._state = "head"
            self._head_bytes = 0
            if self._in_hand is None:
                self.deadline = self._server.loop.time() + HEAD_SECONDS
        if self._state == "head":
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:  # which nobody takes up: the connection goes on as it was
            self._parser = httptools.HttpRequestParser(self)
            rest = data[upgrade.args[0] :]
            if rest:
                self.data_received(rest)
            return
        except _Refused as refused:
            self._refuse(refused.error)
            return
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if isinstance(cause, _Refused):
                self._refuse(cause.error)
            else:
                logger.error("a request could not be read", exc_info=error)
                self._refuse(errors.Internal())
            return
        except httptools.HttpParserInvalidMethodError:
            is_word = _FIRST_LINE.match(data) is not None
            self._refuse(errors.MethodNotAllowed() if is_word else errors.InvalidRequest(_NOT_HTTP))
            return
        except httptools.HttpParserError:
            self._refuse(errors.InvalidRequest(_NOT_HTTP))
            return
        if self._state == "head" and self._head_bytes > HEAD_BYTES:
            self._refuse(_HeadTooLarge())
        elif self._state == "drain" and self._size > DRAIN_BYTES:
            self._refuse(errors.PayloadTooLarge())

    # ── what the parser says ─────────────────────────────────────────────────────────────────────────────────────────
    def on_message_begin(self) -> None:
        if len(self._waiting) >= MAX_PIPELINED:
            raise _Refused(errors.InvalidRequest("Too many requests were sent before the first was answered."))
        self._current = Message(self)
        self._state = "head"
        self._url = b""
        self._pieces = []
        self._size = 0

    def on_url(self, part: bytes) -> None:
        self._url += part

    def on_header(self, name: bytes, value: bytes) -> None:
        message = self._current
        if message is None:
            return
        if self._state != "head":
            raise _Refused(errors.InvalidRequest(_TRAILERS))
        if len(message.headers) >= MAX_HEADERS:
            raise _Refused(_HeadTooLarge())
        header = name.decode().lower()
        if not value.isascii():
            message.unreadable.add(header)
        elif (text := value.decode()).isprintable() or text.replace("\t", " ").isprintable():
            message.headers.append((header, text))
        else:
            raise _Refused(errors.InvalidRequest("A header has a control character."))

    def on_headers_complete(self) -> None:
        message = self._current
        if message is None:
            return
        self._first_line(message)
        meta = message.meta
        message.is_last = not self._parser.should_keep_alive()
        message.refusal = self._server.check(message, self._peer)
        stated = meta.get("CONTENT_LENGTH")
        self._state = "body"
        if message.refusal is not None:
            raise _Refused(message.refusal)
        if stated is not None and is_too_large(stated):
            if "HTTP_EXPECT" in meta:
                raise _Refused(errors.PayloadTooLarge())
            self._drain()
        elif "HTTP_EXPECT" in meta and (stated or "HTTP_TRANSFER_ENCODING" in meta) and self._in_hand is None:
            if meta["HTTP_EXPECT"].lower() == "100-continue" and meta["SERVER_PROTOCOL"] == "HTTP/1.1":
                self._put(_CONTINUE)
        if self._in_hand is None:
            self.deadline = self._server.loop.time() + (DRAIN_SECONDS if self._state == "drain" else BODY_SECONDS)

    def _first_line(self, message: Message) -> None:
        try:
            url = self._url.decode("ascii")
        except UnicodeDecodeError:
            raise _Refused(errors.InvalidRequest("The request target has bytes outside ASCII.")) from None
        meta = message.meta
        if not url.startswith("/") and (absolute := _ABSOLUTE.match(url)):
            message.authority, url = absolute[1], "/" + absolute[2].removeprefix("/")
        url = url.partition("#")[0]
        path, _, query = url.partition("?")
        message.path = unquote(path, errors="replace") if "%" in path else path
        meta["REQUEST_METHOD"] = self._parser.get_method().decode()
        meta["SCRIPT_NAME"] = ""
        meta["PATH_INFO"] = message.path
        meta["QUERY_STRING"] = query
        meta["SERVER_PROTOCOL"] = f"HTTP/{self._parser.get_http_version()}"

    def _drain(self) -> None:
        self._state = "drain"
        self._pieces = []

    def on_body(self, part: bytes) -> None:
        self._size += len(part)
        if self._state == "body":
            if self._size <= BODY_LIMIT:
                self._pieces.append(part)
            else:
                self._drain()

    def on_message_complete(self) -> None:
        message = self._current
        if message is None:
            return
        self._current = None
        is_too_long, self._state = self._state == "drain", "idle"
        self._head_bytes = 0
        if is_too_long:
            raise _Refused(errors.PayloadTooLarge())
        message.body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces = []
        if message.meta.pop("HTTP_TRANSFER_ENCODING", None) is not None:
            message.meta["CONTENT_LENGTH"] = str(len(message.body))
        self._queue(message)

    # ── one request at a time ────────────────────────────────────────────────────────────────────────────────────────
    def _queue(self, message: Message) -> None:
        if self._in_hand is None and not self._waiting:
            self._begin(message, is_all_written=self._written_at != self._server.loop.time())
        else:
            self._waiting.append(message)
            if self._in_hand is None:  # a thread has just answered it
                self._go_on()

    def _begin(self, message: Message, *, is_all_written: bool = False) -> None:
        self._in_hand, self._is_answered, self._is_all_written = message, False, is_all_written
        self.deadline = _NEVER
        self._server.begin(message)

    def _refuse(self, error: errors.ApiError) -> None:
        """The last response of the connection, after those of requests that came before."""
        message = self._current or Message(self)
        self._current = None
        self._state = "done"
        message.refusal, message.is_last = error, True
        self._queue(message)

    def take_turn(self, message: Message) -> bool:
        """Whether `message` is to be answered now, and was not yet."""
        if self._in_hand is not message or self._is_answered:
            return False
        self._is_answered = True
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
        """The end of a response, from any thread."""
        if self._server.is_on_loop():
            self._finish(data, is_last)
        elif is_last or self._server.leaving or not self._is_all_written or not self._write_now(data):
            self._server.loop.call_soon_threadsafe(self._finish, data, is_last)

    def _write_now(self, data: bytes) -> bool:
        """Write a whole response in this thread, which saves waking the loop. False if that failed before it began."""
        with self._server.writing:  # or its descriptor could be closed now, and be that of another connection
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
        self._in_hand = None
        if self._waiting or self._state != "idle" or self._is_reading_paused:  # looked at after the line before
            loop.call_soon_threadsafe(self._go_on)
        return True

    def _finish(self, data: bytes, is_last: bool) -> None:
        is_refused = self._in_hand is not None and self._in_hand.refusal is not None
        self._in_hand = None
        if self.is_gone:
            return
        if data:
            self._put(data)
        if is_last or self._server.leaving:
            self._state = "done"
            self._waiting.clear()
            if is_refused and self._transport.can_write_eof():
                # What the client still sends is dropped for a moment: a reset would take the response from it.
                self._transport.write_eof()
                self.deadline = self._server.loop.time() + DRAIN_SECONDS
            else:
                self._transport.close()
                self.deadline = self._server.loop.time() + WRITE_SECONDS
            return
        self._go_on()

    def _go_on(self) -> None:
        """The next request, once the client has taken the response before."""
        now = self._server.loop.time()
        if self.is_paused:
            self._unwritten = self._transport.get_write_buffer_size()
            self.deadline = now + WRITE_SECONDS
        elif self._in_hand is None:
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
        if self._in_hand is None and self._waiting and not self.is_gone:
            self._begin(self._waiting.popleft())

    def abort(self) -> None:
        self._server.loop.call_soon_threadsafe(self._transport.abort)

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────
    def expire(self, now: float) -> None:
        """The deadline has passed."""
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

    def close_if_idle(self) -> None:
        if self._in_hand is None and not self._waiting and self._state in ("idle", "head", "done"):
            self._transport.close()


class _HeadTooLarge(errors.ApiError):
    status, code, message = 431, "invalid_request", f"The head of a request has at most {HEAD_BYTES >> 10} KB."


class _Refused(Exception):
    """Raised through the parser: nothing more is read."""

    def __init__(self, error: errors.ApiError) -> None:
        super().__init__(error.message)
        self.error = error
