"""Connections to the server itself, for what belongs to a session and not to a transaction.

A pooler in transaction mode (PgBouncer) hands a session's next transaction to whichever server connection is free. What
a session keeps there is then somebody else's: its advisory locks, its `SET`, a cursor held beyond its transaction.
Almost nothing of ours is a session's: requests, deliveries and runs lock by transaction and say `SET LOCAL`. The rest
comes here, by `DATABASE_DIRECT_URL` and `REGION_*_DIRECT_URL`; without these the ordinary URLs lead to the servers.

Who calls: the locks of sweeps and of who drops a forgotten schema, the making of indexes on large tables,
`manage.py migrate`.
"""

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
def unhurried(alias: str) -> Generator[BaseDatabaseWrapper]:
    """A connection of the block's own, for a statement that may take hours and a lock of the session that says so.

    It has no time limits; but the server looks every second whether its client still lives, and ends both otherwise.
    Nor is it cut where the server stands still for some seconds: hours of work would be lost.
    """
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
