"""Webhook subscriptions and the delivery of events to their URLs.
Depends on: rows, projects, accounts, platform_site.
Used from outside: subscriptions, delivery."""
