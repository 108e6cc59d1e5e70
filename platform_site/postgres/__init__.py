"""Django's PostgreSQL backend with one difference: whether a kept connection is alive is asked of its socket."""
