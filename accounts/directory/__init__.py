"""What accounts asks about environments: a protocol that projects implements, and named locks.
Depends on: platform_site only.
Used from outside: environments, locks."""
