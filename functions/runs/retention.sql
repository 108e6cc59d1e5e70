-- name: purge
-- An array, not `IN (SELECT … LIMIT …)`: a nested loop would execute that for each row and delete more than the limit.
DELETE FROM platform.functions_run
 WHERE id = ANY (ARRAY (SELECT id FROM platform.functions_run
                     WHERE id < %(oldest)s AND phase = 'ended' AND ended_at < now() - %(age)s
                     ORDER BY id LIMIT %(batch)s FOR UPDATE SKIP LOCKED))

-- name: purge_anonymous
DELETE FROM platform.functions_run
 WHERE id = ANY (ARRAY (SELECT id FROM platform.functions_run
                     WHERE caller_kind = 'anonymous' AND environment_id = %(environment_id)s AND id <= %(newest)s
                       AND phase = 'ended'
                     ORDER BY id LIMIT %(batch)s FOR UPDATE SKIP LOCKED))

-- name: over_limit
-- Reads the index `run_of_anonymous`. BETWEEN on the environment makes the planner use it: no other has that order.
WITH RECURSIVE {of_anonymous}
SELECT reached.environment_id, beyond.id
  FROM reached CROSS JOIN LATERAL (
       SELECT r.id FROM platform.functions_run r
        WHERE r.caller_kind = 'anonymous'
          AND r.environment_id BETWEEN reached.environment_id AND reached.environment_id
        ORDER BY r.environment_id DESC, r.id DESC OFFSET %s LIMIT 1) beyond

-- name: weighed
-- Reads the index `run_size_sample`, which has one entry per SAMPLE_UNIT of history.
WITH RECURSIVE {in_sample}
SELECT environment_id, sums.functions, sums.weights
  FROM reached CROSS JOIN LATERAL (
       SELECT array_agg(function_id) AS functions, array_agg(weight) AS weights
         FROM (SELECT function_id, sum(weight)::bigint AS weight FROM platform.functions_run r
                WHERE r.weight IS NOT NULL
                  AND r.environment_id BETWEEN reached.environment_id AND reached.environment_id
                GROUP BY r.environment_id, r.function_id) each) sums
 WHERE (SELECT sum(weight) FROM unnest(sums.weights) weight) > %s

-- name: beyond
SELECT created_at
  FROM (SELECT id, created_at, sum(weight) OVER (ORDER BY id DESC) AS newer FROM platform.functions_run
         WHERE weight IS NOT NULL AND environment_id = %s AND function_id = %s) weighed
 WHERE newer > %s ORDER BY id DESC LIMIT 1

-- name: shorten
DELETE FROM platform.functions_run
 WHERE id = ANY (ARRAY (SELECT id FROM platform.functions_run
                     WHERE function_id = %(function_id)s AND created_at <= %(until)s AND phase = 'ended'
                     ORDER BY created_at, id LIMIT %(batch)s FOR UPDATE SKIP LOCKED))
