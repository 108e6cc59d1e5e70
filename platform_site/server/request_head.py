"""The head of a request: its META, and what is refused. Headers with an underscore (`X_Forwarded_For`) and forwarding
headers never reach META: those of `TRUSTED_PROXIES` become IP and scheme."""

import ipaddress
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from platform_site.http import errors

if TYPE_CHECKING:
    from platform_site.server.http_message import Headers, Message

UNREADABLE: Final = "\N{REPLACEMENT CHARACTER}"
"""Replaces a value with bytes outside ASCII: every reader refuses it."""
_USED_HEADERS: Final = frozenset(
    {
        "authorization",
        "content-type",
        "idempotency-key",
        "if-match",
        "if-none-match",
        "last-event-id",
        "origin",
        "prefer",
        "transfer-encoding",
        "x-environment",
    }
)
_FORWARDING: Final = frozenset(
    {"forwarded", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-forwarded-port", "x-real-ip"}
)
_METHOD: Final = re.compile(r"[A-Z]{1,16}", re.ASCII)
_PROTOCOLS: Final = frozenset({"HTTP/1.0", "HTTP/1.1"})
MAX_CACHED_NAME: Final = 64
"""Of a header: anybody can send names of 60 KB."""


class Forwarding:
    """Networks of trusted proxies. Raises ValueError."""

    def __init__(self, trusted: Iterable[str]) -> None:
        self._networks = [ipaddress.ip_network(text, strict=False) for text in trusted]

    def trusts(self, address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped:
            parsed = parsed.ipv4_mapped
        return any(parsed in network for network in self._networks)

    def client(self, peer: str, headers: "Headers") -> tuple[str, str]:
        """The client's IP and scheme. Each trusted proxy vouches for the entry of `X-Forwarded-For` before its own."""
        if not self._networks or not self.trusts(peer):
            return peer, "http"
        client = peer
        for hop in reversed(_words(headers, "x-forwarded-for")):
            address = host_of(hop)
            try:
                ipaddress.ip_address(address)
            except ValueError:
                break  # not written by a trusted proxy
            client = address
            if not self.trusts(address):
                break
        is_https = _words(headers, "x-forwarded-proto")[-1].lower() == "https"
        return client, "https" if is_https else "http"


def _words(headers: "Headers", name: str) -> list[str]:
    """The comma-separated values of all headers with this name; at least one, which may be empty."""
    return [word.strip() for word in ",".join([value for other, value in headers if other == name]).split(",")]


def host_of(endpoint: str) -> str:
    """The host of `1.2.3.4:5`, `1.2.3.4`, `[::1]:5` or `::1`."""
    if endpoint.startswith("["):
        return endpoint[1:].partition("]")[0]
    return endpoint.partition(":")[0] if endpoint.count(":") == 1 else endpoint


def check_head(forwarding: Forwarding, peer: tuple[str, str, int], message: "Message") -> None:
    meta, path, unreadable = message.meta, message.path, message.unreadable
    client, server, port = peer
    for header in _USED_HEADERS.intersection(unreadable):  # others are ignored (RFC 9110, 5.5)
        meta[str(meta_name(header))] = UNREADABLE
    meta["REMOTE_ADDR"], meta["wsgi.url_scheme"] = forwarding.client(client, message.not_in_meta)
    meta["SERVER_NAME"] = server or "localhost"
    meta["SERVER_PORT"] = str(port)
    if "x-forwarded-for" in unreadable and forwarding.trusts(client):
        # the client's IP cannot be determined
        raise errors.InvalidRequest("X-Forwarded-For has bytes outside ASCII.")
    if "host" in unreadable:
        raise errors.InvalidRequest("The Host header has bytes outside ASCII.")
    if meta["SERVER_PROTOCOL"] not in _PROTOCOLS:
        raise errors.InvalidRequest("Use HTTP/1.1, or HTTP/1.0.")
    named = meta.get("HTTP_HOST")
    if message.authority is not None:
        meta["HTTP_HOST"] = message.authority
    check_host(named, meta)
    if not path.startswith("/"):
        raise errors.InvalidRequest("The request target must be a path.")
    if "\0" in path or UNREADABLE in path:
        raise errors.NotFound
    if not _METHOD.fullmatch(meta["REQUEST_METHOD"]):
        raise errors.MethodNotAllowed
    if message.repeated & {"host", "content-length", "content-type", "transfer-encoding"}:
        raise errors.InvalidRequest("Host, Content-Length, Content-Type and Transfer-Encoding may occur only once.")
    if "CONTENT_LENGTH" in meta and "HTTP_TRANSFER_ENCODING" in meta:
        raise errors.InvalidRequest("The length of the body is given twice, by Content-Length and Transfer-Encoding.")
    if meta.get("HTTP_TRANSFER_ENCODING", "chunked").strip().lower() != "chunked":
        raise errors.InvalidRequest("The only supported Transfer-Encoding is chunked.")
    if "HTTP_TRANSFER_ENCODING" in meta and meta["SERVER_PROTOCOL"] == "HTTP/1.0":
        # A proxy of that version takes the chunks for another request (RFC 9112, 6.1).
        raise errors.InvalidRequest("HTTP/1.0 has no Transfer-Encoding.")


def meta_name(header: str) -> str | None:
    """The META name of a lower-case header; None to drop it."""
    if "_" in header or header in _FORWARDING:
        return None
    name = header.upper().replace("-", "_")
    return name if name in {"CONTENT_TYPE", "CONTENT_LENGTH"} else f"HTTP_{name}"


cached_meta_name: Final = lru_cache(maxsize=512)(meta_name)


def check_host(named: str | None, meta: dict[str, Any]) -> None:
    """One host and a valid port (RFC 9112, 3.2); Django checks which host. Raises ApiError."""
    if named is None and meta["SERVER_PROTOCOL"] == "HTTP/1.1":
        raise errors.InvalidRequest("The Host header is missing.")
    host = meta.get("HTTP_HOST")
    if host is not None and not (_is_valid_host_cached(host) if len(host) <= 255 else _is_valid_host(host)):
        raise errors.InvalidRequest("The Host header is empty, or its port is invalid.")


def _is_valid_host(host: str) -> bool:
    name, colon, port = host.rpartition(":")
    if not colon or port.endswith("]"):  # no port, or the end of an IPv6 address
        return host != ""
    return name != "" and (not port.isdigit() or (len(port) < 6 and int(port) < 65536))


_is_valid_host_cached: Final = lru_cache(maxsize=512)(_is_valid_host)
