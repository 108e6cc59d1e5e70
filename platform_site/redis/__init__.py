"""The Valkey client with its circuit breaker, and rate limits.
Depends on: platform_site.concurrency, platform_site.observability.
Used from outside: client, rate_limits."""
