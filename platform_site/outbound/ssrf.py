"""SSRF protection: which IPs may be called, by the IANA special-purpose registries as of 2026 (`ipaddress.is_global` of
Python 3.11 treats 6to4, NAT64, multicast and site-local as public). Of IPv6 only 2000::/3, without embedded IPv4."""

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

FORBIDDEN_V4: Final = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",  # carriers' own, and some clouds' services
            "127.0.0.0/8",
            "168.63.129.16/32",  # public, but Azure's internal services
            "169.254.0.0/16",  # link-local: metadata of most clouds
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.31.196.0/24",
            "192.52.193.0/24",
            "192.88.99.0/24",  # 6to4 relays
            "192.168.0.0/16",
            "192.175.48.0/24",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",
            "240.0.0.0/4",
        ),
    )
)
GLOBAL_V6: Final = ipaddress.IPv6Network("2000::/3")
FORBIDDEN_V6: Final = tuple(
    map(
        ipaddress.IPv6Network,
        (
            "2001::/23",  # protocol assignments: Teredo, ORCHID, benchmarking, anycast services
            "2001:db8::/32",
            "2002::/16",  # 6to4: embeds an IPv4 address
            "2620:4f:8000::/48",
            "3fff::/20",
        ),
    )
)


@lru_cache(maxsize=64)
def networks(texts: tuple[str, ...]) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(text) for text in texts)


def unmapped(address: Address) -> Address:
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def is_allowed(address: Address, opened: Iterable[Network] = ()) -> bool:
    """Whether it is public, or in one of the `opened` networks."""
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        return False
    address = unmapped(address)
    if any(address in network for network in opened):
        return True
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in FORBIDDEN_V4)
    return address in GLOBAL_V6 and not any(address in network for network in FORBIDDEN_V6)
