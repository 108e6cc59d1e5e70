"""Callers, plans, public IDs, email normalization, call depth, and the signals between apps.
Depends on: platform_site.security.
Used from outside: callers, ids, plans, signals."""
