"""The only HTTP client for URLs that users choose: SSRF protection, time limits, fairness.
Depends on: platform_site.concurrency, platform_site.http.
Used from outside: http_client, ssrf, urls."""

from platform_site.outbound.errors import (
    ConnectionBroken,
    Forbidden,
    Insecure,
    InvalidResponse,
    OutboundError,
    Refused,
    RequestTimedOut,
    Unresolved,
)
from platform_site.outbound.http_client import Client, Interruption, client
from platform_site.outbound.messages import Response
from platform_site.outbound.urls import BadUrl, check_url, parse_url

__all__ = [
    "Response",
    "InvalidResponse",
    "BadUrl",
    "ConnectionBroken",
    "Client",
    "Forbidden",
    "Insecure",
    "Interruption",
    "OutboundError",
    "Refused",
    "RequestTimedOut",
    "Unresolved",
    "check_url",
    "client",
    "parse_url",
]
