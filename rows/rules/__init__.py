"""Row-level rules and the filter grammar: conditions, operators, and their evaluation in Python.
Depends on: schema.
Used from outside: rules, grammar, conditions, evaluator."""
