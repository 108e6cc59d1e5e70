"""Aggregates: counts, sums, averages and extremes of the rows that a caller may read, by group.
Depends on: rules, schema, and `rows.query`.
Used from outside: service, request."""
