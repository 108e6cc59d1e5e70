"""Lookups: environments and their cache, members' roles, limits, allowed origins, environment locks.
Depends on: accounts.
Used from outside: environments, environment_cache, access, limits, locks, roles."""
