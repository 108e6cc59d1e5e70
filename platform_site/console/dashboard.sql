-- name: by_hour
SELECT date_trunc('hour', at) AS hour, sum(requests)::bigint AS requests, sum(client_errors)::bigint AS client_errors,
       sum(server_errors)::bigint AS server_errors, sum(rate_limited)::bigint AS rate_limited
  FROM platform_site_endpointmetric
 WHERE at >= %s AND route LIKE '/v1%%'
 GROUP BY 1

-- name: by_endpoint
SELECT method, route, sum(requests)::bigint AS requests, sum(client_errors + server_errors)::bigint AS errors,
       sum(server_errors)::bigint AS server_errors, ARRAY[{buckets}] AS buckets
  FROM platform_site_endpointmetric
 WHERE at >= %s AND route LIKE '/v1%%'
 GROUP BY method, route
 ORDER BY requests DESC

-- name: by_region_and_hour
SELECT region, date_trunc('hour', at) AS hour, sum(attempts)::bigint AS attempts,
       sum(attempts_succeeded)::bigint AS attempts_succeeded, sum(runs_succeeded)::bigint AS runs_succeeded,
       sum(runs_failed)::bigint AS runs_failed, sum(runs_timed_out)::bigint AS runs_timed_out
  FROM platform_site_regionmetric
 WHERE at >= %s
 GROUP BY 1, 2

-- name: slowest
SELECT function_id, max(environment_id) AS environment_id, max(name) AS name, max(region) AS region,
       sum(runs)::bigint AS runs, sum(failed)::bigint AS failed,
       (sum(total_ms) / greatest(sum(runs), 1))::bigint AS mean, max(longest_ms) AS longest
  FROM platform_site_functionmetric
 WHERE at >= %s
 GROUP BY function_id
 ORDER BY mean DESC
 LIMIT %s
