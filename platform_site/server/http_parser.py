"""Reads a connection's requests by httptools: RFC 9112, with limits on heads and bodies."""

import asyncio
import logging
import re
from abc import abstractmethod
from collections import deque
from typing import Final
from urllib.parse import unquote

import httptools

from platform_site.http import errors
from platform_site.server.http_message import Connection, Message
from platform_site.server.request_checks import BODY_LIMIT

logger = logging.getLogger(__name__)

HEAD_BYTES: Final = 64 * 1024
MAX_HEADERS: Final = 100
MAX_PIPELINED: Final = 64
DRAIN_BYTES: Final = 8 * 1024 * 1024
"""Bytes of an oversized body that are dropped, so that the client reads the 413."""
MAX_PIECES: Final = 1024
"""Of a body, before they are joined: an object per byte would take 40 times the memory."""
_ABSOLUTE: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://([^/?#]*)(.*)")
_FIRST_LINE: Final = re.compile(rb"[A-Za-z]{1,16} /")
_NOT_HTTP: Final = "This is not a valid HTTP/1.1 request."
_TRAILERS: Final = "The request body has trailers, which are not supported."


class Refused(Exception):
    def __init__(self, error: errors.ApiError) -> None:
        super().__init__(error.message)
        self.error = error


class _HeadTooLarge(errors.ApiError):
    status, code, message = (
        431,
        "invalid_request",
        f"The request headers are too large: at most {HEAD_BYTES >> 10} KB and {MAX_HEADERS} headers are allowed.",
    )


class RequestParser(Connection, asyncio.Protocol):
    """Makes messages of what `feed` gets, for a subclass."""

    __slots__ = ("_head_bytes", "_parser", "_parsing", "_pieces", "_size", "_state", "_upgrades", "_url", "_waiting")

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._state = "idle"
        """idle, head, body, drain (an oversized body), done."""
        self._upgrades = False
        """Whether the head asks for another protocol: httptools then skips its body (`_head_without_upgrade`)."""
        self._parsing: Message | None = None
        self._url = b""
        self._head_bytes = 0
        self._pieces: list[bytes] = []
        self._size = 0
        self._waiting: deque[Message] = deque()

    @abstractmethod
    def _check_head(self, message: Message) -> None: ...

    @abstractmethod
    def _queue(self, message: Message) -> None: ...

    @abstractmethod
    def _refuse(self, error: errors.ApiError) -> None: ...

    def feed(self, data: bytes) -> None:
        while data:
            if self._state == "idle":
                self._state = "head"
                self._head_bytes = 0
            if self._state == "head":
                self._head_bytes += len(data)
            data = self._feed_parser(data)
        if self._state == "head" and self._head_bytes > HEAD_BYTES:
            self._refuse(_HeadTooLarge())
        elif self._state == "drain" and self._size > DRAIN_BYTES:
            self._refuse(errors.PayloadTooLarge())

    def _feed_parser(self, data: bytes) -> bytes:
        """Returns what is still to be parsed."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._parser = httptools.HttpRequestParser(self)
            return self._head_without_upgrade() + data[upgrade.args[0] :]
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if not isinstance(cause, Refused):
                logger.error("a request could not be parsed", exc_info=error)
            self._refuse(cause.error if isinstance(cause, Refused) else errors.Internal())
        except httptools.HttpParserInvalidMethodError:
            is_word = _FIRST_LINE.match(data) is not None
            self._refuse(errors.MethodNotAllowed() if is_word else errors.InvalidRequest(_NOT_HTTP))
        except httptools.HttpParserError:
            self._refuse(errors.InvalidRequest(_NOT_HTTP))
        return b""

    def _head_without_upgrade(self) -> bytes:
        """A head after which a new parser reads the body of the current request, which stays HTTP/1.1 (RFC 9110, 7.8).
        Read as a request of its own, the body would be one that a proxy never saw."""
        meta = self._parsing.meta if self._parsing is not None else {}
        length, encoding = meta.get("CONTENT_LENGTH"), meta.get("HTTP_TRANSFER_ENCODING")
        framing = f"content-length: {length}\r\n" if length is not None else ""
        framing += f"transfer-encoding: {encoding}\r\n" if encoding is not None else ""
        return f"POST / HTTP/1.1\r\n{framing}\r\n".encode()

    def on_message_begin(self) -> None:
        if self._upgrades or self._state == "done":
            return
        if len(self._waiting) >= MAX_PIPELINED:
            raise Refused(errors.InvalidRequest("Too many pipelined requests are waiting for a response."))
        self._parsing = Message(self)
        self._state = "head"
        self._url = b""
        self._pieces = []
        self._size = 0

    def on_url(self, part: bytes) -> None:
        self._url += part

    def on_header(self, name: bytes, value: bytes) -> None:
        message = self._parsing
        if message is None:
            return
        if self._state != "head":
            if self._upgrades:
                return
            raise Refused(errors.InvalidRequest(_TRAILERS))
        self._size += len(name) + len(value)
        if len(message.headers) >= MAX_HEADERS:
            raise Refused(_HeadTooLarge())
        header = name.decode().lower()
        if not value.isascii():
            message.unreadable.add(header)
        elif (text := value.decode()).isprintable() or text.replace("\t", " ").isprintable():
            message.headers.append((header, text))
        else:
            raise Refused(errors.InvalidRequest("A header has a control character."))

    def on_headers_complete(self) -> None:
        message = self._parsing
        if message is None or self._upgrades:
            self._upgrades = False
            return
        if self._size + len(self._url) > HEAD_BYTES:
            raise Refused(_HeadTooLarge())
        self._size = 0
        try:
            url = self._url.decode("ascii")
        except UnicodeDecodeError:
            raise Refused(errors.InvalidRequest("The request target has bytes outside ASCII.")) from None
        if not url.startswith("/") and (absolute := _ABSOLUTE.match(url)):
            message.authority, url = absolute[1], "/" + absolute[2].removeprefix("/")
        path, _, query = url.partition("#")[0].partition("?")
        message.path = unquote(path, errors="replace") if "%" in path else path
        message.is_last = not self._parser.should_keep_alive()
        meta = message.meta
        meta["REQUEST_METHOD"] = self._parser.get_method().decode()
        meta["SCRIPT_NAME"] = ""
        meta["PATH_INFO"] = message.path
        meta["QUERY_STRING"] = query
        meta["SERVER_PROTOCOL"] = f"HTTP/{self._parser.get_http_version()}"
        self._state = "body"
        self._check_head(message)
        self._upgrades = self._parser.should_upgrade()

    def _drain(self) -> None:
        self._state = "drain"
        self._pieces = []

    def on_body(self, part: bytes) -> None:
        self._size += len(part)
        if self._state == "body":
            if self._size <= BODY_LIMIT:
                self._pieces.append(part)
                if len(self._pieces) >= MAX_PIECES:
                    self._pieces = [b"".join(self._pieces)]
            else:
                self._drain()

    def on_message_complete(self) -> None:
        message = self._parsing
        if message is None or self._upgrades:
            return
        self._parsing = None
        is_too_long, self._state = self._state == "drain", "idle"
        self._head_bytes = 0
        if is_too_long:
            raise Refused(errors.PayloadTooLarge())
        self._size = 0
        message.body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces = []
        if message.meta.pop("HTTP_TRANSFER_ENCODING", None) is not None:
            message.meta["CONTENT_LENGTH"] = str(len(message.body))
        self._queue(message)
