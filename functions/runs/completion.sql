-- name: end
-- `not_stored` is null if all fields are stored. The last two columns are for `StatementBatcher`.
--
-- The phase is compared so that only an index on the id fits. The planner expects the index of executing runs to be the
-- smallest, but it has an entry for every run since the last vacuum or the oldest snapshot.
WITH ended AS (
    UPDATE platform.functions_run
       SET status = %(status)s::text, phase = 'ended', output = %(output)s::text, error = %(error)s::jsonb, logs = %(logs)s::jsonb,
           sandbox_layers = %(sandbox_layers)s::text[], duration_ms = %(duration_ms)s::int, ended_at = now(), claimed_until = NULL, slot = NULL,
           not_stored = %(not_stored)s::text[], input = CASE WHEN 'input' = ANY (%(not_stored)s::text[]) THEN '' ELSE input END,
           weight = {weight_of_end}
     WHERE id = %(run_id)s::text AND attempts = %(attempt)s::int AND phase || '' = 'executing'
 RETURNING id, environment_id, function_id, version, request_id, depth, status, duration_ms, error
), outbox_event AS ({event_of_run})
SELECT EXISTS (SELECT 1 FROM ended), EXISTS (SELECT 1 FROM outbox_event),
       CASE WHEN %(is_asynchronous)s::boolean THEN set_config('synchronous_commit', 'off', true) END, %(mark)s::text

-- name: insert_ended
-- The whole run, if PostgreSQL lost its start.
WITH ended AS (
    INSERT INTO platform.functions_run
           (id, environment_id, function_id, version, status, phase, is_async, input, output, error, logs,
            sandbox_layers, not_stored, caller_kind, caller_id, request_id, depth, trigger, address_id, attempts,
            started_at, ended_at, duration_ms, weight)
    SELECT %(run_id)s::text, f.environment_id, f.id, %(version)s::int, %(status)s::text, 'ended', false, %(input)s::text, %(output)s::text, %(error)s::jsonb,
           %(logs)s::jsonb, %(sandbox_layers)s::text[], %(not_stored)s::text[], %(caller_kind)s::text, %(caller_id)s::text, %(request_id)s::text, %(depth)s::smallint, %(trigger)s::text, %(endpoint_id)s::text,
           %(attempt)s::int, now() - %(duration_ms)s::int * interval '1 ms', now(), %(duration_ms)s::int, {weight_of_whole}
      FROM platform.functions_function f WHERE f.id = %(function_id)s::text AND f.environment_id IS NOT NULL
    ON CONFLICT (id) DO NOTHING
 RETURNING id, environment_id, function_id, version, request_id, depth, status, duration_ms, error
), outbox_event AS ({event_of_run})
SELECT EXISTS (SELECT 1 FROM ended), EXISTS (SELECT 1 FROM outbox_event)

-- name: event_of_run
-- The event of each run in `ended`, if someone subscribes to it.
INSERT INTO platform.rows_outboxevent (event_id, environment_id, type, data, request_id, depth)
SELECT 'evt' || substr(ended.id, 4), ended.environment_id, 'function.run.' || ended.status,
       jsonb_build_object('run_id', ended.id, 'function', f.name, 'version', ended.version,
                          'duration_ms', ended.duration_ms, 'error', ended.error)::text,
       ended.request_id, ended.depth
  FROM ended JOIN platform.functions_function f ON f.id = ended.function_id
 WHERE EXISTS (SELECT 1 FROM platform.rows_eventinterest i
                WHERE i.environment_id = ended.environment_id
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
 RETURNING id, environment_id, function_id, version, request_id, depth, status, duration_ms, error, phase
), ended AS (
    SELECT * FROM asked WHERE phase = 'ended'
), outbox_event AS ({event_of_run})
SELECT EXISTS (SELECT 1 FROM asked), EXISTS (SELECT 1 FROM outbox_event)
