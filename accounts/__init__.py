"""Who: users, sessions, tokens, server keys. Names an environment by its id only; knows nothing of projects."""
