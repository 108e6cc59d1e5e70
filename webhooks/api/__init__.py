"""HTTP endpoints of webhooks and deliveries.
Depends on: subscriptions, delivery.
Used from outside: views, serializers."""
