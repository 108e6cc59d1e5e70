-- name: expire
-- The waiting time starts when a delivery was last due, since a redelivery is older. Held deliveries of an enabled
-- webhook are about to be released, however old.
WITH RECURSIVE {holding}, expired AS (
    SELECT of_one.id
      FROM holding JOIN platform.webhooks_webhook w ON w.id = holding.webhook_id, LATERAL (
           SELECT d.id FROM platform.webhooks_delivery d
            WHERE d.webhook_id = w.id AND d.status = 'held'
              AND greatest(d.created_at, d.next_attempt_at) < now() - %(age)s
            ORDER BY greatest(d.created_at, d.next_attempt_at) LIMIT %(batch)s) AS of_one
     WHERE NOT w.enabled AND w.deleted_at IS NULL AND w.environment_id <> ALL (%(spared)s::text[])
     LIMIT %(batch)s
), locked AS (
    SELECT d.id FROM platform.webhooks_delivery d
     WHERE d.id = ANY (ARRAY (SELECT id FROM expired)) AND coalesce(d.status, '') = 'held'
       FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE platform.webhooks_delivery d SET status = 'dropped', outcome = 'held longer than 7 days'
 WHERE d.id = ANY (ARRAY (SELECT id FROM locked))

-- name: is_over
d.status NOT IN ('pending', 'held') AND greatest(d.created_at, d.last_attempt_at) < now() - %(age)s

-- name: purge_deliveries
-- Deletes the expired deliveries among a page of the oldest ones; the others may stay for months, and each run reads
-- them once. The page has no upper bound: without statistics the planner expects few rows between two ids, and would
-- read all.
WITH page AS (
    SELECT d.id, d.id < %(oldest)s AND {is_over} AS is_over FROM platform.webhooks_delivery d
     WHERE d.id > %(after)s ORDER BY d.id LIMIT %(batch)s
), old AS (
    SELECT d.id FROM platform.webhooks_delivery d
     WHERE d.id = ANY (ARRAY (SELECT id FROM page WHERE is_over)) AND {is_over} FOR UPDATE SKIP LOCKED
), tries AS (
    DELETE FROM platform.webhooks_attempt WHERE delivery_id = ANY (ARRAY (SELECT id FROM old))
), gone AS (
    DELETE FROM platform.webhooks_delivery WHERE id = ANY (ARRAY (SELECT id FROM old)) RETURNING 1
)
SELECT (SELECT max(id) FROM page), (SELECT count(*) = %(batch)s AND max(id) < %(oldest)s FROM page),
       (SELECT count(*) FROM gone)

-- name: purge_events
-- An array, not `IN (SELECT … LIMIT …)`: a nested loop would run that for each row, and delete more than the limit.
DELETE FROM platform.rows_outboxevent
 WHERE sequence = ANY (ARRAY (SELECT sequence FROM platform.rows_outboxevent WHERE relayed_at < now() - %(age)s
                           ORDER BY relayed_at LIMIT %(batch)s FOR UPDATE SKIP LOCKED))

-- name: empty_deleted
WITH found AS (
    SELECT of_one.id
      FROM platform.webhooks_webhook w, LATERAL (
           SELECT d.id FROM platform.webhooks_delivery d WHERE d.webhook_id = w.id AND {unclaimed}
            ORDER BY d.created_at DESC, d.id DESC LIMIT %(batch)s) AS of_one
     WHERE w.deleted_at < now() - interval '1 minute' LIMIT %(batch)s
), orphans AS (
    SELECT d.id FROM platform.webhooks_delivery d
     WHERE d.id = ANY (ARRAY (SELECT id FROM found)) AND {unclaimed} FOR UPDATE SKIP LOCKED
), tries AS (
    DELETE FROM platform.webhooks_attempt WHERE delivery_id = ANY (ARRAY (SELECT id FROM orphans))
)
DELETE FROM platform.webhooks_delivery WHERE id = ANY (ARRAY (SELECT id FROM orphans))

-- name: remove_deleted
DELETE FROM platform.webhooks_webhook w
 WHERE w.deleted_at < now() - interval '1 minute'
   AND NOT EXISTS (SELECT 1 FROM platform.webhooks_delivery d WHERE d.webhook_id = w.id)
