import http.client
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from platform_site.outbound.urls import Target

_METHOD: Final = re.compile(r"[A-Z]{1,20}", re.ASCII)
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}", re.ASCII)
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_OWN_HEADERS: Final = frozenset(
    {"host", "content-length", "connection", "transfer-encoding", "accept-encoding", "expect", "te"}
)


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: dict[str, str]
    body: bytes
    """Not decompressed; at most `limit` bytes."""
    is_cut: bool
    cookies: tuple[str, ...] = ()
    """Each `Set-Cookie`: they cannot be joined (RFC 6265, section 3)."""


def request_message(method: str, target: Target, headers: Mapping[str, str], body: bytes) -> bytes:
    if not _METHOD.fullmatch(method):
        raise ValueError("not an HTTP method")
    lines = [f"{method} {target.path} HTTP/1.1", f"Host: {target.authority}", "Accept-Encoding: identity"]
    for name, value in headers.items():
        if name.lower() in _OWN_HEADERS:
            continue
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError("not an HTTP header")
        lines.append(f"{name}: {value}")
    if body or method in {"POST", "PUT", "PATCH"}:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "\r\n"]).encode("latin-1") + body


def read_response(response: http.client.HTTPResponse, limit: int) -> Response:
    if response.status < 200:
        raise http.client.HTTPException("an unexpected interim response")
    headers: dict[str, str] = {}
    for name, value in response.headers.items():
        name = name.lower()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    announced = response.length
    body = response.read(limit + 1)
    is_cut = len(body) > limit
    if not is_cut and announced is not None and len(body) < announced:
        raise http.client.IncompleteRead(body, announced - len(body))
    cookies = tuple(response.headers.get_all("set-cookie", ()))
    return Response(response.status, headers, body[:limit], is_cut, cookies)
