"""Executes a run: waits for a slot, calls the sandbox, answers its ctx calls, shapes the response.
Depends on: runs, quotas, runtime.
Used from outside: executor, host_api, run_as, request_concurrency."""
