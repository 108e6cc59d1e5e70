-- name: webhooks_to_reconcile
WITH RECURSIVE {holding},
{waiting}
SELECT w.id FROM holding JOIN platform.webhooks_webhook w ON w.id = holding.webhook_id
 WHERE w.enabled AND w.deleted_at IS NULL
 UNION
SELECT w.id FROM waiting JOIN platform.webhooks_webhook w ON w.id = waiting.webhook_id
 WHERE NOT w.enabled AND w.deleted_at IS NULL
 UNION
SELECT w.id FROM platform.webhooks_webhook w
 WHERE (w.drop_before IS NOT NULL OR w.recover_from IS NOT NULL) AND w.deleted_at IS NULL

-- name: state
-- The lock conflicts only with changes of the webhook itself.
SELECT enabled, drop_before, recover_from, recover_until FROM platform.webhooks_webhook
 WHERE id = %(webhook)s AND deleted_at IS NULL FOR KEY SHARE SKIP LOCKED

-- name: hold
-- All of these find deliveries by the partial index that has the order, and update them by id only: without
-- statistics the planner would use the index of a webhook's whole history.
WITH found AS (
    SELECT d.id FROM platform.webhooks_delivery d
     WHERE d.webhook_id = %(webhook)s AND d.status = 'pending' AND {unclaimed}
     ORDER BY d.next_attempt_at LIMIT %(batch)s FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE platform.webhooks_delivery d
   SET status = 'held', outcome = 'the webhook is disabled', claimed_until = NULL
 WHERE d.id = ANY (ARRAY (SELECT id FROM found))

-- name: positions
-- Due now, but each a little later than the previous event, because claims are ordered by that time. The offsets are
-- looked up in a JSON object: the planner would choose a bad join for a thousand rows.
SELECT jsonb_object_agg(id, later) AS of_each
  FROM (SELECT id, row_number() OVER (ORDER BY sequence DESC) AS later FROM to_be_sent) AS numbered

-- name: again
status = 'pending', claimed_until = NULL, schedule_from = d.attempts,
next_attempt_at = now() - ((SELECT of_each FROM places) ->> d.id)::int * interval '1 microsecond'

-- name: release
WITH locked AS (
    SELECT d.id, d.sequence, d.attempts FROM platform.webhooks_delivery d
     WHERE d.webhook_id = %(webhook)s AND d.status = 'held'
     ORDER BY d.sequence LIMIT %(batch)s FOR NO KEY UPDATE SKIP LOCKED
), to_be_sent AS (
    SELECT id, sequence FROM locked WHERE attempts < %(most)s::int
), places AS ({positions}
), released AS (
    UPDATE platform.webhooks_delivery d SET {again} WHERE d.id = ANY (ARRAY (SELECT id FROM to_be_sent))
), exhausted AS (
    UPDATE platform.webhooks_delivery d
       SET status = 'exhausted', outcome = 'attempted ' || %(most)s::int || ' times or more'
     WHERE d.id = ANY (ARRAY (SELECT id FROM locked WHERE attempts >= %(most)s::int))
)
SELECT count(*) FROM locked

-- name: to_be_dropped
(SELECT d.id FROM platform.webhooks_delivery d
  WHERE d.webhook_id = %(webhook)s AND d.status = 'held' AND d.created_at < %(drop_before)s
  ORDER BY d.sequence LIMIT %(batch)s)
 UNION ALL
(SELECT d.id FROM platform.webhooks_delivery d
  WHERE d.webhook_id = %(webhook)s AND d.status = 'pending' AND {unclaimed} AND d.created_at < %(drop_before)s
  ORDER BY d.next_attempt_at LIMIT %(batch)s)

-- name: drop
WITH found AS ({to_be_dropped} LIMIT %(batch)s), locked AS (
    SELECT d.id FROM platform.webhooks_delivery d
     WHERE d.id = ANY (ARRAY (SELECT id FROM found)) AND coalesce(d.status, '') IN ('held', 'pending') AND {unclaimed}
       FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE platform.webhooks_delivery d SET status = 'dropped', outcome = 'dropped on request', claimed_until = NULL
 WHERE d.id = ANY (ARRAY (SELECT id FROM locked))

-- name: end_dropping
-- Deliveries that another process is dropping count as present, because that process may fail.
UPDATE platform.webhooks_webhook SET drop_before = NULL
 WHERE id = %(webhook)s AND NOT EXISTS ({to_be_dropped})

-- name: recover
WITH examined AS (
    SELECT d.id, d.created_at, d.attempts < %(most)s::int AND d.body <> '' AS may_be_sent
      FROM platform.webhooks_delivery d
     WHERE d.webhook_id = %(webhook)s AND d.status IN ('exhausted', 'dropped')
       AND d.created_at >= %(recover_from)s AND d.created_at < %(recover_until)s
       AND coalesce(d.last_attempt_at, '-infinity') < %(recover_until)s
     ORDER BY d.created_at FETCH FIRST (%(batch)s) ROWS WITH TIES
), to_be_sent AS (
    SELECT d.id, d.sequence FROM platform.webhooks_delivery d
     WHERE d.id = ANY (ARRAY (SELECT id FROM examined WHERE may_be_sent))
       AND coalesce(d.status, '') IN ('exhausted', 'dropped')
     ORDER BY d.id FOR NO KEY UPDATE
), places AS ({positions}
), recovered AS (
    UPDATE platform.webhooks_delivery d SET {again} WHERE d.id = ANY (ARRAY (SELECT id FROM to_be_sent))
)
SELECT (SELECT count(*) FROM examined), (SELECT max(created_at) FROM examined), (SELECT count(*) FROM to_be_sent)

-- name: advance_recovery
UPDATE platform.webhooks_webhook SET recover_from = %(reached)s + interval '1 microsecond' WHERE id = %(webhook)s

-- name: end_recovering
UPDATE platform.webhooks_webhook SET recover_from = NULL, recover_until = NULL WHERE id = %(webhook)s
