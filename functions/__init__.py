"""Deployed functions, their runs, schedules, triggers and inbound endpoints.
Depends on: rows, projects, accounts, platform_site.
Used from outside: deploy, execution, runs, triggers."""
