-- name: start
-- $1 environment, $2 function, $3 kind of caller that must be allowed, $4 slots that it may take, $5 initial phase, $6
-- run, $7 input, $8 kind of caller, $9 its id, $10 request, $11 depth, $12 margin and $13 lease (`lease_values`), $14
-- the slots in the order in which to try them (`_slots`), $15 the fields that are not stored; for an anonymous caller
-- $16 its network, $17 its delay in the queue; $18 trigger, $19 inbound endpoint; the last two are those of
-- `StatementBatcher`. OFFSET 0 keeps the order of the slots, which a join would not.
--
-- PostgreSQL plans a statement again at every call while custom plans look cheaper than a generic one. So there are two
-- statements: with one, all calls would pay for the network check of anonymous callers. And no row estimate depends on
-- a value: runs are compared with columns, or with `(SELECT $20)`, whose value the planner does not know.
WITH chosen AS (
    SELECT f.id, f.name, f.active_version, f.timeout_ms, f.memory_mb, f.allowed_hosts, v.source_hash,
           (SELECT jsonb_object_agg(s.name, encode(s.sealed_value, 'hex'))
              FROM platform.functions_secret s WHERE s.function_id = f.id AND s.sealed_value IS NOT NULL) AS secrets,
           (SELECT free FROM unnest($14::int[]) free
             WHERE $5::text = 'executing' {network_check}
               AND NOT EXISTS (
                   SELECT 1 FROM platform.functions_run r
                    WHERE r.environment_id = f.environment_id AND r.slot = free OFFSET 0)
             LIMIT 1) AS slot
      FROM platform.functions_function f
      JOIN platform.functions_version v ON v.function_id = f.id AND v.number = f.active_version
     WHERE f.environment_id = $1::text AND f.name = $2::text
       AND {is_invocable}
), made AS (
    INSERT INTO platform.functions_run
           (id, environment_id, function_id, version, status, phase, is_async, trigger, address_id, input, not_stored,
            logs, sandbox_layers, caller_kind, caller_id, network, turn_at, request_id, depth, concurrency, slot,
            attempts, created_at, started_at, claimed_until)
    SELECT $6::text, $1::text, id, active_version, 'running', $5::text, $5::text = 'queued', $18::text, $19::text,
           $7::text, $15::text[], '[]'::jsonb, '{}', $8::text, $9::text, $16::bigint,
           statement_timestamp() + $17::interval, $10::text, $11::smallint, $4::int, slot,
           CASE WHEN $5::text = 'executing' THEN 1 ELSE 0 END,
           CASE WHEN $5::text = 'executing' THEN now() ELSE statement_timestamp() END,
           CASE WHEN $5::text = 'executing' THEN now() END,
           CASE WHEN $5::text = 'executing' THEN
                     now() + least(timeout_ms * interval '1 ms' + $12::interval, $13::interval) END
      FROM chosen WHERE $5::text = 'queued' OR slot IS NOT NULL
    ON CONFLICT (environment_id, slot) WHERE slot IS NOT NULL DO NOTHING
    RETURNING id
)
SELECT id, name, active_version, source_hash, timeout_ms, memory_mb, array_to_json(allowed_hosts), secrets,
       slot IS NOT NULL, EXISTS (SELECT 1 FROM made),
       CASE WHEN {is_asynchronous}::boolean THEN set_config('synchronous_commit', 'off', true) END, {mark}::text
  FROM chosen

-- name: is_invocable
-- Whether the function `f` may be called by `invoker`, the value $3.
(f.invoke IN ('public', $3::text) OR (f.invoke IS NULL AND $3::text <> 'anonymous'))

-- name: has_network_share
-- Of an anonymous caller: $20 the slots of anonymous callers.
AND (SELECT count(*) FILTER (WHERE r.network = $16::bigint) = 0 OR 2 * count(*) < $20::int
       FROM platform.functions_run r
      WHERE r.environment_id = f.environment_id AND r.slot BETWEEN 1 AND (SELECT $20::int))

-- name: find
-- $1 run. Returns the columns of `start`.
SELECT f.id, f.name, r.version, v.source_hash, f.timeout_ms, f.memory_mb, array_to_json(f.allowed_hosts),
       (SELECT jsonb_object_agg(s.name, encode(s.sealed_value, 'hex'))
          FROM platform.functions_secret s WHERE s.function_id = f.id AND s.sealed_value IS NOT NULL),
       true, true, NULL
  FROM platform.functions_run r
  JOIN platform.functions_function f ON f.id = r.function_id
  JOIN platform.functions_version v ON v.function_id = f.id AND v.number = r.version
 WHERE r.id = $1::text

-- name: timeout
SELECT f.timeout_ms FROM platform.functions_function f
 WHERE f.environment_id = $1::text AND f.name = $2::text AND {is_invocable}

-- name: source
SELECT source FROM platform.functions_version WHERE function_id = $1::text AND number = $2::int
