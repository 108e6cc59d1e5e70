"""Direct connections to the server (`DATABASE_DIRECT_URL`, `REGION_*_DIRECT_URL`), for session state, which a pooler in
transaction mode would leak: locks of periodic jobs, building indexes on large tables, `manage.py migrate`."""

from collections.abc import Generator
from contextlib import contextmanager
from copy import deepcopy

from django.conf import settings
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from platform_site.postgres.base import run_under_watch


def is_pooled(alias: str) -> bool:
    return alias in settings.DIRECT_DATABASES


@contextmanager
def own_connection(alias: str) -> Generator[BaseDatabaseWrapper]:
    shared = connections[alias]
    own = type(shared)(_direct(shared), alias)
    try:
        yield own
    finally:
        own.close()


@contextmanager
def without_timeouts(alias: str) -> Generator[BaseDatabaseWrapper]:
    """For a statement that runs for hours under a session lock. PostgreSQL ends it when its client dies."""
    with own_connection(alias) as own:
        own.execute_wrappers.remove(run_under_watch)
        with own.cursor() as cursor:
            cursor.execute(
                "SELECT set_config('statement_timeout', '0', false), set_config('lock_timeout', '0', false),"
                " set_config('idle_in_transaction_session_timeout', '0', false),"
                " set_config('client_connection_check_interval', '1s', false)"
            )
        yield own


@contextmanager
def session(alias: str) -> Generator[BaseDatabaseWrapper]:
    """One session for the block: this thread's connection unless there is a pooler."""
    if is_pooled(alias):
        with own_connection(alias) as own:
            yield own
    else:
        yield connections[alias]


def go_direct(alias: str) -> None:
    """Make this thread's connection direct, for commands that change the database schema."""
    shared = connections[alias]
    if is_pooled(alias):
        shared.close()
        shared.settings_dict = _direct(shared)


def _direct(shared: BaseDatabaseWrapper) -> dict[str, object]:
    direct = settings.DIRECT_DATABASES.get(shared.alias, {})
    libpq = {key: value for key, value in direct.get("OPTIONS", {}).items() if key != "options"}
    return deepcopy({**shared.settings_dict, **direct, "OPTIONS": shared.settings_dict["OPTIONS"] | libpq})
