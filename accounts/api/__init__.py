"""HTTP endpoints of tokens, sessions, API keys and users.
Depends on: users, keys, tokens.
Used from outside: views, user_views, serializers."""
