"""REST endpoints of sign-in by providers, and of providers, redirect URIs and identities.
Depends on: accounts.oauth, registration, users."""
