"""Sign-in with identity providers (OpenID Connect, OAuth 2): the platform is their client.

Depends on: users, registration, api.
Used from outside: providers, redirects, metadata.
"""
