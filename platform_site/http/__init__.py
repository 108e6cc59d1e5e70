"""What every HTTP endpoint shares: middleware, views, errors, bodies, pagination, idempotency, OpenAPI.
Depends on: platform_site base packages; no app.
Used from outside: views, generics, errors, fields, requests, pagination, idempotency."""
