"""Lists and retrieves rows: the rules and the filter become conditions of one SQL statement.
Depends on: rules, schema, outbox.
Used from outside: service, context, schema_cache, explain, and the packages sql, tables, aggregates."""
