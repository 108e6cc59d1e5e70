"""Applies a schema document: plan, warnings, renames, DDL, indexes, impact of rules.
Depends on: query, rules, schema, outbox.
Used from outside: service, apply, stored_values, planning, lint, rule_impact."""
