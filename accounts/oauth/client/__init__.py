"""OAuth 2 client: requests to a provider, its discovery document, keys and claims.
Depends on: models, accounts.oauth.client_secrets, errors and flows."""
