-- name: claim
-- The order by kind and time is that of the index `run_queue_order`: no backlog is sorted, and that of anonymous
-- callers and events is not scanned. Others take the first half of the slots (`functions.quotas.slots`) last. Of
-- environments with equally many executing runs one is chosen at random: with the longest wait first, several older
-- backlogs would be worked off before the first run of another environment. With `is_reserved` only short runs are
-- claimed, of environments that execute none.
WITH {waiting}, candidates AS (
    SELECT due.environment_id, busy.runs, random() AS chance
      FROM waiting
     CROSS JOIN LATERAL (
           SELECT r.environment_id, r.concurrency, r.function_id FROM platform.functions_run r
            WHERE r.phase = 'queued' AND r.environment_id = waiting.environment_id
              AND (r.claimed_until IS NULL OR r.claimed_until < now())
              AND EXISTS (SELECT FROM platform.functions_function f WHERE f.id = r.function_id
                             AND f.environment_id IS NOT NULL)
            ORDER BY (r.caller_kind = 'anonymous' OR r.trigger = 'event'), coalesce(r.turn_at, r.created_at)
            LIMIT 1) due
     CROSS JOIN LATERAL (
           SELECT count(*) AS runs, count(*) FILTER (WHERE b.slot >= -due.concurrency) AS taken
             FROM platform.functions_run b
            WHERE b.environment_id = waiting.environment_id AND b.slot < 0) busy
     WHERE busy.taken < due.concurrency
       AND (NOT (SELECT %(is_reserved)s::boolean) OR busy.runs = 0
            AND EXISTS (SELECT FROM platform.functions_function f
                         WHERE f.id = due.function_id AND f.timeout_ms <= (SELECT %(short_ms)s::integer)))
     ORDER BY busy.runs, chance
     LIMIT 4
), next AS (
    SELECT r.id, r.free
      FROM candidates
     CROSS JOIN LATERAL (
           SELECT q.id,
                  (SELECT -free FROM generate_series(1, q.concurrency) free
                    WHERE NOT EXISTS (SELECT 1 FROM platform.functions_run taken
                                       WHERE taken.environment_id = q.environment_id AND taken.slot = -free)
                    ORDER BY free <= q.concurrency / 2, random() LIMIT 1) AS free
             FROM platform.functions_run q
            WHERE q.phase = 'queued' AND q.environment_id = candidates.environment_id
              AND (q.claimed_until IS NULL OR q.claimed_until < now())
              AND EXISTS (SELECT FROM platform.functions_function f WHERE f.id = q.function_id
                             AND f.environment_id IS NOT NULL)
            ORDER BY (q.caller_kind = 'anonymous' OR q.trigger = 'event'), coalesce(q.turn_at, q.created_at) LIMIT 1
              FOR UPDATE OF q SKIP LOCKED) r
     WHERE r.free IS NOT NULL
     ORDER BY candidates.runs, candidates.chance
     LIMIT 1
)
UPDATE platform.functions_run r
   SET phase = 'executing', slot = next.free, attempts = r.attempts + 1, started_at = coalesce(r.started_at, now()),
       claimed_until = now() + least(f.timeout_ms * interval '1 ms' + %(margin)s::interval, %(lease)s::interval)
  FROM next, platform.functions_function f, platform.functions_version v
 WHERE r.id = next.id AND f.id = r.function_id AND v.function_id = f.id AND v.number = r.version
RETURNING r.id, r.attempts, r.environment_id, f.id, r.version, v.source_hash, f.timeout_ms, f.memory_mb,
          array_to_json(f.allowed_hosts), {secrets}, r.input, r.depth, r.caller_kind, r.caller_id, r.trigger,
          NOT EXISTS (SELECT FROM waiting CROSS JOIN LATERAL (
                      SELECT FROM platform.functions_run other
                       WHERE other.phase = 'queued' AND other.environment_id = waiting.environment_id
                         AND other.id <> r.id AND (other.claimed_until IS NULL OR other.claimed_until < now())
                       ORDER BY (other.caller_kind = 'anonymous' OR other.trigger = 'event'),
                                coalesce(other.turn_at, other.created_at)
                       LIMIT 1) first)

-- name: is_due
WITH {waiting}
SELECT EXISTS (SELECT FROM waiting CROSS JOIN LATERAL (
               SELECT FROM platform.functions_run r
                WHERE r.phase = 'queued' AND r.environment_id = waiting.environment_id
                  AND (r.claimed_until IS NULL OR r.claimed_until < now())
                ORDER BY (r.caller_kind = 'anonymous' OR r.trigger = 'event'), coalesce(r.turn_at, r.created_at)
                LIMIT 1) first)

-- name: retry
UPDATE platform.functions_run r
   SET phase = 'queued', slot = NULL, claimed_until = now() + %(wait)s
 WHERE r.id = %(run_id)s AND r.attempts = %(attempt)s AND r.phase = 'executing' AND r.cancel_requested_at IS NULL
   AND r.attempts < (SELECT f.attempts FROM platform.functions_function f WHERE f.id = r.function_id)
RETURNING r.id

-- name: release
UPDATE platform.functions_run
   SET phase = 'queued', slot = NULL, attempts = attempts - 1, claimed_until = now() + %(wait)s,
       started_at = CASE WHEN attempts > 1 THEN started_at END
 WHERE id = %(run_id)s AND attempts = %(attempt)s AND phase = 'executing'

-- name: waiting
RECURSIVE {reached}, waiting AS (
    SELECT environment_id FROM reached WHERE environment_id <> ALL (%(suspended)s::text[])
)
