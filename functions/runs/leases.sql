-- name: renew
WITH ours AS (
    SELECT * FROM unnest(%(ids)s::text[], %(attempts)s::int[], %(functions)s::text[]) AS ours(id, attempt, function_id)
), renewed AS (
    UPDATE platform.functions_run r SET claimed_until = now() + %(lease)s
      FROM ours JOIN platform.functions_function f ON f.id = ours.function_id AND f.environment_id IS NOT NULL
     WHERE r.id = ours.id AND r.attempts = ours.attempt AND r.phase = 'executing'
 RETURNING r.id
)
SELECT id FROM renewed
 UNION ALL
SELECT ours.id FROM ours JOIN platform.functions_function f ON f.id = ours.function_id
 WHERE f.environment_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM platform.functions_run r WHERE r.id = ours.id)

-- name: cancelled
SELECT id FROM platform.functions_run WHERE id = ANY (%s) AND cancel_requested_at IS NOT NULL

-- name: lost
WITH lost AS (
    SELECT id, is_async AND attempts < %(most)s AND cancel_requested_at IS NULL AS is_retried,
           cancel_requested_at IS NOT NULL AS is_cancelled
      FROM platform.functions_run
     WHERE phase = 'executing' AND claimed_until < now()
     ORDER BY claimed_until LIMIT 500 FOR UPDATE SKIP LOCKED
), again AS (
    UPDATE platform.functions_run r SET phase = 'queued', slot = NULL, claimed_until = NULL
      FROM lost WHERE r.id = lost.id AND lost.is_retried
    RETURNING r.id
), ended AS (
    UPDATE platform.functions_run r
       SET status = 'failed', phase = 'ended', slot = NULL, ended_at = now(), claimed_until = NULL,
           {end_without_outcome},
           -- The service may have been down for longer than the 24 days that the column can hold.
           duration_ms = least(extract(epoch FROM now() - r.started_at) * 1000, 2147483647),
           error = CASE WHEN lost.is_cancelled
                        THEN '{"name": "Cancelled", "reason": "cancelled", "message": "the run was cancelled"}'
                        ELSE '{"name": "WorkerLost", "reason": "worker_lost",
                               "message": "the process that executed the run died"}' END::jsonb
      FROM lost WHERE r.id = lost.id AND NOT lost.is_retried
    RETURNING r.id, r.environment_id, r.function_id, r.version, r.request_id, r.depth, r.status, r.duration_ms,
              r.error
), outbox_events AS ({event_of_run})
SELECT (SELECT count(*) FROM again), (SELECT count(*) FROM ended), (SELECT count(*) FROM outbox_events)

-- name: repair_future_times
UPDATE platform.functions_run
   SET claimed_until = now() + CASE WHEN phase = 'executing' THEN %(lease)s ELSE interval '0' END
  -- Written so that each half uses its partial index and the history is not read.
 WHERE phase = 'executing' AND claimed_until > now() + %(longest)s
    OR phase = 'queued' AND claimed_until > now() + %(longest)s
