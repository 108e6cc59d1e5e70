-- `claim` is one statement, so that all of its parts see the same moment. The parts come before it.

-- name: may_be_sent_to
w.enabled AND w.deleted_at IS NULL AND w.drop_before IS NULL
AND w.environment_id <> ALL (%(suspended)s::text[])

-- name: receiver
-- For `webhooks.delivery.circuit_breaker`.
w.environment_id || ' ' || w.host

-- name: open_webhooks
-- Webhooks with due deliveries that may be sent, and the free concurrency of their receivers.
SELECT w.id, w.environment_id, {receiver} AS receiver, w.ordering, waiting.next_attempt_at AS first,
       coalesce(known.free_slots, %(default_slots)s) AS free_slots
  FROM waiting JOIN platform.webhooks_webhook w ON w.id = waiting.webhook_id
  LEFT JOIN unnest(%(receivers)s::text[], %(free_slots)s::int[]) AS known (receiver, free_slots)
       ON known.receiver = {receiver}
 WHERE waiting.next_attempt_at <= now() AND {may_be_sent_to}
   AND CASE WHEN %(only)s::text IS NULL THEN w.listens_until IS NULL ELSE w.id = %(only)s::text END
   AND coalesce(known.free_slots, %(default_slots)s) > 0

-- name: next_in_any_order
-- The longest due deliveries of webhooks without ordering. The scan starts at the first pending one: before it are
-- index entries of settled deliveries that vacuum has not removed yet.
SELECT next.*, open_webhooks.id AS webhook_id, open_webhooks.environment_id, open_webhooks.receiver,
       open_webhooks.free_slots
  FROM open_webhooks, LATERAL (
       SELECT d.id, d.next_attempt_at, d.sequence, octet_length(d.body) AS size FROM platform.webhooks_delivery d
        WHERE d.webhook_id = open_webhooks.id AND open_webhooks.ordering = 'none'
          AND d.status = 'pending' AND d.next_attempt_at BETWEEN open_webhooks.first AND now() AND {unclaimed}
        ORDER BY d.next_attempt_at LIMIT open_webhooks.free_slots) AS next

-- name: first_unrelayed
(SELECT sequence FROM platform.rows_outboxevent WHERE relayed_at IS NULL ORDER BY sequence LIMIT 1)

-- name: next_of_rows
-- For webhooks with ordering by row: the first pending event of each row that has a due delivery. That event itself
-- may not be due yet: a retry is due later than the deliveries that wait behind it.
SELECT next.*, open_webhooks.id AS webhook_id, open_webhooks.environment_id, open_webhooks.receiver,
       open_webhooks.free_slots
  FROM open_webhooks, LATERAL (
       SELECT d.id, d.next_attempt_at, d.sequence, octet_length(d.body) AS size
         FROM (SELECT subject, CASE WHEN subject IS NULL THEN id END AS alone, min(next_attempt_at) AS since
                 FROM (SELECT d.subject, d.id, d.next_attempt_at FROM platform.webhooks_delivery d
                        WHERE d.webhook_id = open_webhooks.id AND open_webhooks.ordering = 'row'
                          AND d.status = 'pending' AND d.next_attempt_at BETWEEN open_webhooks.first AND now()
                        ORDER BY d.next_attempt_at LIMIT %(window)s) AS due
                GROUP BY 1, 2 ORDER BY since) AS due_rows,
              LATERAL (
              (SELECT first.* FROM platform.webhooks_delivery first
                WHERE first.webhook_id = open_webhooks.id AND first.subject = due_rows.subject
                  AND first.status IN ('pending', 'held') ORDER BY first.sequence LIMIT 1)
               UNION ALL
              SELECT one.* FROM platform.webhooks_delivery one WHERE one.id = due_rows.alone) AS d
        WHERE d.status = 'pending' AND d.next_attempt_at <= now() AND {unclaimed}
          -- Relays work in the order of the sequence, so an earlier event of any row is rarely unrelayed. Only then
          -- the events of this row are read, which may be a hundred thousand.
          AND (d.sequence < coalesce({first_unrelayed}, d.sequence + 1) OR NOT EXISTS (
              SELECT 1 FROM platform.rows_outboxevent unrelayed
               WHERE unrelayed.relayed_at IS NULL AND unrelayed.sequence < d.sequence
                 AND unrelayed.environment_id = d.environment_id AND unrelayed.subject = d.subject))
        ORDER BY due_rows.since LIMIT open_webhooks.free_slots) AS next

-- name: chosen
-- As many as were asked for and fit into memory: first one of each environment, then a second of each, and so on; those
-- of an environment in turn by receiver. So a tenant with many receivers that hang delays no other tenant for long.
SELECT id, webhook_id FROM (
       SELECT id, webhook_id, turn, next_attempt_at, size,
              sum(size) OVER (ORDER BY turn, next_attempt_at, id ROWS UNBOUNDED PRECEDING) AS size_so_far
         FROM (SELECT *, row_number() OVER (PARTITION BY environment_id ORDER BY place, next_attempt_at, id) AS turn
                 FROM (SELECT *, row_number() OVER (PARTITION BY receiver ORDER BY next_attempt_at, sequence) AS place
                         FROM next_of_webhooks) AS of_receivers
                WHERE place <= free_slots) AS of_environments) AS in_turn
 WHERE size_so_far - size < %(bytes)s ORDER BY turn, next_attempt_at LIMIT %(limit)s

-- name: state
-- The current state of their webhooks. Webhooks that are being changed are skipped; later changes wait for this
-- claim.
SELECT w.id, {receiver} AS receiver, w.url, w.sealed_secret,
       w.sealed_previous_secret, w.previous_secret_until
  FROM platform.webhooks_webhook w
 WHERE w.id = ANY (ARRAY (SELECT webhook_id FROM chosen)) AND {may_be_sent_to}
   FOR KEY SHARE OF w SKIP LOCKED

-- name: locked
-- Those of them that no other worker has locked. Written so that no partial index of pending deliveries fits: without
-- statistics the planner would use one and read the whole backlog.
SELECT d.id FROM platform.webhooks_delivery d
 WHERE d.id = ANY (ARRAY (SELECT chosen.id FROM chosen JOIN sendable_webhooks ON sendable_webhooks.id = chosen.webhook_id))
   AND coalesce(d.status, '') = 'pending' AND {unclaimed}
   FOR UPDATE OF d SKIP LOCKED

-- name: claim
WITH RECURSIVE {waiting},
open_webhooks AS ({open_webhooks}),
next_of_webhooks AS ({next_in_any_order} UNION ALL {next_of_rows}),
chosen AS ({chosen}),
sendable_webhooks AS ({state}),
locked AS ({locked})
UPDATE platform.webhooks_delivery d
   SET claimed_until = now() + %(lease)s, attempts = d.attempts + 1
  FROM sendable_webhooks w
 -- Written so that deliveries are only found by id, never by the index of a webhook's whole history.
 WHERE d.id = ANY (ARRAY (SELECT id FROM locked)) AND w.id = coalesce(d.webhook_id, '')
RETURNING d.id AS delivery_id, d.attempts AS attempt, d.attempts - d.schedule_from AS attempts_of_schedule,
          d.webhook_id, d.environment_id, w.receiver, w.url, d.event_id, d.event_type, d.depth, d.body, w.sealed_secret,
          w.sealed_previous_secret, w.previous_secret_until, clock_timestamp() AS claimed_at

-- name: longest_wait
-- The longest time that an unrelayed event, or a due delivery of any webhook, has been waiting.
WITH RECURSIVE {waiting}
SELECT max(now() - oldest.since)
  FROM ((SELECT created_at FROM platform.rows_outboxevent WHERE relayed_at IS NULL ORDER BY sequence LIMIT 1)
        UNION ALL
        SELECT (SELECT greatest(d.next_attempt_at, d.claimed_until) FROM platform.webhooks_delivery d
                 WHERE d.webhook_id = w.id AND d.status = 'pending' AND {unclaimed}
                   AND d.next_attempt_at BETWEEN waiting.next_attempt_at AND now()
                 ORDER BY d.next_attempt_at LIMIT 1)
          FROM waiting JOIN platform.webhooks_webhook w ON w.id = waiting.webhook_id
         WHERE waiting.next_attempt_at <= now() AND {may_be_sent_to} AND w.listens_until IS NULL) AS oldest (since)

-- name: oldest_claims
SELECT coalesce(bool_or(claimed_until > now()), false), count(*) < %(most)s
  FROM (SELECT claimed_until FROM platform.webhooks_delivery
         WHERE webhook_id = %(webhook)s AND status = 'pending' AND next_attempt_at <= now()
         ORDER BY next_attempt_at LIMIT %(most)s) AS first

-- name: results
SELECT * FROM jsonb_to_recordset(%(results)s::jsonb) AS r (
       delivery_id text, attempt int, webhook_id text, at timestamptz, duration_ms int, status text, outcome text,
       wait double precision, response_status int, response_headers jsonb, response_body text, error text,
       gone boolean)

-- name: attempted
-- Locked in a fixed order, so that concurrent workers never deadlock. Deliveries of a lost claim are locked too, so
-- that none is deleted while its attempt is recorded.
SELECT d.id, d.status, d.attempts FROM platform.webhooks_delivery d
 WHERE d.id = ANY (%(ids)s) ORDER BY d.id FOR NO KEY UPDATE OF d

-- name: recorded
   UPDATE platform.webhooks_delivery d
      SET status = CASE
              WHEN r.status <> 'pending' THEN r.status
              WHEN w.deleted_at IS NOT NULL THEN 'exhausted'
              WHEN NOT w.enabled OR r.gone THEN 'held'
              ELSE 'pending' END,
          outcome = r.outcome,
          last_attempt_at = r.at,
          has_succeeded = r.status = 'delivered',
          claimed_until = NULL,
          next_attempt_at = CASE WHEN r.wait IS NOT NULL THEN now() + r.wait * interval '1 second' END
     FROM attempted, results r, platform.webhooks_webhook w
    WHERE d.id = ANY (%(ids)s) AND d.id = attempted.id AND attempted.id = r.delivery_id
      AND attempted.status = 'pending' AND w.id = d.webhook_id
      AND (attempted.attempts = r.attempt
           -- Late, but delivered: the outcome of another worker's attempt no longer matters. Except for a requested
           -- redelivery, and where the next event of the row would overtake that attempt.
           OR r.status = 'delivered' AND r.attempt > d.schedule_from
              AND (w.ordering = 'none' OR d.subject IS NULL OR coalesce(d.claimed_until < now(), true)))
RETURNING d.id

-- name: history
INSERT INTO platform.webhooks_attempt
       (delivery_id, number, at, duration_ms, response_status, response_headers, response_body, error)
SELECT r.delivery_id, r.attempt, r.at, r.duration_ms, r.response_status, r.response_headers, r.response_body,
       r.error
  FROM results r JOIN attempted ON attempted.id = r.delivery_id
    ON CONFLICT (delivery_id, number) DO NOTHING

-- name: record
WITH results AS ({results}),
attempted AS ({attempted}),
outcomes AS ({recorded}),
history AS ({history})
SELECT count(*) FROM outcomes

-- name: health
-- The start and end of each webhook's series of failures, and the webhooks to be disabled.
WITH health AS (
    SELECT * FROM unnest(%(webhooks)s::text[], %(succeeded)s::bool[], %(gone)s::bool[])
           AS h (webhook_id, succeeded, gone)
), turned AS (
    SELECT w.id FROM platform.webhooks_webhook w JOIN health h ON h.webhook_id = w.id
     WHERE (w.failing_since IS NULL) <> h.succeeded
     ORDER BY w.id FOR NO KEY UPDATE OF w
), changed AS (
    UPDATE platform.webhooks_webhook w
       SET failing_since = CASE WHEN h.succeeded THEN NULL ELSE coalesce(w.failing_since, now()) END
      FROM health h, turned
     WHERE w.id = h.webhook_id AND w.id = turned.id
)
SELECT w.id, CASE WHEN h.gone THEN 'gone' ELSE 'failing' END
  FROM health h JOIN platform.webhooks_webhook w ON w.id = h.webhook_id
 WHERE w.enabled AND w.deleted_at IS NULL AND NOT h.succeeded
   AND (h.gone OR w.failing_since < now() - %(disable_after)s)

-- name: release
UPDATE platform.webhooks_delivery d
   SET claimed_until = NULL, attempts = d.attempts - 1
  FROM unnest(%(ids)s::text[], %(attempts)s::int[]) AS mine (id, attempt)
 WHERE d.id = mine.id AND d.attempts = mine.attempt AND d.status = 'pending'
