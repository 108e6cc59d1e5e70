"""The platform as an OAuth 2 client: calls of a provider, its discovery document and keys, what it says of a person.
Depends on: models, accounts.oauth.client_secrets and errors."""
