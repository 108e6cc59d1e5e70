"""Compiles conditions and requests to SQL statements, without their values.
Depends on: rules, schema, and `params`, `role_view`, `embedded_users` and `tables` of `rows.query`.
Used from outside: statement, select, row_json, conditions, expressions."""
