"""Runs statements (`$1`, `$2`, …) with values as text bytes, and returns rows of bytes. After a lost connection only
reads outside a transaction are repeated."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from django.db import DatabaseError, Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import pq

from platform_site.concurrency import loop_requests
from platform_site.concurrency.loop_requests import LoopRequest
from platform_site.postgres import availability, replicas, sqlstates
from platform_site.postgres.libpq import (
    Row,
    Statement,
    execute,
    pipeline_each,
    pipeline_in_order,
    pipeline_in_transaction,
    read_rows,
)
from platform_site.postgres.libpq_connection import checked, opened
from platform_site.postgres.replicas import Freshness


def run(alias: str, sql: bytes, values: Sequence[bytes | None]) -> list[Row]:
    """Every row of `sql`, in the transaction of an enclosing `atomic()`, if any. Raises Django's errors."""
    return run_on(connections[alias], sql, values)


def run_on(connection: BaseDatabaseWrapper, sql: bytes, values: Sequence[bytes | None]) -> list[Row]:
    return read_rows(availability.run(connection, execute, connection, sql, values))


def run_each(connection: BaseDatabaseWrapper, statements: Sequence[Statement]) -> list[list[Row] | DatabaseError]:
    """In one round trip with a transaction each, outside `atomic()`. The result of a failed statement is its error.
    Raises Django's OperationalError if the connection is lost: outcomes are unknown."""
    outcomes: list[list[Row] | DatabaseError] = []
    for result in availability.run(connection, pipeline_each, connection, statements):
        try:
            with connection.wrap_database_errors:
                outcomes.append(read_rows(checked(connection, connection.connection.pgconn, result)))
        except DatabaseError as error:
            outcomes.append(error)
    return outcomes


def run_in_transaction(connection: BaseDatabaseWrapper, statements: Sequence[Statement]) -> list[list[Row]]:
    """In one round trip inside `atomic()`. Raises the first error."""
    results = availability.run(connection, pipeline_in_transaction, connection, statements)
    return [read_rows(result) for result in results]


def retry_if_lost(connection: BaseDatabaseWrapper, sql: bytes, values: Sequence[bytes | None]) -> list[Row]:
    return _again_if_lost(connection, execute, connection, sql, values)


_MOST_IN_PIPELINE: Final = 16
"""The results of all are in memory together."""


@dataclass(eq=False)
class _Read:
    request: LoopRequest
    values: Sequence[bytes | None]
    outcome: list[Row] | DatabaseError | None = None
    """None: it is repeated on its own connection."""


_gathering: Final[dict[tuple[str, bytes], list[_Read]]] = {}
"""By database and statement; changed on the event loop only."""


def read_pipelined(connection: BaseDatabaseWrapper, sql: bytes, values: Sequence[bytes | None]) -> list[Row]:
    """As `retry_if_lost`. Requests that read by the same statement in one iteration of the event loop share a pipeline
    on one connection. Each read is its own transaction, so it sees everything committed before and fails alone. Other
    statements do not share it, so that none waits behind a slower one, or for a lock on another table."""
    request = loop_requests.current()
    if request is None or connection.in_atomic_block:
        return retry_if_lost(connection, sql, values)
    key, mine = (connection.alias, sql), _Read(request, values)
    others = _gathering.get(key)
    if others is not None and len(others) < _MOST_IN_PIPELINE:
        others.append(mine)
        request.wait()
    else:
        reads = _gathering[key] = [mine]
        request.pause(0)
        if _gathering.get(key) is reads:
            del _gathering[key]
        if len(reads) > 1:
            _read_all(connection, sql, reads)
    if mine.outcome is None:
        return retry_if_lost(connection, sql, values)
    if isinstance(mine.outcome, DatabaseError):
        raise mine.outcome
    return mine.outcome


def _read_all(connection: BaseDatabaseWrapper, sql: bytes, reads: list[_Read]) -> None:
    try:
        outcomes = run_each(connection, [(sql, each.values) for each in reads])
        for each, outcome in zip(reads, outcomes, strict=True):
            each.outcome = outcome
    except Error:
        pass  # the connection failed: each request repeats its read
    finally:
        for each in reads[1:]:
            each.request.call_soon(each.request.switch)


def run_limited(
    connection: BaseDatabaseWrapper, sql: bytes, values: Sequence[bytes | None], limit_ms: int
) -> list[Row]:
    """As `retry_if_lost`, with a statement timeout, in one round trip."""
    return _again_if_lost(connection, _run_limited, connection, sql, values, limit_ms)


def _again_if_lost(connection: BaseDatabaseWrapper, work: Callable[..., pq.abc.PGresult], *arguments: Any) -> list[Row]:
    was_open = connection.connection is not None
    try:
        return read_rows(availability.run(connection, work, *arguments))
    except DatabaseError:
        # Not if the connection could not be opened: another attempt would double the wait.
        if connection.in_atomic_block or connection.connection is not None or not was_open:
            raise
        return read_rows(availability.run(connection, work, *arguments))


def run_on_replica(
    alias: str, freshness: Freshness, sql: bytes, values: Sequence[bytes | None], limit_ms: int | None = None
) -> list[Row] | None:
    """As `run`, on a replica. None: use the primary, since no replica is fit, or it failed. Raises only timeouts."""
    chosen = replicas.region(alias).choose(freshness)
    if chosen is None:
        return None
    replica, position = chosen
    wrapper = replica.connection
    limit = [] if limit_ms is None else [_limit(limit_ms)]
    statements = [(_REACHED, ()), *limit, (sql, values)]
    try:
        reached, *_, result = availability.run(wrapper, pipeline_in_order, wrapper, statements, replica.is_silent)
    except DatabaseError as error:
        state = sqlstates.sqlstate(error)
        if state == sqlstates.CANCELLED:
            raise
        if state is None or state[:2] not in _PASSING:
            wrapper.close()
            replica.is_out = True
        replica.count("failed")
        return None
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
"""Error classes of a healthy replica: values, recovery conflicts, an older schema, locks."""

_LIMIT: Final = b"SELECT set_config('statement_timeout', $1, true)"
_TIMEOUT: Final = b"SHOW statement_timeout"


def _limit(milliseconds: int) -> Statement:
    return _LIMIT, [b"%d" % milliseconds]


def _run_limited(
    wrapper: BaseDatabaseWrapper, sql: bytes, values: Sequence[bytes | None], limit_ms: int
) -> pq.abc.PGresult:
    if not wrapper.in_atomic_block:
        statements = [_limit(limit_ms), (sql, values)]
        try:
            return pipeline_in_order(wrapper, statements)[-1]
        except psycopg.errors.InvalidSqlStatementName:
            opened(wrapper).prepared.clear()
            return pipeline_in_order(wrapper, statements)[-1]
    [[before]] = read_rows(execute(wrapper, _TIMEOUT, ()))
    execute(wrapper, *_limit(limit_ms))
    result = execute(wrapper, sql, values)  # after an error the rollback restores the timeout
    execute(wrapper, _LIMIT, [before])
    return result
