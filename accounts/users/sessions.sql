-- name: rotate
UPDATE accounts_session AS s
   SET refresh_hash = decode(%(successor_hash)s, 'hex'),
       previous_hash = s.refresh_hash,
       sealed_successor = decode(%(sealed_successor)s, 'hex'),
       rotated_at = statement_timestamp(),
       expires_at = statement_timestamp() + %(lifetime)s::interval
  FROM accounts_user AS u
 WHERE s.family_hash = decode(%(family_hash)s, 'hex')
   AND s.refresh_hash = decode(%(hash)s, 'hex')
   AND s.revoked_at IS NULL
   AND s.expires_at > statement_timestamp()
   AND u.id = s.user_id
   AND u.disabled_at IS NULL
   AND NOT EXISTS (SELECT FROM ({suspended}) AS suspended (id) WHERE suspended.id = s.environment_id)
RETURNING s.id, s.environment_id, u.id, u.email, u.name
