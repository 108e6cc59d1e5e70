-- name: add_endpoints
INSERT INTO platform_site_endpointmetric AS f
       (at, method, route, requests, client_errors, server_errors, rate_limited, buckets)
SELECT date_bin('5 minutes', now(), 'epoch'), r.method, r.route, r.requests, r.client_errors, r.server_errors,
       r.rate_limited, r.buckets
  FROM jsonb_to_recordset(%(rows)s::jsonb) AS r (method text, route text, requests bigint, client_errors bigint,
       server_errors bigint, rate_limited bigint, buckets bigint[])
 ORDER BY r.method, r.route
    ON CONFLICT (at, method, route) DO UPDATE
   SET requests = f.requests + excluded.requests,
       client_errors = f.client_errors + excluded.client_errors,
       server_errors = f.server_errors + excluded.server_errors,
       rate_limited = f.rate_limited + excluded.rate_limited,
       buckets = ARRAY(SELECT coalesce(pair.old, 0) + coalesce(pair.new, 0)
                         FROM unnest(f.buckets, excluded.buckets) WITH ORDINALITY AS pair (old, new, place)
                        ORDER BY pair.place)

-- name: add_callers
INSERT INTO platform_site_ratelimitedcaller AS c (at, caller_id, requests)
SELECT date_bin('5 minutes', now(), 'epoch'), r.caller_id, r.requests
  FROM jsonb_to_recordset(%(rows)s::jsonb) AS r (caller_id text, requests bigint)
 ORDER BY r.caller_id
    ON CONFLICT (at, caller_id) DO UPDATE SET requests = c.requests + excluded.requests
