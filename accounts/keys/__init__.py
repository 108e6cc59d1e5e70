"""API keys: their format, scopes, and what a publishable key exposes.
Depends on: models, directory.
Used from outside: server_keys, permissions, publishable_key_exposure."""
