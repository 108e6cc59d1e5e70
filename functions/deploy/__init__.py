"""Services of functions: deploy, activate, configure, delete, back up.
Depends on: execution, triggers, runs, quotas.
Used from outside: service."""
