-- name: due
SELECT first.id, first.event_type, w.host, first.attempts, first.next_attempt_at, w.environment_id
  FROM platform.webhooks_webhook w,
       LATERAL (SELECT d.id, d.event_type, d.attempts, d.next_attempt_at FROM platform.webhooks_delivery d
                 WHERE d.webhook_id = w.id AND d.status = 'pending'
                 ORDER BY d.next_attempt_at LIMIT 5) AS first
 WHERE w.enabled AND w.deleted_at IS NULL AND w.drop_before IS NULL AND first.next_attempt_at <= now()
   AND w.environment_id <> ALL (%(suspended)s::text[])
 ORDER BY first.next_attempt_at LIMIT %(most)s

-- name: unrelayed
SELECT event_id, type, environment_id, created_at FROM platform.rows_outboxevent
 WHERE relayed_at IS NULL ORDER BY sequence LIMIT %(most)s

-- name: runs
SELECT r.id, f.name, r.phase, r.environment_id, r.created_at
  FROM (SELECT * FROM platform.functions_run WHERE phase = 'queued' AND environment_id <> ALL (%(suspended)s::text[])
         UNION ALL SELECT * FROM platform.functions_run WHERE phase = 'executing') AS r  -- an index for each of the two
  JOIN platform.functions_function f ON f.id = r.function_id
 ORDER BY r.created_at LIMIT %(most)s

-- name: pending_events
WITH RECURSIVE {reached}
SELECT reached.environment_id, few.count, first.event_id
  FROM reached
 CROSS JOIN LATERAL (
       SELECT count(*) FROM (SELECT FROM platform.functions_pendingevent h
                              WHERE h.environment_id = reached.environment_id LIMIT 1001) each) few
 CROSS JOIN LATERAL (
       SELECT h.event_id FROM platform.functions_pendingevent h
        WHERE h.environment_id = reached.environment_id ORDER BY h.sequence LIMIT 1) first
 WHERE reached.environment_id <> ALL (%(suspended)s::text[])
 ORDER BY few.count DESC, reached.environment_id LIMIT %(most)s

-- name: held
SELECT w.id, w.host, w.disabled_reason, w.environment_id,
       (SELECT count(*)
          FROM ((SELECT 1 FROM platform.webhooks_delivery d
                  WHERE d.webhook_id = w.id AND d.status = 'held' LIMIT 1001)
                 UNION ALL  -- pending ones will be marked as held
                (SELECT 1 FROM platform.webhooks_delivery d
                  WHERE d.webhook_id = w.id AND d.status = 'pending' ORDER BY d.next_attempt_at LIMIT 1001)
                 LIMIT 1001) AS few)
  FROM platform.webhooks_webhook w
 WHERE NOT w.enabled AND w.deleted_at IS NULL
   AND (EXISTS (SELECT 1 FROM platform.webhooks_delivery d WHERE d.webhook_id = w.id AND d.status = 'held')
        OR EXISTS (SELECT 1 FROM platform.webhooks_delivery d WHERE d.webhook_id = w.id AND d.status = 'pending'))
 ORDER BY w.id DESC LIMIT %(most)s
