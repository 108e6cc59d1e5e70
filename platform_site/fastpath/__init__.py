"""Shortcuts past Django and DRF on hot paths; each module says what it replaces and saves.
Depends on: platform_site.postgres.
Used from outside: compiled_queryset, routes, batching."""
