"""Parses URLs to be called, strictly, when stored and when called. Hosts are names (IDN as punycode), canonical IPv4 or
bracketed IPv6: no decimal, octal, hex or short forms, which resolvers accept."""

import ipaddress
import re
import time
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlsplit

import idna
from django.conf import settings

from platform_site.http.errors import ValidationFailed
from platform_site.outbound.resolver import NotResolved, resolve
from platform_site.outbound.ssrf import Address, is_allowed, networks

MAX_LENGTH: Final = 2048
DEFAULT_PORTS: Final = {"http": 80, "https": 443}
LOWEST_FREE_PORT: Final = 1024
FORBIDDEN_PORTS: Final = frozenset(
    {
        # Databases, queues, caches and cluster management.
        *(1099, 1433, 1434, 1521, 1719, 1720, 1723, 1883, 2049, 2181, 2375, 2376, 2377, 2379, 2380, 3268, 3269),
        *(3306, 3389, 3659, 4045, 4190, 4369, 5060, 5061, 5432, 5672, 5984, 5985, 5986, 6000, 6379, 6443, 6566),
        *(6665, 6666, 6667, 6668, 6669, 6679, 6697, 7474, 7687, 8086, 8200, 8300, 8301, 8302, 8500, 9042, 9092),
        *(9200, 9300, 10080, 10250, 10255, 11211, 15672, 25672, 26257, 26379, 27017, 27018, 27019, 50070, 61613),
    }
)
RESOLVE_SECONDS: Final = 2.0
_CHECK_OWNER: Final = "check_url"

_REFUSED: Final = re.compile(r"[\x00-\x20\x7f\\<>\"^`{|}]")
_NAME: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(?:\.(?!-)[a-z0-9_-]{1,63}(?<!-))*\.?", re.ASCII)
_NUMERIC: Final = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)\.?", re.ASCII)
"""Hosts that resolvers read as IPs (WHATWG URL, "ends in a number")."""


class BadUrl(ValueError):
    """`code` is stable, the message a sentence."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Target:
    scheme: str
    host: str
    """Lower-case ASCII without a trailing dot, or an IP without brackets."""
    port: int
    path: str

    @property
    def address(self) -> Address | None:
        try:
            return ipaddress.ip_address(self.host)
        except ValueError:
            return None

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"


def parse_url(text: str) -> Target:
    if len(text) > MAX_LENGTH:
        raise BadUrl("too_long", f"A URL may have at most {MAX_LENGTH} characters.")
    if _REFUSED.search(text):
        raise BadUrl("invalid_url", "The URL contains characters that must be percent-encoded.")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise BadUrl("invalid_url", "This is not a URL.") from None
    if parts.scheme not in DEFAULT_PORTS:
        raise BadUrl("invalid_scheme", "A URL must start with https:// or http://.")
    if "@" in parts.netloc:
        raise BadUrl("credentials", "A URL must not contain a user name or password.")
    if "#" in text:
        raise BadUrl("fragment", "A URL must not have a fragment (#…): HTTP does not send it.")
    host = _host(parts.netloc)
    if port is None:
        port = DEFAULT_PORTS[parts.scheme]
    if port not in (80, 443) and (port < LOWEST_FREE_PORT or port in FORBIDDEN_PORTS):
        raise BadUrl("port_not_allowed", "The port must be 80, 443, or above 1023 and not that of an internal service.")
    path = parts.path or "/"
    return Target(parts.scheme, host, port, _encoded(path + ("?" + parts.query if parts.query else "")))


def _encoded(path: str) -> str:
    if path.isascii():
        return path
    try:
        return quote(path, safe="!#$%&'()*+,/:;=?@[]~-._")
    except UnicodeEncodeError:
        raise BadUrl("invalid_url", "The URL contains a lone surrogate.") from None


def _host(netloc: str) -> str:
    if netloc.startswith("["):
        inside, bracket, after = netloc[1:].partition("]")
        try:
            address = ipaddress.IPv6Address(inside)
        except ValueError:
            raise BadUrl("invalid_host", "The IPv6 address of the URL is invalid.") from None
        if not bracket or after.partition(":")[0] or address.scope_id is not None:
            raise BadUrl("invalid_host", "The IPv6 address of the URL cannot be called.")
        return str(address)
    host = netloc.partition(":")[0].lower()
    if not host.isascii():
        try:
            host = idna.encode(host, uts46=True).decode()
        except idna.IDNAError:
            raise BadUrl("invalid_host", "The host is not a valid internationalised name.") from None
    if _NUMERIC.fullmatch(host):
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            raise BadUrl(
                "invalid_host", "An IPv4 address must be four decimal numbers without leading zeros."
            ) from None
    if len(host) > 253 or not _NAME.fullmatch(host):
        raise BadUrl("invalid_host", "The host of the URL is not a valid name.")
    return host.removesuffix(".")


def check_url(text: str) -> None:
    """Raises ValidationFailed (field `url`) if the URL is malformed or has only private IPs; an unresolvable name is
    accepted, since calls check again. Not inside a transaction, as it resolves the host."""
    try:
        target = parse_url(text)
    except BadUrl as error:
        raise ValidationFailed.of("url", error.code, str(error)) from None
    try:
        addresses = resolve(target.host, target.port, time.monotonic() + RESOLVE_SECONDS, _CHECK_OWNER)
    except (NotResolved, TimeoutError):
        return
    opened = networks(tuple(settings.OUTBOUND_ALLOWED_NETWORKS))
    if not any(is_allowed(address, opened) for address in addresses):
        raise ValidationFailed.of("url", "address_not_allowed", "The host is not on the public internet.")
