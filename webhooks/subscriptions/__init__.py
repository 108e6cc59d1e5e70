"""Services of webhooks: create, change, delete, rotate the secret, test, redeliver; health.
Depends on: delivery.
Used from outside: service, schema_check, deletion, backup."""
