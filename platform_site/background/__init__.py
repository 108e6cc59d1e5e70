"""Background work: tasks by name, long tasks, periodic jobs, debouncing, skip scans, advisory locks.
Depends on: platform_site.postgres, platform_site.concurrency.
Used from outside: dispatch, long_tasks, periodic, debounce, skip_scan, advisory_locks."""
