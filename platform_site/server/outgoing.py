"""Sends Django's responses, in one piece or in parts, from any thread."""

import logging
from collections.abc import Iterable
from itertools import chain
from typing import Final

from django.http import HttpResponse
from django.http.response import HttpResponseBase

from platform_site.server.http_message import Message

logger = logging.getLogger(__name__)

IN_ONE_PIECE: Final = 1024 * 1024
"""Streamed responses up to this size are collected first, so that errors can be a 500."""


def headers_of(response: HttpResponseBase) -> list[tuple[str, str]]:
    """With cookies; invalid values are left out and logged."""
    # Not `items()`, which looks each up again by its name: four calls for each header.
    lines: list[tuple[str, str]] = [*response.headers._store.values()]
    if "cookies" in response.__dict__:  # our responses create the attribute only when it is read
        for cookie in response.cookies.values():
            lines.append(("Set-Cookie", cookie.output(header="").lstrip()))
    text = "".join([value for _, value in lines])
    if text.isascii() and text.isprintable():
        return lines
    kept = []
    for name, value in lines:
        # A control character could begin another header; what is beyond ASCII, clients read in different ways.
        if value.isascii() and value.replace("\t", " ").isprintable():
            kept.append((name, value))
        else:
            logger.error("header %s left out: its value has characters that a header cannot carry", name)
    return kept


def send(message: Message, response: HttpResponseBase) -> None:
    """Streams are pulled here, in a thread."""
    headers = headers_of(response)
    if isinstance(response, HttpResponse):
        message.respond(response.status_code, headers, response.content)
        return
    chunks: Iterable[bytes] = iter(response)
    first: list[bytes] = []
    size = 0
    for chunk in chunks:
        data = bytes(chunk)
        first.append(data)
        size += len(data)
        if size > IN_ONE_PIECE:
            break
    else:
        message.respond(response.status_code, headers, b"".join(first))
        return
    pieces = message.respond_in_pieces(response.status_code, headers)
    try:
        for chunk in chain(first, chunks):
            pieces.send(bytes(chunk))
    except BaseException:
        pieces.abort()
        raise
    pieces.end()
