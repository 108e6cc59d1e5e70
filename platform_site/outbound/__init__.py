"""The only HTTP client for URLs that users choose: SSRF protection, time limits, fairness.
Depends on: platform_site.concurrency, platform_site.http.
Used from outside: http_client, ssrf, urls."""

from platform_site.outbound.errors import OutboundError, RequestTimedOut
from platform_site.outbound.http_client import Client, Interruption, client
from platform_site.outbound.messages import Response
from platform_site.outbound.urls import BadUrl, check_url, parse_url

__all__ = [
    "BadUrl",
    "Client",
    "Interruption",
    "OutboundError",
    "RequestTimedOut",
    "Response",
    "check_url",
    "client",
    "parse_url",
]
