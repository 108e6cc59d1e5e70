"""The one guarded HTTP client: every call that leaves the house for an address somebody else chose goes through here.

    urls        what a URL must look like, at the time somebody writes it down and again when it is called
    networks    which IP addresses may be called: the public internet, and what OUTBOUND_ALLOWED_NETWORKS opens
    resolver    names to addresses, under a deadline
    sockets     sockets that keep to one deadline and one number of bytes, whatever the other side does
    calls       requests: the address that was checked is the one connected to; idle connections kept per tenant and
                host

A call reveals nothing of the network it is made from: an address that may not be called is refused before a packet is
sent, redirects are answers, proxy variables are not read, and of a response at most `limit` bytes are read, undecoded.
import-linter and ruff forbid any other client (threat T18; design section 7).

Why not `requests` with `requests-hardened`: its timeouts are per read, so a receiver that dribbles holds a call for as
long as it likes; it asks the resolver without a deadline, each time, and looks at the first address only; a call costs
390 µs of CPU where this one takes 80. Its list of networks was compared with ours.
"""

from platform_site.outbound.errors import (
    BadAnswer,
    Broken,
    Forbidden,
    Insecure,
    OutboundError,
    Refused,
    TimedOut,
    Unresolved,
)
from platform_site.outbound.http_client import Answer, Client, Headers, Interruption, client
from platform_site.outbound.urls import BadUrl, Target, check_url, parse_url

__all__ = [
    "Answer",
    "BadAnswer",
    "BadUrl",
    "Broken",
    "Client",
    "Forbidden",
    "Headers",
    "Insecure",
    "Interruption",
    "OutboundError",
    "Refused",
    "Target",
    "TimedOut",
    "Unresolved",
    "check_url",
    "client",
    "parse_url",
]
