"""Services of users: create, change, delete, sign in, sessions, passwords, one-time codes.
Depends on: keys, tokens, directory, models.
Used from outside: service, sessions, passwords, emails, identity_lookup."""
