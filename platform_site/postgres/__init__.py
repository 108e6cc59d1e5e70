"""Django's backend for PostgreSQL. `prepared` runs statements of hot paths under the availability watch, by `libpq`; on
the event loop, `loop_connections` lends them connections.
Depends on: platform_site.concurrency, http, observability, redis.
Used from outside: statements, sqlstates, sql_files, prepared, replicas, transaction_settings, row_access."""
