"""Users, sessions, tokens, API keys, and sign-up for platform accounts and app users.
Depends on: platform_site; never projects: it knows environments by ID only.
Used from outside: users, keys, tokens, registration, oauth, directory."""
