-- name: insert_pending
INSERT INTO platform.functions_pendingevent (environment_id, function_id, event_id, sequence)
SELECT environment_id, function_id, event_id, sequence
  FROM unnest(%s::text[], %s::text[], %s::text[], %s::bigint[]) AS pending(environment_id, function_id, event_id, sequence)
    ON CONFLICT DO NOTHING
