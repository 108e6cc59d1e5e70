"""Shortcuts past Django and DRF on hot paths; each module's docstring has what it replaces and saves.
Depends on: nothing.
Used from outside: connection_cleanup, routes, batching."""
