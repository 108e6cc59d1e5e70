"""Background work: sending tasks by name, periodic jobs, debouncing, skip scans, advisory locks.
Leases of deliveries, runs and emails are not here. They share a vocabulary (`claimed_until`, `attempts` as the fencing
token, `claim`, `renew`, the database's clock), but each is one statement that also decides the fairness and the order
of its own table; a common helper would only wrap `now() + lease`.
Depends on: platform_site.http.
Used from outside: dispatch, periodic, debounce, skip_scan, advisory_locks."""
