"""Formats, verification and revocation of access tokens, refresh tokens and other credentials.
Depends on: models, keys, directory.
Used from outside: access_tokens, refresh_tokens, credentials, revocation, signing_keys."""
