"""Live changes: `POST /v1/changes` streams what changes in the rows that its caller may read.
Depends on: events, query, rules, outbox.
Used from outside: open_stream, watched_tables, feed, notifications.
To read in this order: subscriptions, streams, positions, event_reader, differences, batches, advance, feed."""
