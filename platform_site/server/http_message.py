"""HTTP requests as parsed, with the methods that send their responses, and event streams."""

import email.utils
import logging
import time
from functools import lru_cache, partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from django.http.response import HttpResponseBase

from platform_site.http import errors
from platform_site.http.event_streams import EventStreamResponse

if TYPE_CHECKING:
    from platform_site.server.http_protocol import HttpConnection

logger = logging.getLogger(__name__)

Headers = list[tuple[str, str]]
_PHRASES: Final = {each.value: each.phrase for each in HTTPStatus}


class Message:
    connection: "HttpConnection"
    """Set when it is this request's turn."""

    def __init__(self) -> None:
        self.meta: dict[str, Any] = {}
        self.path = ""
        self.authority: str | None = None
        """The request line's host, which precedes the Host header (RFC 9112, 3.2.2)."""
        self.not_in_meta: Headers = []
        """Headers that proxies set, or with an underscore."""
        self.repeated: set[str] = set()
        self.unreadable: set[str] = set()
        """Headers with bytes outside ASCII; not in META either."""
        self.body: bytes = b""
        self.refusal: errors.ApiError | None = None
        self.is_answered = False
        self.is_last = False

    def respond(self, response: HttpResponseBase) -> None:
        """From any thread. Ignored if a response was sent."""
        if self.is_answered:
            return
        parts: Any = response  # those of a streaming response are a static file
        body = b"".join(parts)
        lines, status = self._begin(response), response.status_code
        if status >= 200 and status not in (204, 304) and "content-length" not in response.headers._store:
            lines.append(b"content-length: %d\r\n" % len(body))
        lines.append(b"\r\n")
        if body and self.meta.get("REQUEST_METHOD") != "HEAD":
            lines.append(body)
        self.connection.finish(self, b"".join(lines))

    def begin_stream(self, response: HttpResponseBase) -> bool:
        """Send a head without length. Returns whether the body is sent in chunks."""
        is_chunked: bool = self.meta["SERVER_PROTOCOL"] == "HTTP/1.1"
        self.is_last = self.is_last or not is_chunked
        framing = b"transfer-encoding: chunked\r\n\r\n" if is_chunked else b"\r\n"
        self.connection.write(b"".join([*self._begin(response), framing]))
        self.meta, self.not_in_meta, self.body = {}, [], b""
        return is_chunked

    def _begin(self, response: HttpResponseBase) -> list[bytes]:
        self.is_answered = True
        self.is_last = self.is_last or self.connection.server.is_stopping
        text = "".join([f"{name}: {value}\r\n" for name, value in _headers_of(response)]).encode("latin-1", "replace")
        if self.is_last:
            text += b"connection: close\r\n"
        return [_status_line(response.status_code), text, _date(int(time.time()))]


class EventStream:
    """Answers `message` with Server-Sent Events from a queue, until one side ends it."""

    def __init__(self, message: Message, response: EventStreamResponse) -> None:
        self._message, self.queue = message, response.queue
        self._is_chunked = message.begin_stream(response)
        message.connection.stream = self
        self.queue.notify = partial(message.connection.server.loop.call_soon_threadsafe, self.send)
        self.send()

    def send(self) -> None:
        """Called when the queue changes, and when the client disconnects or has read everything."""
        connection, queue = self._message.connection, self.queue
        if connection.stream is not self:  # it has ended
            return
        if connection.is_gone:
            self._end()
            return
        while not connection.is_paused:
            data = queue.take()
            if data is None:
                self._end()
                connection.finish(self._message, b"0\r\n\r\n" if self._is_chunked else b"")
                return
            if not data:
                return
            connection.write(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)
        if queue.is_closed:  # a client that does not read would not read the last message either
            self._end()
            connection.abort()

    def _end(self) -> None:
        self._message.connection.stream = None
        self.queue.notify = lambda: None
        self.queue.close()
        self.queue.take()  # its messages would be kept until the next pass of the feed


def _headers_of(response: HttpResponseBase) -> Headers:
    # Not `items()`: four calls for each header.
    headers: Headers = [*response.headers._store.values()]
    if "cookies" in response.__dict__:  # our responses create the attribute only when it is read
        headers += [("Set-Cookie", cookie.output(header="").lstrip()) for cookie in response.cookies.values()]
    text = "".join([value for _, value in headers])
    if text.isascii() and text.isprintable():
        return headers
    valid = []
    for name, value in headers:
        # A control character could begin another header. Clients read other characters in different ways.
        if value.isascii() and value.replace("\t", " ").isprintable():
            valid.append((name, value))
        else:
            logger.error("header %s left out: its value has characters that a header cannot carry", name)
    return valid


@lru_cache(maxsize=64)
def _status_line(status: int) -> bytes:
    return f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\n".encode()


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    return f"date: {email.utils.formatdate(second, usegmt=True)}\r\n".encode()
