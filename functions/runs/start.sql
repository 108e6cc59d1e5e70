-- name: start
-- `invoker` is the kind of caller that must be allowed, `may_take` how many slots it may take, `slots` those in the
-- order in which to try them, `not_stored` the fields that are not stored; of an anonymous caller, `network` its
-- network, `delay` that in the queue. The last two columns are for `StatementBatcher`. OFFSET 0 keeps the order of the
-- slots, which a join would not.
--
-- PostgreSQL plans a statement again at every call while custom plans look cheaper than a generic one. So there are two
-- statements: with one, all calls would pay for the network check of anonymous callers. And no row estimate depends on
-- a value: runs are compared with columns, or with `(SELECT %(anonymous_slots)s)`, whose value the planner does not
-- know.
WITH chosen AS (
    SELECT f.id, f.active_version, f.timeout_ms, f.memory_mb, f.allowed_hosts, v.source_hash,
           {secrets} AS secrets,
           (SELECT free FROM unnest(%(slots)s::int[]) free
             WHERE %(phase)s::text = 'executing' {network_check}
               AND NOT EXISTS (
                   SELECT 1 FROM platform.functions_run r
                    WHERE r.environment_id = f.environment_id AND r.slot = free OFFSET 0)
             LIMIT 1) AS slot
      FROM platform.functions_function f
      JOIN platform.functions_version v ON v.function_id = f.id AND v.number = f.active_version
     WHERE f.environment_id = %(environment_id)s::text AND f.name = %(function_name)s::text
       AND {is_invocable}
), made AS (
    INSERT INTO platform.functions_run
           (id, environment_id, function_id, version, status, phase, is_async, trigger, address_id, input, not_stored,
            logs, sandbox_layers, caller_kind, caller_id, network, turn_at, request_id, depth, concurrency, slot,
            attempts, created_at, started_at, claimed_until)
    SELECT %(run_id)s::text, %(environment_id)s::text, id, active_version, 'running', %(phase)s::text, %(phase)s::text = 'queued', %(trigger)s::text, %(endpoint_id)s::text,
           %(input)s::text, %(not_stored)s::text[], '[]'::jsonb, '{}', %(caller_kind)s::text, %(caller_id)s::text, %(network)s::bigint,
           statement_timestamp() + %(delay)s::interval, %(request_id)s::text, %(depth)s::smallint, %(may_take)s::int, slot,
           CASE WHEN %(phase)s::text = 'executing' THEN 1 ELSE 0 END,
           CASE WHEN %(phase)s::text = 'executing' THEN now() ELSE statement_timestamp() END,
           CASE WHEN %(phase)s::text = 'executing' THEN now() END,
           CASE WHEN %(phase)s::text = 'executing' THEN
                     now() + least(timeout_ms * interval '1 ms' + %(margin)s::interval, %(lease)s::interval) END
      FROM chosen WHERE %(phase)s::text = 'queued' OR slot IS NOT NULL
    ON CONFLICT (environment_id, slot) WHERE slot IS NOT NULL DO NOTHING
    RETURNING id
)
SELECT id, active_version, source_hash, timeout_ms, memory_mb, array_to_json(allowed_hosts), secrets,
       slot IS NOT NULL, EXISTS (SELECT 1 FROM made),
       CASE WHEN %(is_asynchronous)s::boolean THEN set_config('synchronous_commit', 'off', true) END, %(mark)s::text
  FROM chosen

-- name: secrets
(SELECT jsonb_object_agg(s.name, encode(s.sealed_value, 'hex'))
   FROM platform.functions_secret s WHERE s.function_id = f.id AND s.sealed_value IS NOT NULL)

-- name: is_invocable
-- Whether the function `f` may be called by the kind of caller `invoker`.
(f.invoke IN ('public', %(invoker)s::text) OR (f.invoke IS NULL AND %(invoker)s::text <> 'anonymous'))

-- name: has_network_share
-- Of an anonymous caller: `anonymous_slots` is how many all of them may take.
AND (SELECT count(*) FILTER (WHERE r.network = %(network)s::bigint) = 0 OR 2 * count(*) < %(anonymous_slots)s::int
       FROM platform.functions_run r
      WHERE r.environment_id = f.environment_id AND r.slot BETWEEN 1 AND (SELECT %(anonymous_slots)s::int))

-- name: find
-- Returns the columns of `start`.
SELECT f.id, r.version, v.source_hash, f.timeout_ms, f.memory_mb, array_to_json(f.allowed_hosts),
       {secrets}, true, true, NULL
  FROM platform.functions_run r
  JOIN platform.functions_function f ON f.id = r.function_id
  JOIN platform.functions_version v ON v.function_id = f.id AND v.number = r.version
 WHERE r.id = %(run_id)s::text

-- name: timeout
SELECT f.timeout_ms FROM platform.functions_function f
 WHERE f.environment_id = %(environment_id)s::text AND f.name = %(function_name)s::text AND {is_invocable}

-- name: source
SELECT source FROM platform.functions_version WHERE function_id = %(function_id)s::text AND number = %(version)s::int
