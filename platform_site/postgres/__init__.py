"""Django's PostgreSQL backend for databases that fail over: prepared statements, replicas, availability.
Depends on: platform_site.redis, platform_site.observability.
Used from outside: base, prepared, replicas, availability."""
