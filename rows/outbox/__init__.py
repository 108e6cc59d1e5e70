"""The transactional outbox of a region: events, who subscribes to them, and audit entries on their way.
Depends on: platform_site only.
Used from outside: models, subscriptions, event_types, audit."""
