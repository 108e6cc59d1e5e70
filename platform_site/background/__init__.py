"""Background work: tasks by name, periodic jobs, debouncing, skip scans, advisory locks.
Depends on: platform_site.postgres.
Used from outside: dispatch, periodic, debounce, skip_scan, advisory_locks."""
