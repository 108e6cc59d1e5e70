"""Reads a connection's requests by httptools: RFC 9112, with limits on heads and bodies."""

import logging
import re
from collections import deque
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote

import httptools

from platform_site.http import errors
from platform_site.server.http_message import Message
from platform_site.server.request_head import MAX_CACHED_NAME, cached_meta_name, meta_name

logger = logging.getLogger(__name__)

HEAD_BYTES: Final = 64 * 1024
BODY_LIMIT: Final = 1024 * 1024
MAX_HEADERS: Final = 100
MAX_PIPELINED: Final = 64
_ABSOLUTE: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://([^/?#]*)(.*)")
_FIRST_LINE: Final = re.compile(rb"[A-Za-z]{1,16} /")
_METHODS: Final = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
_UNKNOWN_METHOD: Final = f"No endpoint supports that method. The methods are {_METHODS}."
_NOT_HTTP: Final = "This is not a valid HTTP/1.1 request."


class _HeadTooLarge(errors.ApiError):
    status, code = 431, "invalid_request"
    message = f"The request headers are too large: at most {HEAD_BYTES >> 10} KB and {MAX_HEADERS} headers are allowed."


class RequestParser:
    """Makes `messages` of what `feed` gets. The last one of a client that breaks the rules has a refusal. `check`
    completes META of a message with its head, or raises ApiError."""

    def __init__(self, check: Callable[[Message], None]) -> None:
        self._check = check
        self._parser = httptools.HttpRequestParser(self)
        self.messages: deque[Message] = deque()
        self.state = "idle"
        """idle, head, body, or done: nothing more is read."""
        self.expects_continue = False
        self._upgrades = False
        """The head asks for another protocol: httptools skips its body (`_head_without_upgrade`)."""
        self._message: Message | None = None
        self._url = b""
        self._head_bytes = 0
        """Of an unfinished head."""
        self._headers = self._headers_size = 0
        """Number, and bytes of names and values."""
        self._body = bytearray()

    @property
    def body_size(self) -> int:
        """Of an unfinished body."""
        return len(self._body)

    def feed(self, data: bytes) -> None:
        while data:
            if self.state == "idle":
                self.state, self._head_bytes = "head", 0
            if self.state == "head":
                self._head_bytes += len(data)
            data = self._feed_parser(data)
        if self.state == "head" and self._head_bytes > HEAD_BYTES:
            self.refuse(_HeadTooLarge())

    def refuse(self, error: errors.ApiError) -> None:
        message, self._message = self._message or Message(), None
        message.refusal, message.is_last = error, True
        self.messages.append(message)
        self._body.clear()
        self.state = "done"

    def close(self) -> None:
        self.messages.clear()
        self._body.clear()
        self._message = None
        self.state = "done"

    def _feed_parser(self, data: bytes) -> bytes:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._parser = httptools.HttpRequestParser(self)
            return self._head_without_upgrade() + data[upgrade.args[0] :]
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if not isinstance(cause, errors.ApiError):
                logger.error("a request could not be parsed", exc_info=error)
                cause = errors.Internal()
            self.refuse(cause)
        except httptools.HttpParserInvalidMethodError:
            is_word = _FIRST_LINE.match(data) is not None
            self.refuse(
                errors.MethodNotAllowed(_UNKNOWN_METHOD, headers={"Allow": _METHODS})
                if is_word
                else errors.InvalidRequest(_NOT_HTTP)
            )
        except httptools.HttpParserError:
            self.refuse(errors.InvalidRequest(_NOT_HTTP))
        return b""

    def _head_without_upgrade(self) -> bytes:
        """A head after which a new parser reads the body of the current request, which stays HTTP/1.1 (RFC 9110, 7.8).
        Read as a request of its own, the body would be one that a proxy never saw."""
        meta = self._message.meta if self._message is not None else {}
        length, encoding = meta.get("CONTENT_LENGTH"), meta.get("HTTP_TRANSFER_ENCODING")
        framing = f"content-length: {length}\r\n" if length is not None else ""
        framing += f"transfer-encoding: {encoding}\r\n" if encoding is not None else ""
        return f"POST / HTTP/1.1\r\n{framing}\r\n".encode()

    def on_message_begin(self) -> None:
        if self._upgrades or self.state == "done":
            return
        if len(self.messages) > MAX_PIPELINED:
            raise errors.InvalidRequest("Too many pipelined requests are waiting for a response.")
        self._message = Message()
        self.state = "head"
        self._url = b""
        self._headers = self._headers_size = 0

    def on_url(self, part: bytes) -> None:
        self._url += part

    def on_header(self, name: bytes, value: bytes) -> None:
        message = self._message
        if message is None:
            return
        if self.state != "head":
            if self._upgrades:
                return
            raise errors.InvalidRequest("The request body has trailers, which are not supported.")
        self._headers += 1
        self._headers_size += len(name) + len(value)
        if self._headers > MAX_HEADERS:
            raise _HeadTooLarge
        header = name.decode().lower()
        if not value.isascii():
            message.unreadable.add(header)
            return
        text = value.decode().rstrip(" \t")  # without the whitespace around it (RFC 9110, 5.5)
        if not text.isprintable() and not text.replace("\t", " ").isprintable():
            raise errors.InvalidRequest("A header has a control character.")
        meta = message.meta
        key = cached_meta_name(header) if len(header) <= MAX_CACHED_NAME else meta_name(header)
        if key is None:
            message.not_in_meta.append((header, text))
        elif key not in meta:
            meta[key] = text
        else:
            meta[key] = f"{meta[key]}; {text}" if header == "cookie" else f"{meta[key]},{text}"
            message.repeated.add(header)

    def on_headers_complete(self) -> None:
        message = self._message
        if message is None or self._upgrades:
            self._upgrades = False
            return
        if self._headers_size + len(self._url) > HEAD_BYTES:
            raise _HeadTooLarge
        try:
            url = self._url.decode("ascii")
        except UnicodeDecodeError:
            raise errors.InvalidRequest("The request target has bytes outside ASCII.") from None
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
        self.state = "body"
        self._check(message)
        # httptools has checked the number. `int` refuses thousands of zeros before it.
        if "CONTENT_LENGTH" in meta and int(meta["CONTENT_LENGTH"].lstrip("0") or "0") > BODY_LIMIT:
            raise errors.PayloadTooLarge
        if meta.get("HTTP_EXPECT", "").lower() == "100-continue" and meta["SERVER_PROTOCOL"] == "HTTP/1.1":
            self.expects_continue = bool(meta.get("CONTENT_LENGTH")) or "HTTP_TRANSFER_ENCODING" in meta
        self._upgrades = self._parser.should_upgrade()

    def on_body(self, part: bytes) -> None:
        self._body += part
        if len(self._body) > BODY_LIMIT:
            raise errors.PayloadTooLarge

    def on_message_complete(self) -> None:
        message = self._message
        if message is None or self._upgrades:
            return
        self._message = None
        self.state, self.expects_continue = "idle", False
        self._head_bytes = 0
        message.body = bytes(self._body)
        self._body.clear()
        if message.meta.pop("HTTP_TRANSFER_ENCODING", None) is not None:
            message.meta["CONTENT_LENGTH"] = str(len(message.body))
        self.messages.append(message)
