-- Settings that each session of the platform requests when it starts, set permanently: a pooler does not pass them on.
-- Run psql -v role=platform -v schema=public in the control database, -v schema=platform in a region's; as the role itself or
-- a superuser. The values are the defaults of STATEMENT_TIMEOUT_MS,
-- LOCK_TIMEOUT_MS and IDLE_IN_TRANSACTION_TIMEOUT_MS.
SELECT format('ALTER ROLE %I IN DATABASE %I SET %s = %L', :'role', current_database(), name, value)
  FROM (VALUES ('search_path', :'schema'), ('statement_timeout', '5000'), ('lock_timeout', '2000'),
               ('idle_in_transaction_session_timeout', '10000'), ('jit', 'off'),
               ('max_parallel_workers_per_gather', '0'), ('timezone', 'UTC')) AS setting (name, value)
\gexec
