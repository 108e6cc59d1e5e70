-- name: insert_pending
INSERT INTO platform.functions_pendingevent (environment_id, function_id, event_id, sequence)
SELECT environment_id, function_id, event_id, sequence
  FROM unnest(%s::text[], %s::text[], %s::text[], %s::bigint[]) AS pending(environment_id, function_id, event_id, sequence)
    ON CONFLICT DO NOTHING

-- name: reached
-- A skip scan from one environment to the next, so that no backlog is scanned.
RECURSIVE reached AS (
    (SELECT environment_id FROM platform.functions_pendingevent ORDER BY environment_id LIMIT 1)
    UNION ALL
    SELECT (SELECT h.environment_id FROM platform.functions_pendingevent h
             WHERE h.environment_id > reached.environment_id ORDER BY h.environment_id LIMIT 1)
      FROM reached WHERE reached.environment_id IS NOT NULL
)
