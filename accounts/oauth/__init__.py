"""Sign-in with identity providers (OpenID Connect, OAuth 2): the platform is their client.
Depends on: users, registration, api. Layers: api, sign_in, providers and identities, client.
Used from outside: providers, redirects, metadata."""
