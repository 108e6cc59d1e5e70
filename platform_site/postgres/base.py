"""The database backend. In place of Django's health check, a round trip, `poll` finds in two microseconds that an idle
connection's socket is readable and so unusable."""

import threading
from collections.abc import Callable
from typing import Any

import psycopg
from django.db.backends.postgresql import base, schema

from platform_site.concurrency import loop_requests
from platform_site.postgres import availability, libpq_connection


class _Commits(threading.local):
    count = 0


_commits = _Commits()


def commits_of_this_thread() -> int:
    """`platform_site.http.views` repeats a request only if this has not changed."""
    return _commits.count


class SchemaEditor(schema.DatabaseSchemaEditor):
    def _create_like_index_sql(self, model: Any, field: Any) -> None:
        """Creates no LIKE index: the platform searches no column by prefix, and the ordinary index of a tenant's
        column serves LIKE, with its collation."""


class DatabaseWrapper(base.DatabaseWrapper):
    SchemaEditorClass = SchemaEditor
    _connects_for_loop = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.execute_wrappers.append(run_under_watch)

    def connect(self) -> None:
        request = loop_requests.current()
        if request is None:
            super().connect()
        else:  # resolving a name and the handshake may take long
            self._connects_for_loop = True
            request.in_thread(super().connect)

    def cursor(self) -> Any:
        loop_requests.require_thread()
        return super().cursor()

    def _set_autocommit(self, autocommit: bool) -> None:
        loop_requests.require_thread()  # a transaction of several statements begins or ends
        super()._set_autocommit(autocommit)  # type: ignore[misc]

    def _close(self) -> None:
        if self.connection is not None:
            libpq_connection.of(self.connection).close()
        super()._close()  # type: ignore[misc]

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        watched = availability.watch(self.alias)
        entered = watched.enter(connects_for_loop=self._connects_for_loop)
        try:
            return super().get_new_connection(conn_params)
        except psycopg.Error as error:  # a ProgrammingError for an unknown parameter of the URL
            watched.log_failure(error)
            if error.sqlstate is None:
                watched.lost(conn_params)
            raise
        finally:
            if entered:
                watched.leave()

    def is_usable(self) -> bool:
        connection: Any = self.connection
        if connection is None or connection.closed:
            return False
        try:
            return not loop_requests.is_readable(connection.fileno())
        except (OSError, ValueError):
            return False

    def _commit(self) -> None:
        # Never refused, since locks must be released. psycopg ends transactions without a cursor.
        commit = super()._commit  # type: ignore[misc]  # BaseDatabaseWrapper has it, django-stubs has not
        availability.run(self, commit, never_refuse=True, reconnects=False)
        _commits.count += 1

    def _rollback(self) -> None:
        rollback = super()._rollback  # type: ignore[misc]
        availability.run(self, rollback, never_refuse=True, reconnects=False)


def run_under_watch(
    execute: Callable[[Any, Any, bool, dict[str, Any]], Any], sql: Any, params: Any, many: bool, context: dict[str, Any]
) -> Any:
    # Does not reconnect: the session may hold a lock, such as that of a periodic job.
    return availability.run(context["connection"], execute, sql, params, many, context, reconnects=False)
