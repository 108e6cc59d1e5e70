"""Shortcuts past Django and DRF on hot paths; each module says what it replaces and saves.
Depends on: nothing.
Used from outside: connection_cleanup, routes, batching."""
