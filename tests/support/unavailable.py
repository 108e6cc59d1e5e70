"""A database that refuses all roles but superusers, as one does that is restarting, while other databases continue;
and one session that ends."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from django.db import connections
from psycopg import sql

from platform_site.embedded import postgres as embedded_postgres
from platform_site.embedded.data_dir import Layout
from platform_site.postgres import prepared

REGION = "us-east-1"
_CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND usename = 'platform'"


@contextmanager
def database_unavailable(superuser: "psycopg.Connection[tuple[object, ...]]", name: str) -> Iterator[None]:
    """Until the end of the block. `superuser` is a connection to the server, on autocommit; `name` the database's."""
    limit = sql.SQL("ALTER DATABASE {} CONNECTION LIMIT {}")
    superuser.execute(limit.format(sql.Identifier(name), 0))
    try:
        superuser.execute(_CUT, [name])
        yield
    finally:
        superuser.execute(limit.format(sql.Identifier(name), -1))


def terminate_connection(connection: Any) -> None:
    """The session behind one of Django's connections ends; the connection learns of it by its next statement."""
    pid = connection.connection.info.backend_pid
    with embedded_postgres.connect(Layout(Path(os.environ["DATA_DIR"]))) as superuser:
        superuser.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])


def terminate_own_backend() -> None:
    (pid,) = prepared.run(REGION, b"SELECT pg_backend_pid()", [])[0]

    def kill() -> None:
        prepared.run(REGION, b"SELECT pg_terminate_backend($1::int, 5000)", [pid])
        connections[REGION].close()

    thread = threading.Thread(target=kill)
    thread.start()
    thread.join(20)


@contextmanager
def control_unavailable() -> Iterator[None]:
    name = connections["default"].settings_dict["NAME"]
    with (
        embedded_postgres.connect(Layout(Path(os.environ["DATA_DIR"]))) as superuser,
        database_unavailable(superuser, name),
    ):
        connections["default"].close()
        yield
    connections["default"].close()
