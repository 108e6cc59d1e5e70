"""The only HTTP client for URLs that users choose: SSRF protection, time limits, fairness.

Depends on: platform_site.concurrency, platform_site.http.
Used from outside: http_client, ssrf, urls.
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
