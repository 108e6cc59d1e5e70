-- name: queues
WITH {waiting}
SELECT now() AS now,
       (SELECT count(*)
          FROM (SELECT 1 FROM platform.webhooks_webhook w,
                       LATERAL (SELECT 1 FROM platform.webhooks_delivery d
                                 WHERE d.webhook_id = w.id AND d.status = 'pending' AND d.next_attempt_at <= now()
                                 ORDER BY d.next_attempt_at LIMIT %(most)s) AS each
                 WHERE w.enabled AND w.deleted_at IS NULL
                   AND w.environment_id <> ALL (%(suspended)s::text[]) LIMIT %(most)s) AS each) AS due,
       now() - (SELECT min(first.next_attempt_at)
          FROM platform.webhooks_webhook w,
               LATERAL (SELECT d.next_attempt_at FROM platform.webhooks_delivery d
                         WHERE d.webhook_id = w.id AND d.status = 'pending'
                         ORDER BY d.next_attempt_at LIMIT 1) AS first
         -- Without failing receivers: their deliveries wait for the next attempt, not for a worker.
         WHERE w.enabled AND w.deleted_at IS NULL AND w.drop_before IS NULL AND w.failing_since IS NULL
           AND first.next_attempt_at <= now()
           AND w.environment_id <> ALL (%(suspended)s::text[])) AS due_age,
       -- Deliveries of a disabled webhook are held, also those not yet marked as such (webhooks.delivery.reconciler).
       (SELECT count(*)
          FROM ((SELECT 1 FROM platform.webhooks_delivery WHERE status = 'held' LIMIT %(most)s)
                 UNION ALL
                (SELECT 1 FROM platform.webhooks_webhook w,
                        LATERAL (SELECT 1 FROM platform.webhooks_delivery d
                                  WHERE d.webhook_id = w.id AND d.status = 'pending'
                                  ORDER BY d.next_attempt_at LIMIT %(most)s) AS each
                  WHERE NOT w.enabled AND w.deleted_at IS NULL LIMIT %(most)s)
                 LIMIT %(most)s) AS each) AS held,
       (SELECT count(*) FROM (SELECT 1 FROM platform.rows_outboxevent
                               WHERE relayed_at IS NULL LIMIT %(most)s) AS each) AS unrelayed,
       now() - (SELECT created_at FROM platform.rows_outboxevent WHERE relayed_at IS NULL ORDER BY sequence LIMIT 1)
           AS unrelayed_age,
       (SELECT count(*)
          FROM (SELECT 1 FROM waiting,
                       LATERAL (SELECT 1 FROM platform.functions_run r
                                 WHERE r.phase = 'queued' AND r.environment_id = waiting.environment_id
                                 LIMIT %(most)s) AS each
                 LIMIT %(most)s) AS each) AS queued,
       -- The next runs of both queues: of anonymous callers and events, and of all others (`functions.runs.queue`).
       now() - (SELECT min(next.created_at)
          FROM waiting CROSS JOIN (VALUES (true), (false)) AS queues (is_of_anonymous),
               LATERAL (SELECT r.created_at FROM platform.functions_run r
                         WHERE r.phase = 'queued' AND r.environment_id = waiting.environment_id
                           AND (r.caller_kind = 'anonymous' OR r.trigger = 'event') = queues.is_of_anonymous
                         ORDER BY coalesce(r.turn_at, r.created_at) LIMIT 1) AS next) AS queued_age,
       (SELECT count(*) FROM (SELECT 1 FROM platform.functions_run
                               WHERE phase = 'executing' LIMIT %(most)s) AS each) AS executing

-- name: attempts
SELECT date_bin('5 minutes', at, 'epoch') AS at, count(*) AS attempts,
       count(*) FILTER (WHERE error IS NULL AND response_status BETWEEN 200 AND 299) AS attempts_succeeded
  FROM platform.webhooks_attempt
 WHERE at >= %(since)s AND at < %(until)s
 GROUP BY 1

-- name: runs
SELECT every.*, f.environment_id, f.name  -- null: of a deleted function, which still has runs
  FROM (SELECT date_bin('5 minutes', r.ended_at, 'epoch') AS at, r.function_id, count(*) AS runs,
               count(*) FILTER (WHERE r.status = 'failed') AS failed,
               count(*) FILTER (WHERE r.status = 'failed' AND r.error ->> 'reason' = 'timeout') AS timed_out,
               sum(coalesce(r.duration_ms, 0))::bigint AS total_ms, max(coalesce(r.duration_ms, 0)) AS longest_ms
          FROM platform.functions_run r
         WHERE r.ended_at >= %(since)s AND r.ended_at < %(until)s
         GROUP BY 1, 2) AS every
       LEFT JOIN platform.functions_function f ON f.id = every.function_id
