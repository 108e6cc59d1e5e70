"""`Message`: one HTTP request as parsed, and the methods that send its response, once and from any thread.
`Connection`: what a message needs of its connection; implemented by `http_protocol`."""

import email.utils
import time
from collections.abc import Callable
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Protocol

from platform_site.http import errors
from platform_site.http.event_streams import MessageQueue

Headers = list[tuple[str, str]]


class Connection(Protocol):
    __slots__ = ("is_gone", "is_paused", "on_change", "stream")

    is_gone: bool
    is_paused: bool
    on_change: Callable[[], None] | None
    """Called when the client disconnects, or has read everything."""
    stream: MessageQueue | None
    """What it sends as an event stream."""

    def claim_response(self, message: "Message") -> bool:
        """Whether `message` may be answered: it is the current request of the connection, and no response was sent.
        True only once."""

    def write(self, data: bytes) -> None: ...

    def finish(self, data: bytes, is_last: bool) -> None: ...

    def abort(self) -> None: ...


class Message:
    __slots__ = (
        "authority", "body", "connection", "headers", "is_last", "meta", "path", "refusal", "unreadable",
    )  # fmt: skip

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.meta: dict[str, Any] = {}
        self.path = ""
        self.authority: str | None = None
        """The request line's host, which precedes the header (RFC 9112, 3.2.2)."""
        self.headers: list[tuple[str, str]] = []
        self.unreadable: set[str] = set()
        self.body: bytes = b""
        self.refusal: errors.ApiError | None = None
        self.is_last = False
        """Whether the connection is closed after the response."""

    def release(self) -> None:
        """Release the request, for a long response."""
        self.meta, self.headers, self.body = {}, [], b""

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        connection = self.connection
        if not connection.claim_response(self):
            return
        lines = _head(status, headers, self.is_last)
        if status >= 200 and status not in (204, 304) and "Content-Length" not in dict(headers):
            lines.append(b"content-length: %d\r\n" % len(body))
        lines.append(b"\r\n")
        if body and self.meta.get("REQUEST_METHOD") != "HEAD":
            lines.append(body)
        connection.finish(b"".join(lines), self.is_last)

    def respond_in_pieces(self, status: int, headers: Headers) -> "ResponseStream":
        connection = self.connection
        if not connection.claim_response(self):
            raise ConnectionResetError("a response was sent")
        chunked = self.meta.get("SERVER_PROTOCOL") == "HTTP/1.1" and not any(
            name.lower() == "content-length" for name, _ in headers
        )
        is_last = self.is_last or not chunked
        lines = _head(status, headers, is_last)
        lines.append(b"transfer-encoding: chunked\r\n\r\n" if chunked else b"\r\n")
        connection.write(b"".join(lines))
        silent = self.meta.get("REQUEST_METHOD") == "HEAD"
        return ResponseStream(connection, chunked=chunked and not silent, silent=silent, is_last=is_last)


class ResponseStream:
    __slots__ = ("_chunked", "_connection", "_is_last", "_silent")

    def __init__(self, connection: Connection, *, chunked: bool, silent: bool, is_last: bool) -> None:
        self._connection, self._chunked, self._silent, self._is_last = connection, chunked, silent, is_last

    def send(self, data: bytes) -> None:
        """Raises ConnectionError if the client is gone."""
        if self._connection.is_gone:
            raise ConnectionResetError("the client is gone")
        if data and not self._silent:
            self._connection.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def end(self) -> None:
        self._connection.finish(b"0\r\n\r\n" if self._chunked else b"", self._is_last)

    def abort(self) -> None:
        """The client must notice that the response is incomplete."""
        self._connection.abort()


def _head(status: int, headers: Headers, is_last: bool) -> list[bytes]:
    text = "".join([f"{name}: {value}\r\n" for name, value in headers]).encode("latin-1", "replace")
    if is_last:
        text += b"connection: close\r\n"
    return [_status_line(status), text, _date(int(time.time()))]


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
