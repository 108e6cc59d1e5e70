"""The SQL statements that change rows.
Depends on: query, rules, schema, outbox, and `row_size` and `update_operators` of `rows.write`.
Used from outside: writes, referrers, probes, and shapes, which say what each statement is compiled for."""
