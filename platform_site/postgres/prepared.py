"""Runs prepared statements and returns PostgreSQL's bytes. In: the text of a statement (`$1`, `$2`, …) and its values
as text bytes. Out: rows of bytes. Used by `rows.query.context`, `rows.migrate.rule_impact`, the runs of functions, and
on the control database by `accounts.directory.user_lookup`. `libpq` runs them on the connection. A dead connection is
closed, so that the next statement opens another. A read outside of a transaction is then repeated; a write never is,
because its outcome is unknown."""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import psycopg
from django.db import DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import pq

from platform_site.postgres import replicas, sqlstates
from platform_site.postgres.availability import watch
from platform_site.postgres.libpq import (
    Row,
    Statement,
    checked,
    execute,
    is_lost,
    opened,
    pipeline_each,
    pipeline_in_order,
    pipeline_in_transaction,
    read_rows,
)
from platform_site.postgres.replicas import Freshness

Result = TypeVar("Result")


def run(alias: str, sql: bytes, values: Sequence[bytes | None]) -> list[Row]:
    """Every row that `sql` returns on the database `alias`, for values bound in order of their numbers. Joins the
    transaction of an enclosing `atomic()`, else commits by itself. Raises Django's database errors, with psycopg's as
    the cause."""
    return run_on(connections[alias], sql, values)


def run_on(connection: BaseDatabaseWrapper, sql: bytes, values: Sequence[bytes | None]) -> list[Row]:
    """As `run`, on a connection in hand: to look one up for the thread takes eight calls."""
    return read_rows(_watched(connection, execute, sql, values))


def run_each(connection: BaseDatabaseWrapper, statements: Sequence[Statement]) -> list[list[Row] | DatabaseError]:
    """As `run_on` for each statement, in one round trip: a transaction for each, in order. The result of a failed one
    is its error; the others continue. Outside of `atomic()`. Raises Django's OperationalError if the connection is
    lost: then their outcomes are unknown."""
    outcomes: list[list[Row] | DatabaseError] = []
    for result in _watched(connection, pipeline_each, statements):
        try:
            with connection.wrap_database_errors:
                outcomes.append(read_rows(checked(connection, connection.connection.pgconn, result)))
        except DatabaseError as error:
            outcomes.append(error)
    return outcomes


def run_in_transaction(connection: BaseDatabaseWrapper, statements: Sequence[Statement]) -> list[list[Row]]:
    """As `run_on` for each statement, in one round trip, in the transaction of an enclosing `atomic()`. Raises the
    first error, which undoes the transaction."""
    return [read_rows(result) for result in _watched(connection, pipeline_in_transaction, statements)]


def _watched(connection: BaseDatabaseWrapper, work: Callable[..., Result], *arguments: Any) -> Result:
    """What `work(connection, *arguments)` returns, while the database's watch knows that this thread waits for it."""
    watched = watch(connection.alias)
    try:
        entered = watched.enter(connection)
        try:
            return work(connection, *arguments)
        except psycopg.Error:
            if is_lost(connection):
                watched.lost(connection.get_connection_params())
                if not connection.in_atomic_block:
                    connection.close()  # inside a transaction its owner does
            raise
        finally:
            if entered:
                watched.leave()
    except psycopg.Error:
        with connection.wrap_database_errors:  # which makes them Django's; around all of it, it would be two calls more
            raise


def retry_if_lost(connection: BaseDatabaseWrapper, sql: bytes, values: Sequence[bytes | None]) -> list[Row]:
    """As `run_on`, for statements that only read: once more, opened anew, if the connection turns out to be dead."""
    return _again_if_lost(connection, execute, sql, values)


def run_limited(
    connection: BaseDatabaseWrapper, sql: bytes, values: Sequence[bytes | None], limit_ms: int
) -> list[Row]:  # fmt: skip
    """As `run_again_if_lost`, with a statement timeout of its own, in one trip to the server."""
    return _again_if_lost(connection, _run_limited, sql, values, limit_ms)


def _again_if_lost(connection: BaseDatabaseWrapper, work: Callable[..., pq.abc.PGresult], *arguments: Any) -> list[Row]:
    was_open = connection.connection is not None
    try:
        return read_rows(_watched(connection, work, *arguments))
    except DatabaseError:
        # A connection that could not be opened is another matter: to try again at once would double the wait.
        if connection.in_atomic_block or connection.connection is not None or not was_open:
            raise
        return read_rows(_watched(connection, work, *arguments))


def run_on_replica(
    alias: str, freshness: Freshness, sql: bytes, values: Sequence[bytes | None], limit_ms: int | None = None
) -> list[Row] | None:  # fmt: skip
    """As `run`, for a statement that only reads, on a replica of `alias` that is as fresh as asked; notes which one.
    None where the primary must answer: no replica is fit, it has not come so far, or it failed (gone, a conflict with
    what it replays, a column that it does not have yet). Raises only what the primary would say as well, and as late:
    that the statement took too long."""
    chosen = replicas.region(alias).choose(freshness)
    if chosen is None:
        return None
    replica, position = chosen
    wrapper, watched, entered = replica.connection, watch(replica.name), False
    try:
        with wrapper.wrap_database_errors:
            entered = watched.enter(wrapper)
            limit = [] if limit_ms is None else [_limit(limit_ms)]
            reached, *_, result = pipeline_in_order(wrapper, [(_REACHED, ()), *limit, (sql, values)], replica.is_silent)
    except DatabaseError as error:
        state = sqlstates.sqlstate(error)
        if state == sqlstates.CANCELLED:
            raise
        if state is None or state[:2] not in _PASSING:
            wrapper.close()
            replica.leave_out()
        replica.count("failed")
        return None
    finally:
        if entered:
            watched.leave()
    [[at]] = read_rows(reached)
    if at is None or int(at) < position:
        replica.count("behind")
        return None
    found = read_rows(result)
    replica.count("answered" if found else "empty")
    if found:
        freshness.answered_by = replica.name
    return found


_REACHED: Final = replicas.REACHED.encode()
_PASSING: Final = frozenset({"22", "40", "42", "55"})
"""Classes of errors that say nothing against a replica: values, a conflict with what it replays, an older schema, a
lock that what it replays holds."""

_LIMIT: Final = b"SELECT set_config('statement_timeout', $1, true)"
_TIMEOUT: Final = b"SHOW statement_timeout"


def _limit(milliseconds: int) -> Statement:
    return _LIMIT, [b"%d" % milliseconds]


def _run_limited(
    wrapper: BaseDatabaseWrapper, sql: bytes, values: Sequence[bytes | None], limit_ms: int
) -> pq.abc.PGresult:  # fmt: skip
    """The result of `sql` under its own timeout, which ends with the transaction: the pipeline's, or a caller's."""
    if not wrapper.in_atomic_block:
        statements = [_limit(limit_ms), (sql, values)]
        try:
            return pipeline_in_order(wrapper, statements, lambda: False)[-1]
        except psycopg.errors.InvalidSqlStatementName:
            opened(wrapper)[1].names.clear()
            return pipeline_in_order(wrapper, statements, lambda: False)[-1]
    [[before]] = read_rows(execute(wrapper, _TIMEOUT, ()))
    execute(wrapper, *_limit(limit_ms))
    result = execute(wrapper, sql, values)  # after an error the rollback restores the timeout
    execute(wrapper, _LIMIT, [before])
    return result
