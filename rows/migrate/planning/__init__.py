"""Plans of schema changes: pure, without a database.
Depends on: query, rules, schema.
Used from outside: planner, plan."""
