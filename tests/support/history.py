"""Ended runs and deliveries of the last days, as many as wanted, by one statement each."""

from django.db import connections

_RUNS = """
INSERT INTO platform.functions_run (id, environment_id, function_id, version, status, phase, is_async, trigger, input,
                                    output, logs, sandbox_layers, caller_kind, caller_id, depth, concurrency, attempts,
                                    created_at, started_at, ended_at, duration_ms)
SELECT 'run_' || lpad(n::text, 12, '0') || left(md5(f.id), 10), f.environment_id, f.id, 1,
       CASE n %% 20 WHEN 0 THEN 'failed' ELSE 'succeeded' END, 'ended', false,
       CASE n %% 3 WHEN 0 THEN 'event' ELSE 'call' END, '{"a": 1}', '{"sum": 1}', '[]', '{}', 'key', 'key_x', 0, 1, 1,
       at, at, at + interval '12 ms', 12
  FROM platform.functions_function f, generate_series(1, %(count)s) n,
       LATERAL (SELECT now() - %(days)s * n * interval '1 day' / %(count)s AS at) AS moment
 WHERE f.environment_id = %(environment)s AND f.name = %(name)s
"""
_DELIVERIES = """
INSERT INTO platform.webhooks_delivery (id, environment_id, webhook_id, event_id, event_type, subject, sequence, depth,
                                        body, status, outcome, attempts, schedule_from, last_attempt_at,
                                        has_succeeded, created_at)
SELECT 'dlv_' || lpad(n::text, 12, '0') || right(w.id, 10), w.environment_id, w.id,
       'evt_' || lpad(n::text, 12, '0') || right(w.id, 10), 'tasks.insert', 'tasks/' || n, n, 0, '{"a": 1}',
       CASE n %% 20 WHEN 0 THEN 'exhausted' ELSE 'delivered' END, '200', 1, 0, at, n %% 20 <> 0, at
  FROM platform.webhooks_webhook w, generate_series(1, %(count)s) n,
       LATERAL (SELECT now() - %(days)s * n * interval '1 day' / %(count)s AS at) AS moment
 WHERE w.id = %(webhook)s
"""


def add_runs(using: str, environment_id: str, name: str, count: int, *, days: float = 7) -> None:
    """Every twentieth failed."""
    _add(using, _RUNS, {"environment": environment_id, "name": name, "count": count, "days": days})


def add_deliveries(using: str, webhook_id: str, count: int, *, days: float = 7) -> None:
    """Every twentieth was given up."""
    _add(using, _DELIVERIES, {"webhook": webhook_id, "count": count, "days": days})


def _add(using: str, statement: str, values: dict[str, object]) -> None:
    with connections[using].cursor() as cursor:
        cursor.execute("SET statement_timeout = 0")
        cursor.execute(statement, values)
        cursor.execute("RESET statement_timeout")
