"""Public endpoints that receive webhooks of other services and run a function.
Depends on: deploy, execution, runs, triggers.
Used from outside: views, service."""
