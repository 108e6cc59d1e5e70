"""The Valkey client with its circuit breaker, and rate limits.
Depends on: platform_site.concurrency, http, identity, observability.
Used from outside: client, rate_limits, records, round_trip."""
