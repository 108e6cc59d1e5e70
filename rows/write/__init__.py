"""Insert, update, upsert and delete under rules: one statement checks, writes, records the event and returns the row.
Depends on: query, rules, schema, outbox.
Used from outside: service, bulk, upserts, references."""
