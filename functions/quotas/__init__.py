"""Limits of queued runs, and fair shares of anonymous callers' networks.
Depends on: platform_site only.
Used from outside: queue_quotas, client_networks."""
