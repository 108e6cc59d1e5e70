"""Lists and retrieves rows: the rules and the filter become conditions of one SQL statement.

Depends on: rules, schema, outbox.
Used from outside: service, context, managers, schema_cache, explain.
"""
