"""Statements through libpq on psycopg's connection, because a cursor costs 20-35 µs more. Inside `atomic()` it sends
psycopg's lazy BEGIN first. A statement is prepared at its second use, but not in transactions of the control database:
after a DEALLOCATE ALL by psycopg, an unknown name would abort them."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import psycopg
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import pq

from platform_site.concurrency import loop_requests
from platform_site.postgres.libpq_connection import DONE, MAX_PREPARED, checked, name_of, opened

Row = tuple[bytes | None, ...]
Statement = tuple[bytes, Sequence[bytes | None]]

_IDLE: Final = pq.TransactionStatus.IDLE
_TAKES_ONE_MORE: Final = frozenset({_IDLE, pq.TransactionStatus.INTRANS})
_UNKNOWN_STATEMENT: Final = b"26000"


def execute(wrapper: BaseDatabaseWrapper, sql: bytes, values: Sequence[bytes | None]) -> pq.abc.PGresult:
    """The result of a statement, inside `atomic()` as a part of that transaction. Raises psycopg's errors. A statement
    that PostgreSQL no longer knows is run again, unless that has aborted a transaction."""
    connection = opened(wrapper)
    libpq = connection.libpq
    if wrapper.in_atomic_block:
        if not _has_begun(wrapper, libpq):
            checked(wrapper, libpq, libpq.exec_(b"BEGIN"))
        if wrapper.alias == DEFAULT_DB_ALIAS:
            result = connection.run(libpq.exec_params, libpq.send_query_params, sql, values)
            return checked(wrapper, libpq, result)
    name = connection.prepared.get(sql)
    if name is not None:
        connection.prepared.move_to_end(sql)
        result = connection.run(libpq.exec_prepared, libpq.send_query_prepared, name, values)
        if result.status in DONE:
            return result
        if result.error_field(pq.DiagnosticField.SQLSTATE) != _UNKNOWN_STATEMENT:
            return checked(wrapper, libpq, result)
        connection.prepared.clear()  # DEALLOCATE ALL has dropped all of them
        if libpq.transaction_status != _IDLE:
            return checked(wrapper, libpq, result)  # the transaction is lost; its owner may run it again
    if libpq.transaction_status in _TAKES_ONE_MORE and connection.should_prepare(wrapper, sql):
        name = connection.prepare(wrapper, sql)
        result = connection.run(libpq.exec_prepared, libpq.send_query_prepared, name, values)
    else:
        result = connection.run(libpq.exec_params, libpq.send_query_params, sql, values)
    return checked(wrapper, libpq, result)


def _has_begun(wrapper: BaseDatabaseWrapper, libpq: Any) -> bool:
    """Whether the transaction of an enclosing `atomic()` has begun. Raises if it is broken."""
    if wrapper.needs_rollback:
        wrapper.validate_no_broken_transaction()
    return bool(libpq.transaction_status != _IDLE)


def pipeline_each(wrapper: BaseDatabaseWrapper, statements: Sequence[Statement]) -> list[pq.abc.PGresult]:
    """Run the statements in one pipeline, each in its own transaction. Returns the result or error of each."""
    if wrapper.in_atomic_block:
        raise RuntimeError("a pipeline of transactions inside of a transaction")
    connection = opened(wrapper)
    libpq, prepared = connection.libpq, connection.prepared
    if settings.PREPARED_STATEMENTS:
        for sql in {sql for sql, _ in statements}:
            if sql in prepared:
                prepared.move_to_end(sql)
            elif len(sql) <= MAX_PREPARED:
                connection.prepare(wrapper, sql)
    try:
        libpq.enter_pipeline_mode()
        for sql, values in statements:
            connection.send(prepared.get(sql), sql, values)
            libpq.pipeline_sync()
        # A statement that fails at its commit has a result and then an error: the last one counts.
        results = [each[-1] for each in connection.receive(loop_requests.current(), syncs=len(statements))]
        libpq.exit_pipeline_mode()
    except BaseException:
        libpq.finish()  # further results could not be attributed
        raise
    for number, result in enumerate(results):
        if result.error_field(pq.DiagnosticField.SQLSTATE) == _UNKNOWN_STATEMENT:
            prepared.clear()
            sql, values = statements[number]
            results[number] = libpq.exec_params(sql, values)
    return results


def pipeline_in_transaction(wrapper: BaseDatabaseWrapper, statements: Sequence[Statement]) -> list[pq.abc.PGresult]:
    """The results of statements inside `atomic()` on a region's database. Raises the first error."""
    if not wrapper.in_atomic_block or wrapper.alias == DEFAULT_DB_ALIAS:
        raise RuntimeError("a pipeline in a transaction needs atomic() on a region's database")
    connection = opened(wrapper)
    begun = _has_begun(wrapper, connection.libpq)
    try:
        results = pipeline_in_order(wrapper, statements if begun else [(b"BEGIN", ()), *statements])
        return results if begun else results[1:]
    except psycopg.errors.InvalidSqlStatementName:
        connection.prepared.clear()
        raise


def pipeline_in_order(
    wrapper: BaseDatabaseWrapper, statements: Sequence[Statement], is_silent: Callable[[], bool] | None = None
) -> list[pq.abc.PGresult]:
    """Outside a transaction, each statement sees what is committed before. Raises the first error, and OperationalError
    once the server `is_silent`."""
    connection = opened(wrapper)
    libpq, prepared = connection.libpq, connection.prepared
    preparations: list[bytes | None] = []
    """For each result, the statement that it prepares, if any."""
    new_names: dict[bytes, bytes] = {}
    try:
        libpq.enter_pipeline_mode()
        for sql, values in statements:
            name = prepared.get(sql) or new_names.get(sql)
            if name is None and connection.should_prepare(wrapper, sql):
                name = new_names[sql] = name_of(sql)
                libpq.send_prepare(name, sql)
                preparations.append(sql)
            elif sql in prepared:
                prepared.move_to_end(sql)
            connection.send(name, sql, values)
            preparations.append(None)
        libpq.pipeline_sync()
        [results] = connection.receive(loop_requests.current(), syncs=1, is_silent=is_silent)
        libpq.exit_pipeline_mode()
    except BaseException:
        libpq.finish()  # further results could not be attributed
        raise
    wanted = []
    for result, preparation in zip(results, preparations, strict=False):  # behind an error there are fewer
        checked(wrapper, libpq, result)
        if preparation is None:
            wanted.append(result)
        else:
            connection.remember_prepared(wrapper, preparation)
    return wanted


def read_rows(result: pq.abc.PGresult) -> list[Row]:
    value = result.get_value
    width = range(result.nfields)
    return [tuple([value(row, column) for column in width]) for row in range(result.ntuples)]
