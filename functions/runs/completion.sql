-- name: end
-- $1 run, $2 attempt, $3 status, $4 output, $5 error, $6 log, $7 sandbox_layers, $8 milliseconds, $9 event, $10 the
-- function's name, $11 the fields that are not stored (null: none); $12 and $13 are those of `StatementBatcher`.
--
-- The phase is compared so that only an index on the id fits. The planner expects the index of executing runs to be the
-- smallest, but it has an entry for every run since the last vacuum or the oldest snapshot.
WITH ended AS (
    UPDATE platform.functions_run
       SET status = $3::text, phase = 'ended', output = $4::text, error = $5::jsonb, logs = $6::jsonb,
           sandbox_layers = $7::text[], duration_ms = $8::int, ended_at = now(), claimed_until = NULL, slot = NULL,
           not_stored = $11::text[], input = CASE WHEN 'input' = ANY ($11::text[]) THEN '' ELSE input END,
           weight = {weight_of_end}
     WHERE id = $1::text AND attempts = $2::int AND phase || '' = 'executing'
 RETURNING id, environment_id, version, request_id, depth
), outbox_event AS ({event_of_end})
SELECT EXISTS (SELECT 1 FROM ended), EXISTS (SELECT 1 FROM outbox_event),
       CASE WHEN $12::boolean THEN set_config('synchronous_commit', 'off', true) END, $13::text

-- name: insert_ended
-- As `end` up to $11, and then $12 function, $13 version, $14 input, $15 kind of caller, $16 its id, $17 request, $18
-- depth, $19 trigger, $20 inbound endpoint.
WITH ended AS (
    INSERT INTO platform.functions_run
           (id, environment_id, function_id, version, status, phase, is_async, input, output, error, logs,
            sandbox_layers, not_stored, caller_kind, caller_id, request_id, depth, trigger, address_id, attempts,
            started_at, ended_at, duration_ms, weight)
    SELECT $1::text, f.environment_id, f.id, $13::int, $3::text, 'ended', false, $14::text, $4::text, $5::jsonb,
           $6::jsonb, $7::text[], $11::text[], $15::text, $16::text, $17::text, $18::smallint, $19::text, $20::text,
           $2::int, now() - $8::int * interval '1 ms', now(), $8::int, {weight_of_whole}
      FROM platform.functions_function f WHERE f.id = $12::text AND f.environment_id IS NOT NULL
    ON CONFLICT (id) DO NOTHING
 RETURNING id, environment_id, version, request_id, depth
), outbox_event AS ({event_of_end})
SELECT EXISTS (SELECT 1 FROM ended), EXISTS (SELECT 1 FROM outbox_event)

-- name: event_of_end
INSERT INTO platform.rows_outboxevent (event_id, environment_id, type, data, request_id, depth)
SELECT $9::text, ended.environment_id, 'function.run.' || $3::text,
       jsonb_build_object('run_id', ended.id, 'function', $10::text, 'version', ended.version,
                          'duration_ms', $8::int, 'error', $5::jsonb)::text,
       ended.request_id, ended.depth
  FROM ended
 WHERE EXISTS (SELECT 1 FROM platform.rows_eventinterest i
                WHERE i.environment_id = ended.environment_id
                  AND (i.table_name, i.action) IN (('*', '*'), ('function.run', '*')))
RETURNING 1

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
