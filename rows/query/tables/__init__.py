"""The tables of an environment as Django models, managers and migration states.
Depends on: rules, schema, and `rows.query.sql.expressions`.
Used from outside: dynamic_models, managers, table_models, table_checks, catalog."""
