"""The IP address of the client, for limits, sessions, the audit log and logs. No other module determines it. The server
(`platform_site.server.incoming`) has already read `X-Forwarded-For` where a peer in `TRUSTED_PROXIES` wrote it, and
drops the header in every case: `REMOTE_ADDR` is the client, and no header that a client can write changes it."""

import ipaddress

from django.http import HttpRequest

UNKNOWN = "unknown"
"""A peer on a Unix socket, which has no IP address."""


def client_address(request: HttpRequest) -> str | None:
    """The client's IP address in its plain form: an IPv4-mapped IPv6 address is IPv4, and a link-local one has no zone,
    which only names a local network interface. None on a Unix socket."""
    try:
        address = ipaddress.ip_address(request.META.get("REMOTE_ADDR") or "")
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        return str(address.ipv4_mapped or str(address).partition("%")[0])
    return str(address)


def network_of(request: HttpRequest, bits: int = 64) -> str:
    """The unit of rate limits: an IPv4 address, or the /64 of an IPv6 one, which belongs to one host or household."""
    address = client_address(request)
    if address is None:
        return UNKNOWN
    if ":" not in address:
        return address
    return str(ipaddress.ip_network((address, bits), strict=False).network_address)


def site_of(request: HttpRequest) -> str:
    """The unit of fair shares of anonymous callers: an IPv4 address, or the /48 of an IPv6 one. A rented server or a
    home connection often has all /64s of a /48, and would otherwise have as many shares."""
    return network_of(request, 48)
