-- name: queue_runs
-- The decisions about all claimed functions, as arrays: bulk_create and bulk_update take ten times as long (1.2 ms a
-- run), and on the full hour many functions are due.
WITH decided AS (
    SELECT *
      FROM unnest(%s::text[], %s::timestamptz[], %s::text[], %s::timestamptz[], %s::text[], %s::text[], %s::int[])
           AS decided(function_id, next_run_at, stopped, skipped_at, run_id, input, concurrency)
), stepped AS (
    UPDATE platform.functions_function f
       SET next_run_at = decided.next_run_at, schedule_stopped = decided.stopped,
           last_skipped_at = coalesce(decided.skipped_at, f.last_skipped_at),
           scheduled_run_id = coalesce(decided.run_id, f.scheduled_run_id)
      FROM decided WHERE f.id = decided.function_id
)
INSERT INTO platform.functions_run
       (id, environment_id, function_id, version, status, phase, is_async, trigger, input, logs, sandbox_layers,
        caller_kind, caller_id, depth, attempts, concurrency)
SELECT decided.run_id, f.environment_id, f.id, f.active_version, 'running', 'queued', true, 'schedule', decided.input,
       '[]', '{}', f.scheduled_kind, f.scheduled_id, 0, 0, decided.concurrency
  FROM decided JOIN platform.functions_function f ON f.id = decided.function_id
 WHERE decided.run_id IS NOT NULL
