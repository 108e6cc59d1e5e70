"""The request as Django sees it, with its body read, and the client's IP. Unlike in a WSGI server, repeated headers are
joined by commas, headers with an underscore are dropped (`X_Forwarded_For`), and forwarding headers never reach META:
those of `TRUSTED_PROXIES` become IP and scheme."""

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from io import BytesIO
from typing import Any, Final

from django.core.handlers.wsgi import WSGIRequest
from django.utils.http import parse_header_parameters

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_FORWARDING: Final = frozenset(
    {"forwarded", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-forwarded-port", "x-real-ip"}
)


class Incoming(WSGIRequest):
    """Its text is UTF-8, whatever charset the client names; Django would decode the query by it. Raises ValueError or
    LookupError for an ill-formed Content-Type."""

    def __init__(self, path: str, meta: dict[str, Any], body: bytes) -> None:
        # Without super().__init__, which would read the path and the body again. Django's own request classes do not
        # call HttpRequest's either: it would build what is lazy.
        self.path = self.path_info = path
        self.environ = self.META = meta
        self.method = meta["REQUEST_METHOD"]
        self.resolver_match = None
        self._read_started = False
        self._body = body  # Django would read it from the stream, and ask five times how much is allowed
        self._stream = BytesIO(body)
        stated = meta.get("CONTENT_TYPE")
        self.content_type, self.content_params = parse_header_parameters(stated) if stated else ("", {})


def meta_name(header: str) -> str | None:
    """The META name of a lower-case header; None to drop it."""
    if "_" in header or header in _FORWARDING:
        return None
    name = header.upper().replace("-", "_")
    return name if name in {"CONTENT_TYPE", "CONTENT_LENGTH"} else f"HTTP_{name}"


_cached_meta_name: Final = lru_cache(maxsize=512)(meta_name)
_MAX_CACHED_NAME: Final = 64
"""Characters. Longer names are not cached."""


def add_headers(meta: dict[str, Any], headers: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Add the headers to `meta`. Returns the names of those that occur more than once."""
    repeated: set[str] | None = None
    for header, value in headers:
        name = _cached_meta_name(header) if len(header) <= _MAX_CACHED_NAME else meta_name(header)
        if name is None:
            continue
        if name in meta:
            meta[name] = f"{meta[name]}; {value}" if header == "cookie" else f"{meta[name]},{value}"
            repeated = repeated or set()
            repeated.add(header)
        else:
            meta[name] = value
    return frozenset(repeated) if repeated else _NONE


_NONE: Final[frozenset[str]] = frozenset()

UNREADABLE: Final = "\N{REPLACEMENT CHARACTER}"
"""Replaces a value with bytes above 0x7F, which every reader then refuses."""
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


def mark_unreadable(meta: dict[str, Any], names: Iterable[str]) -> None:
    """Mark unreadable headers that the service uses; others are ignored (RFC 9110, 5.5)."""
    for header in _USED_HEADERS.intersection(names):
        meta[str(meta_name(header))] = UNREADABLE


class Forwarding:
    """Trusted proxies' networks. Raises ValueError."""

    def __init__(self, trusted: Iterable[str]) -> None:
        self._networks: list[Network] = [ipaddress.ip_network(text, strict=False) for text in trusted]

    def trusts(self, address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped:
            parsed = parsed.ipv4_mapped
        return any(parsed in network for network in self._networks if network.version == parsed.version)

    def client(self, peer: str, scheme: str, headers: Iterable[tuple[str, str]]) -> tuple[str, str]:
        """The client's IP and scheme. Reads `X-Forwarded-For` from its end: each trusted proxy vouches for the entry
        before; the first untrusted IP is the client."""
        if not self._networks or not self.trusts(peer):
            return peer, scheme
        hops: list[str] = []
        proto: list[str] = []
        for name, value in headers:
            if name == "x-forwarded-for":
                hops += [hop.strip() for hop in value.split(",")]
            elif name == "x-forwarded-proto":
                proto += [word.strip().lower() for word in value.split(",")]
        if proto and proto[-1] in {"http", "https"}:
            scheme = proto[-1]
        client = peer
        for hop in reversed(hops):
            address = host_of(hop)
            try:
                ipaddress.ip_address(address)
            except ValueError:
                break  # not written by a trusted proxy
            client = address
            if not self.trusts(address):
                break
        return client, scheme


def host_of(endpoint: str) -> str:
    """The host of `1.2.3.4:5`, `1.2.3.4`, `[::1]:5` or `::1`; empty for a Unix socket."""
    if endpoint.startswith("/"):
        return ""
    if endpoint.startswith("["):
        return endpoint[1:].partition("]")[0]
    if endpoint.count(":") == 1:
        return endpoint.partition(":")[0]
    return endpoint
