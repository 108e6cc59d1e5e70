-- name: event_of_run
INSERT INTO platform.rows_outboxevent (event_id, environment_id, type, data, request_id, depth)
SELECT 'evt' || substr(failed.id, 4), failed.environment_id, 'function.run.failed',
       jsonb_build_object('run_id', failed.id, 'function', f.name, 'version', failed.version,
                          'duration_ms', failed.duration_ms, 'error', failed.error)::text,
       failed.request_id, failed.depth
  FROM failed JOIN platform.functions_function f ON f.id = failed.function_id
 WHERE EXISTS (SELECT 1 FROM platform.rows_eventinterest i
                WHERE i.environment_id = failed.environment_id
                  AND (i.table_name, i.action) IN (('*', '*'), ('function.run', '*')))
RETURNING 1

-- name: cancel
WITH asked AS (
    UPDATE platform.functions_run r
       SET cancel_requested_at = now(), {end_without_outcome},
           status = CASE WHEN phase = 'queued' THEN 'failed' ELSE status END,
           error = CASE WHEN phase = 'queued'
                        THEN '{"name": "Cancelled", "reason": "cancelled", "message": "the run was cancelled"}'::jsonb
                        ELSE error END,
           ended_at = CASE WHEN phase = 'queued' THEN now() END,
           duration_ms = CASE WHEN phase = 'queued' THEN 0 ELSE duration_ms END,
           phase = CASE WHEN phase = 'queued' THEN 'ended' ELSE phase END
     WHERE id = %(run_id)s AND (phase = 'queued' OR phase = 'executing' AND cancel_requested_at IS NULL)
 RETURNING id, environment_id, function_id, version, request_id, depth, duration_ms, error, phase
), failed AS (
    SELECT * FROM asked WHERE phase = 'ended'
), outbox_event AS ({event_of_run})
SELECT EXISTS (SELECT 1 FROM asked), EXISTS (SELECT 1 FROM outbox_event)
