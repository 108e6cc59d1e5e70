"""The client's IP address, for limits, sessions and logs. The server (`platform_site.server.incoming`) has evaluated
`X-Forwarded-For` of `TRUSTED_PROXIES` and dropped it, so `REMOTE_ADDR` is the client."""

import ipaddress

from django.http import HttpRequest

UNKNOWN = "unknown"


def client_address(request: HttpRequest) -> str | None:
    """An IPv4-mapped IPv6 address becomes IPv4, a zone is dropped. None on a Unix socket."""
    try:
        address = ipaddress.ip_address(request.META.get("REMOTE_ADDR") or "")
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        return str(address.ipv4_mapped or str(address).partition("%")[0])
    return str(address)


def network_of(request: HttpRequest, bits: int = 64) -> str:
    """The unit of rate limits: an IPv4 address or an IPv6 /64."""
    address = client_address(request)
    if address is None:
        return UNKNOWN
    if ":" not in address:
        return address
    return str(ipaddress.ip_network((address, bits), strict=False).network_address)


def site_of(request: HttpRequest) -> str:
    """The unit of anonymous callers' shares: IPv4, or IPv6 /48, since a client often has all /64s of one."""
    return network_of(request, 48)
