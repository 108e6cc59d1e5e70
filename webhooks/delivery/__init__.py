"""Delivers events: the relay creates deliveries, the dispatcher claims, sends and records them.
Depends on: rows.outbox, platform_site.outbound.
Used from outside: relay, queue, dispatcher, attempts, signing."""
