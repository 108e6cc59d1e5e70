"""Statements, errors and settings of PostgreSQL, and Django's backend for databases that fail over. Statements of hot
paths: `prepared` runs them under the availability watch and repeats reads, by `libpq`, on a `libpq_connection`; on the
event loop, `pipelined_reads` joins equal ones, and `loop_connections` lends connections.
Depends on: platform_site.concurrency, http, observability, redis.
Used from outside: statements, sqlstates, sql_files, prepared, replicas, transaction_settings, row_access."""
