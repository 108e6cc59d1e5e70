-- name: by_hour
SELECT date_trunc('hour', at), sum(requests)::bigint, sum(client_errors)::bigint, sum(server_errors)::bigint,
       sum(rate_limited)::bigint
  FROM platform_site_endpointmetric
 WHERE at >= %s AND route LIKE '/v1%%'
 GROUP BY 1

-- name: by_endpoint
SELECT method, route, sum(requests)::bigint, sum(client_errors)::bigint, sum(server_errors)::bigint, {buckets}
  FROM platform_site_endpointmetric
 WHERE at >= %s AND route LIKE '/v1%%'
 GROUP BY method, route
 ORDER BY 3 DESC

-- name: by_region_and_hour
SELECT region, date_trunc('hour', at), sum(attempts)::bigint, sum(attempts_succeeded)::bigint,
       sum(runs_succeeded)::bigint, sum(runs_failed)::bigint, sum(runs_timed_out)::bigint
  FROM platform_site_regionmetric
 WHERE at >= %s
 GROUP BY 1, 2

-- name: slowest
SELECT function_id, max(environment_id), max(name), max(region), sum(runs)::bigint, sum(failed)::bigint,
       (sum(total_ms) / greatest(sum(runs), 1))::bigint, max(longest_ms)
  FROM platform_site_functionmetric
 WHERE at >= %s
 GROUP BY function_id
 ORDER BY 7 DESC
 LIMIT %s
