"""A database that refuses everybody but superusers, as one does that is restarting, while others of its server go on."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql

_CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND usename = 'platform'"


@contextmanager
def away(superuser: "psycopg.Connection[tuple[object, ...]]", name: str) -> Iterator[None]:
    """Until the end of the block. `superuser` is a connection to the server, on autocommit; `name` the database's."""
    limit = sql.SQL("ALTER DATABASE {} CONNECTION LIMIT {}")
    superuser.execute(limit.format(sql.Identifier(name), 0))
    try:
        superuser.execute(_CUT, [name])
        yield
    finally:
        superuser.execute(limit.format(sql.Identifier(name), -1))
