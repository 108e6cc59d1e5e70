"""Connections to the server itself, for session state. A pooler in transaction mode (PgBouncer) gives a session's next
transaction any free server connection, so session state (advisory locks, `SET`, cursors held beyond a transaction)
would leak to other clients. Nearly all code uses transaction locks and `SET LOCAL`. The rest uses these connections, by
`DATABASE_DIRECT_URL` and `REGION_*_DIRECT_URL`; without these the ordinary URLs point to the servers. Callers: the
locks of periodic jobs and of dropping an orphaned schema, building indexes on large tables, `manage.py migrate`."""

from collections.abc import Generator
from contextlib import contextmanager
from copy import deepcopy

from django.conf import settings
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from platform_site.postgres.base import bounded


def is_pooled(alias: str) -> bool:
    """Whether the ordinary URL of this database leads through a pooler: it has a direct one as well."""
    return alias in settings.DIRECT_DATABASES


@contextmanager
def own_connection(alias: str) -> Generator[BaseDatabaseWrapper]:
    """A connection of the block's own to the server itself; what is set or locked on it ends with the block."""
    shared = connections[alias]
    own = type(shared)(_direct(shared), alias)
    try:
        yield own
    finally:
        own.close()


@contextmanager
def without_timeouts(alias: str) -> Generator[BaseDatabaseWrapper]:
    """The block's own connection, for a statement that may take hours and a session lock that protects it. It has no
    timeouts, but the server checks every second whether its client is alive, and ends both otherwise. It is not cut
    when the server stalls for some seconds, which would lose hours of work."""
    with own_connection(alias) as own:
        own.execute_wrappers.remove(bounded)
        with own.cursor() as cursor:
            cursor.execute(
                "SELECT set_config('statement_timeout', '0', false), set_config('lock_timeout', '0', false),"
                " set_config('idle_in_transaction_session_timeout', '0', false),"
                " set_config('client_connection_check_interval', '1s', false)"
            )
        yield own


@contextmanager
def session(alias: str) -> Generator[BaseDatabaseWrapper]:
    """A connection that stays one session for the block: this thread's own unless there is a pooler in between."""
    if is_pooled(alias):
        with own_connection(alias) as own:
            yield own
    else:
        yield connections[alias]


def go_direct(alias: str) -> None:
    """Let this thread's connection lead to the server itself from now on. For commands that are all DDL."""
    shared = connections[alias]
    if is_pooled(alias):
        shared.close()
        shared.settings_dict = _direct(shared)


def _direct(shared: BaseDatabaseWrapper) -> dict[str, object]:
    return {**deepcopy(shared.settings_dict), **settings.DIRECT_DATABASES.get(shared.alias, {})}
