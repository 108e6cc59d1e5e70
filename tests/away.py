"""A database that refuses everybody but superusers, as one does that is restarting, while others of its server go on;
and one session that ends."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from platform_site.embedded import postgres as embedded_postgres
from platform_site.embedded.data_dir import Layout

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


def cut_off(connection: Any) -> None:
    """The session behind one of Django's connections ends; the connection learns of it by its next statement."""
    pid = connection.connection.info.backend_pid
    with embedded_postgres.connect(Layout(Path(os.environ["DATA_DIR"]))) as superuser:
        superuser.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
