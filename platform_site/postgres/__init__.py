"""Statements, errors and settings of PostgreSQL, and Django's backend for databases that fail over.
Depends on: platform_site.concurrency, http, observability, redis.
Used from outside: statements, sqlstates, sql_files, prepared, replicas, transaction_settings, row_access."""
