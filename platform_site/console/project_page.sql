-- name: tables
SELECT n.nspname AS environment_id, c.relname AS name,
       greatest(c.reltuples::bigint, pg_stat_get_live_tuples(c.oid), 0) AS rows, pg_total_relation_size(c.oid) AS bytes
  FROM pg_namespace n JOIN pg_class c ON c.relnamespace = n.oid
 WHERE n.nspname = ANY (%s) AND c.relkind = 'r'
 ORDER BY bytes DESC LIMIT %s

-- name: versions
SELECT e.id AS environment_id, v.version, v.applied_at, coalesce(nullif(v.author_id, ''), v.author_kind) AS author,
       v.reverts_to
  FROM unnest(%s::text[]) AS e (id),
       LATERAL (SELECT * FROM platform.rows_schemaversion s WHERE s.environment_id = e.id
                 ORDER BY s.version DESC LIMIT 5) AS v
 ORDER BY v.applied_at DESC LIMIT %s

-- name: webhooks
SELECT environment_id, count(*) AS webhooks, count(*) FILTER (WHERE NOT enabled) AS disabled,
       count(*) FILTER (WHERE failing_since IS NOT NULL) AS failing
  FROM platform.webhooks_webhook WHERE environment_id = ANY (%s) AND deleted_at IS NULL GROUP BY 1

-- name: functions
SELECT environment_id, count(*) AS functions
  FROM platform.functions_function WHERE environment_id = ANY (%s) GROUP BY 1
