"""Applies a schema document: plan, warnings, renames, DDL, indexes, impact of rules.

Depends on: query, rules, schema, outbox.
Used from outside: service, planner, lint, rule_impact.
"""
