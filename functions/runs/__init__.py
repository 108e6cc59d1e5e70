"""Runs as rows: start, queue, leases, completion, history, storage, retention.
Depends on: quotas.
Used from outside: start, queue, leases, completion, history, storage."""
