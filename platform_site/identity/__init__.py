"""Callers, plans, public IDs, email normalization, call depth, and the signals between apps.
Depends on: platform_site.http, platform_site.security.
Used from outside: callers, ids, plans, signals, call_depth, email_addresses."""
