"""Concurrency slots and limits of queued runs, with fair shares of anonymous callers' networks.
Depends on: platform_site only.
Used from outside: slots, queue_quotas, anonymous_queue, client_networks."""
