"""Admin pages of webhooks and deliveries.

Depends on: subscriptions, delivery.
Used from outside: admin.
"""
