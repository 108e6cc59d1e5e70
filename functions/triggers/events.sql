-- name: waiting
WITH RECURSIVE {reached}
SELECT reached.environment_id
  FROM reached
 CROSS JOIN LATERAL ({queued_of_each}) queued (count, size)
 WHERE reached.environment_id <> ALL (%(suspended)s::text[]) AND queued.count <= %(half)s

-- name: functions
SELECT id, active_version, events, events_kind, events_id FROM platform.functions_function
 WHERE id = ANY (%s) AND environment_id = %s AND events IS NOT NULL AND events_stopped IS NULL

-- name: queue
WITH made AS (
    INSERT INTO platform.functions_run
           (id, environment_id, function_id, version, status, phase, is_async, trigger, event_id, input, error, logs,
            sandbox_layers, caller_kind, caller_id, request_id, depth, attempts, concurrency, created_at, ended_at,
            duration_ms, weight)
    SELECT id, environment_id, function_id, version, CASE WHEN error IS NULL THEN 'running' ELSE 'failed' END,
           CASE WHEN error IS NULL THEN 'queued' ELSE 'ended' END, true, 'event', event_id, input, error, '[]', '{}',
           caller_kind, caller_id, request_id, depth, 0, concurrency, clock_timestamp(),
           CASE WHEN error IS NOT NULL THEN now() END, CASE WHEN error IS NOT NULL THEN 0 END,
           CASE WHEN error IS NOT NULL THEN {weight} END
      FROM json_to_recordset(%s::json) AS made (
           id text, environment_id text, function_id text, version int, event_id text, input text, error jsonb,
           caller_kind text, caller_id text, request_id text, depth smallint, concurrency int)
        ON CONFLICT (event_id, function_id) WHERE event_id IS NOT NULL DO NOTHING
 RETURNING id, environment_id, function_id, version, request_id, depth, status, duration_ms, error, phase
), ended AS (
    SELECT * FROM made WHERE phase = 'ended'
), outbox_event AS ({event_of_run})
SELECT (SELECT count(*) FROM made WHERE phase = 'queued'), EXISTS (SELECT 1 FROM outbox_event)
