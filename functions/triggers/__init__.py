"""What starts runs besides calls: schedules, events, inbound endpoints.
Depends on: runs.
Used from outside: schedules, events, event_subscriptions, inbound_endpoints."""
