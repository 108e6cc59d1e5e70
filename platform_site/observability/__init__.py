"""Logs; metrics for `/metrics` and, in the control database, for the console, so an unavailable region shows its last.
Depends on: platform_site.fastpath, http, postgres, redis.
Used from outside: metrics, lag, logs, traffic."""
