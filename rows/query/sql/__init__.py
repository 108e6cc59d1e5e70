"""Compiles requests to SQL statements, without their values. `select` makes those that read, with ORDER BY, LIMIT and
cursor; `conditions` their WHERE, `row_json` their cells and relations, `statement` and `expressions` are the parts.
Depends on: rules, schema, and `params`, `role_view`, `embedded_users` and `tables` of `rows.query`.
Used from outside: statement, select, row_json, conditions, expressions."""
