"""Django's PostgreSQL backend for databases that go away: whether a kept connection is alive is asked of its socket,
and nobody waits for one that is known to be away."""
