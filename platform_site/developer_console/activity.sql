-- Counts of an hour stop at %(most)s, and failures of the day at four times that, of all functions or webhooks together.
-- They read an index alone, so the page costs the same in a busy environment.
-- name: hours
SELECT generate_series(date_trunc('hour', now()) - interval '23 hours', now(), '1 hour') AS hour

-- name: requests
SELECT h.hour, every.n AS count, wrong.n AS failed, speed.p95
  FROM ({hours}) AS h,
       LATERAL (SELECT count(*) AS n
                  FROM (SELECT 1 FROM request_log_entry
                         WHERE environment_id = %(environment)s AND at >= h.hour AND at < h.hour + interval '1 hour'
                         LIMIT %(most)s) AS each) AS every,
       LATERAL (SELECT count(*) AS n
                  FROM (SELECT 1 FROM request_log_entry
                         WHERE environment_id = %(environment)s AND status >= 400
                           AND at >= h.hour AND at < h.hour + interval '1 hour'
                         LIMIT %(most)s) AS each) AS wrong,
       LATERAL (SELECT percentile_cont(0.95) WITHIN GROUP (ORDER BY each.duration_ms) AS p95
                  FROM (SELECT duration_ms FROM request_log_entry
                         WHERE environment_id = %(environment)s AND at >= h.hour AND at < h.hour + interval '1 hour'
                         ORDER BY at DESC, id DESC LIMIT 200) AS each) AS speed
 ORDER BY h.hour

-- name: runs
WITH own AS (SELECT id FROM platform.functions_function WHERE environment_id = %(environment)s),
     wrong AS (SELECT date_trunc('hour', each.created_at) AS hour, count(*) AS n
                 FROM (SELECT r.created_at
                         FROM own CROSS JOIN (VALUES ('call'), ('schedule'), ('inbound'), ('event')) AS how (trigger),
                              LATERAL (SELECT created_at FROM platform.functions_run
                                        WHERE function_id = own.id AND trigger = how.trigger AND status = 'failed'
                                          AND created_at >= date_trunc('hour', now()) - interval '23 hours'
                                        ORDER BY created_at DESC LIMIT %(most)s) AS r
                        LIMIT 4 * %(most)s) AS each
                GROUP BY 1)
SELECT h.hour, every.n AS count, least(coalesce(wrong.n, 0), every.n) AS failed
  FROM ({hours}) AS h LEFT JOIN wrong ON wrong.hour = h.hour
       CROSS JOIN LATERAL (SELECT count(*) AS n
                             FROM (SELECT 1
                                     FROM own, LATERAL (SELECT 1 FROM platform.functions_run
                                                         WHERE function_id = own.id AND created_at >= h.hour
                                                           AND created_at < h.hour + interval '1 hour'
                                                         LIMIT %(most)s) AS of_one
                                    LIMIT %(most)s) AS each) AS every
 ORDER BY h.hour

-- name: deliveries
WITH own AS (SELECT id FROM platform.webhooks_webhook
              WHERE environment_id = %(environment)s AND deleted_at IS NULL),
     wrong AS (SELECT date_trunc('hour', each.created_at) AS hour, count(*) AS n
                 FROM (SELECT d.created_at
                         FROM own, LATERAL (SELECT created_at FROM platform.webhooks_delivery
                                             WHERE webhook_id = own.id AND status IN ('exhausted', 'dropped')
                                               AND created_at >= date_trunc('hour', now()) - interval '23 hours'
                                             ORDER BY created_at DESC LIMIT %(most)s) AS d
                        LIMIT 4 * %(most)s) AS each
                GROUP BY 1)
SELECT h.hour, every.n + coalesce(wrong.n, 0) AS count, coalesce(wrong.n, 0) AS failed
  FROM ({hours}) AS h LEFT JOIN wrong ON wrong.hour = h.hour
       CROSS JOIN LATERAL (SELECT count(*) AS n
                             FROM (SELECT 1
                                     FROM own, LATERAL (SELECT 1 FROM platform.webhooks_delivery
                                                         WHERE webhook_id = own.id AND status = 'delivered'
                                                           AND created_at >= h.hour
                                                           AND created_at < h.hour + interval '1 hour'
                                                         LIMIT %(most)s) AS of_one
                                    LIMIT %(most)s) AS each) AS every
 ORDER BY h.hour
