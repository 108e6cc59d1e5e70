"""Builds the payload of a row event for its receiver, within a time budget.
Depends on: query, rules, schema, outbox.
Used from outside: payloads, time_budget."""
