"""Statements through libpq on psycopg's connection, because a cursor costs 20-35 µs more. Inside `atomic()` it sends
psycopg's lazy BEGIN first. A statement is prepared at its second use (a list takes 41 KB in the server, a long filter
130 times its length), unless it is longer than MAX_PREPARED. Its name is a digest of its text, so behind a pooler the
name may be unknown or taken, but never means another statement. In transactions of the control database nothing is
prepared: after a DEALLOCATE ALL by psycopg, an unknown name would abort them. A backend caches each table (20 KB), so a
connection with TABLES_PER_CONNECTION of them is replaced."""

import re
import select
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, Final

import psycopg
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import pq

from platform_site.concurrency import loop_requests
from platform_site.concurrency.loop_requests import LoopRequest, Readiness

Row = tuple[bytes | None, ...]
Statement = tuple[bytes, Sequence[bytes | None]]

PREPARED_PER_CONNECTION: Final = 256
PREPARED_BYTES_PER_CONNECTION: Final = 512 * 1024
MAX_PREPARED: Final = 16 * 1024
_SEEN_PER_CONNECTION: Final = 1024

_DONE: Final = frozenset({pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK})
_IDLE: Final = pq.TransactionStatus.IDLE
_TAKES_ONE_MORE: Final = frozenset({_IDLE, pq.TransactionStatus.INTRANS})
_BAD: Final = pq.ConnStatus.BAD
_UNKNOWN_STATEMENT: Final = b"26000"
_POLL_MS: Final = 100
_LOST: Final = "the connection to the database was lost"


class _Prepared:
    """A connection's prepared statements and used tables; an attribute of psycopg's connection."""

    def __init__(self) -> None:
        self.names: OrderedDict[bytes, bytes] = OrderedDict()
        self.seen: OrderedDict[bytes, None] = OrderedDict()
        self.tables: set[bytes] = set()
        self.readiness: Readiness | None = None

    def close(self) -> None:
        if self.readiness is not None:
            self.readiness.close()

    def readiness_on(self, loop: Any, libpq: Any) -> Readiness:
        if self.readiness is None or not self.readiness.is_open:
            self.readiness = Readiness(loop, libpq.socket)
        return self.readiness


def execute(wrapper: BaseDatabaseWrapper, sql: bytes, values: Sequence[bytes | None]) -> pq.abc.PGresult:
    """Run a statement, prepared if it was used before, and return its result. Inside `atomic()` it is part of that
    transaction. Raises psycopg's errors; a statement that PostgreSQL no longer knows is run again, unless that has
    aborted a transaction."""
    libpq, prepared = opened(wrapper)
    if wrapper.in_atomic_block:
        if not _has_begun(wrapper, libpq):
            checked(wrapper, libpq, libpq.exec_(b"BEGIN"))
        if wrapper.alias == DEFAULT_DB_ALIAS:  # after a DEALLOCATE ALL the transaction would be lost
            result = _run(libpq, prepared, libpq.exec_params, libpq.send_query_params, sql, values)
            return checked(wrapper, libpq, result)
    name = prepared.names.get(sql)
    if name is not None:
        prepared.names.move_to_end(sql)
        result = _run(libpq, prepared, libpq.exec_prepared, libpq.send_query_prepared, name, values)
        if result.status in _DONE:
            return result
        if result.error_field(pq.DiagnosticField.SQLSTATE) != _UNKNOWN_STATEMENT:
            return checked(wrapper, libpq, result)
        prepared.names.clear()  # DEALLOCATE ALL has dropped all of them
        if libpq.transaction_status != _IDLE:
            return checked(wrapper, libpq, result)  # the transaction is lost; its owner may run it again
    if libpq.transaction_status in _TAKES_ONE_MORE and _should_prepare(wrapper, prepared, sql):
        name = _prepare(wrapper, libpq, prepared, sql)
        result = _run(libpq, prepared, libpq.exec_prepared, libpq.send_query_prepared, name, values)
    else:
        result = _run(libpq, prepared, libpq.exec_params, libpq.send_query_params, sql, values)
    return checked(wrapper, libpq, result)


def _run(
    libpq: Any, prepared: _Prepared, call: Callable[..., pq.abc.PGresult], send: Callable[..., None], *arguments: Any
) -> pq.abc.PGresult:
    """The result of one statement: of `call`, which blocks, in a thread; of `send` and a wait on the loop."""
    request = loop_requests.current()
    if request is None:
        return call(*arguments)
    send(*arguments)
    try:
        [results] = _receive(libpq, prepared, request)
        return results[-1]
    except BaseException:
        libpq.finish()  # its result would be taken for the next one's
        raise


def _has_begun(wrapper: BaseDatabaseWrapper, libpq: Any) -> bool:
    """Whether the transaction of an enclosing `atomic()` has begun. Raises if it is broken."""
    if wrapper.needs_rollback:
        wrapper.validate_no_broken_transaction()
    return bool(libpq.transaction_status != _IDLE)


def opened(wrapper: Any) -> tuple[Any, _Prepared]:
    if wrapper.connection is None or not wrapper.health_check_done:  # otherwise both calls do nothing
        wrapper.close_if_health_check_failed()
        wrapper.ensure_connection()
    connection: psycopg.Connection[Any] = wrapper.connection
    # psycopg's protocol does not say that a value may be None.
    return connection.pgconn, connection.__dict__.get("_rows_prepared") or prepared_on(connection)


def _should_prepare(wrapper: BaseDatabaseWrapper, prepared: _Prepared, sql: bytes) -> bool:
    """Whether this is the second use on the connection. Remembers the first one, and its tables."""
    seen = prepared.seen
    if sql in seen and settings.PREPARED_STATEMENTS:
        del seen[sql]
        return True
    if sql not in seen:
        note_tables(wrapper, prepared, sql)
    if len(sql) <= MAX_PREPARED:
        seen[sql] = None
        if len(seen) > _SEEN_PER_CONNECTION:
            seen.popitem(last=False)
    return False


def _prepare(wrapper: BaseDatabaseWrapper, libpq: Any, prepared: _Prepared, sql: bytes) -> bytes:
    name = _name_of(sql)
    checked(wrapper, libpq, _run(libpq, prepared, libpq.prepare, libpq.send_prepare, name, sql))
    _remember_prepared(wrapper, libpq, prepared, sql)
    return name


def _name_of(sql: bytes) -> bytes:
    return b"rows_" + sha256(sql).hexdigest()[:40].encode()


def _remember_prepared(wrapper: BaseDatabaseWrapper, libpq: Any, prepared: _Prepared, sql: bytes) -> None:
    names = prepared.names
    names[sql] = _name_of(sql)
    while len(names) > PREPARED_PER_CONNECTION or sum(map(len, names)) > PREPARED_BYTES_PER_CONNECTION:
        _, oldest = names.popitem(last=False)
        # A protocol message instead of DEALLOCATE: poolers translate it.
        checked(wrapper, libpq, _run(libpq, prepared, libpq.close_prepared, libpq.send_close_prepared, oldest))


def pipeline_each(wrapper: BaseDatabaseWrapper, statements: Sequence[Statement]) -> list[pq.abc.PGresult]:
    """Run the statements in one pipeline, each in its own transaction. Returns the result or error of each."""
    if wrapper.in_atomic_block:
        raise RuntimeError("a pipeline of transactions inside of a transaction")
    libpq, prepared = opened(wrapper)
    if settings.PREPARED_STATEMENTS:
        for sql in {sql for sql, _ in statements}:
            if sql in prepared.names:
                prepared.names.move_to_end(sql)
            elif len(sql) <= MAX_PREPARED:
                _prepare(wrapper, libpq, prepared, sql)
    try:
        libpq.enter_pipeline_mode()
        for sql, values in statements:
            _send(libpq, prepared.names.get(sql), sql, values)
            libpq.pipeline_sync()
        # A statement that fails at its commit has a result and then an error: the last one counts.
        results = [each[-1] for each in _receive(libpq, prepared, loop_requests.current(), syncs=len(statements))]
        libpq.exit_pipeline_mode()
    except BaseException:
        libpq.finish()  # further results could not be attributed
        raise
    for number, result in enumerate(results):
        if result.error_field(pq.DiagnosticField.SQLSTATE) == _UNKNOWN_STATEMENT:
            prepared.names.clear()
            sql, values = statements[number]
            results[number] = libpq.exec_params(sql, values)
    return results


def pipeline_in_transaction(wrapper: BaseDatabaseWrapper, statements: Sequence[Statement]) -> list[pq.abc.PGresult]:
    """The results of the statements, pipelined inside `atomic()` on a region's database. Raises the first error."""
    if not wrapper.in_atomic_block or wrapper.alias == DEFAULT_DB_ALIAS:
        raise RuntimeError("a pipeline in a transaction needs atomic() on a region's database")
    libpq, prepared = opened(wrapper)
    begun = _has_begun(wrapper, libpq)
    try:
        results = pipeline_in_order(wrapper, statements if begun else [(b"BEGIN", ()), *statements])
        return results if begun else results[1:]
    except psycopg.errors.InvalidSqlStatementName:
        prepared.names.clear()
        raise


def pipeline_in_order(
    wrapper: BaseDatabaseWrapper, statements: Sequence[Statement], is_silent: Callable[[], bool] | None = None
) -> list[pq.abc.PGresult]:
    """The results of pipelined statements; outside a transaction each sees what is committed before. Raises the first
    error; OperationalError once the server `is_silent`."""
    libpq, prepared = opened(wrapper)
    made: list[bytes | None] = []
    just_made: dict[bytes, bytes] = {}
    """Names that this pipeline prepares, until the server confirms."""
    try:
        libpq.enter_pipeline_mode()
        for sql, values in statements:
            name = prepared.names.get(sql) or just_made.get(sql)
            if name is None and _should_prepare(wrapper, prepared, sql):
                name = just_made[sql] = _name_of(sql)
                libpq.send_prepare(name, sql)
                made.append(sql)
            elif sql in prepared.names:
                prepared.names.move_to_end(sql)
            _send(libpq, name, sql, values)
            made.append(None)
        libpq.pipeline_sync()
        [results] = _receive(libpq, prepared, loop_requests.current(), syncs=1, is_silent=is_silent)
        libpq.exit_pipeline_mode()
    except BaseException:
        libpq.finish()  # further results could not be attributed
        raise
    wanted = []
    for result, sql_made in zip(results, made, strict=False):  # behind an error there are fewer
        checked(wrapper, libpq, result)
        if sql_made is None:
            wanted.append(result)
        else:
            _remember_prepared(wrapper, libpq, prepared, sql_made)
    return wanted


def _send(libpq: Any, name: bytes | None, sql: bytes, values: Sequence[bytes | None]) -> None:
    if name is None:
        libpq.send_query_params(sql, values)
    else:
        libpq.send_query_prepared(name, values)


def _receive(
    libpq: Any,
    prepared: _Prepared,
    request: LoopRequest | None,
    *,
    syncs: int = 0,
    is_silent: Callable[[], bool] | None = None,
) -> list[list[pq.abc.PGresult]]:
    """Send what is queued, and return the results between the pipeline's `syncs`, or all of one statement. Raises
    OperationalError if the connection is lost or the server `is_silent`."""
    readiness = None if request is None else prepared.readiness_on(request.loop, libpq)
    seconds = None if is_silent is None else _POLL_MS / 1000
    has_unsent, has_waited = True, False
    received: list[list[pq.abc.PGresult]] = [[]]
    while True:
        has_unsent = has_unsent and bool(libpq.flush())  # more than the socket takes at once
        if has_unsent or libpq.is_busy():
            if libpq.status == _BAD:
                raise psycopg.OperationalError(_LOST)
            if request is None or readiness is None:
                is_ready = _poll(libpq.socket, writable=has_unsent)
            else:
                again = has_waited and not has_unsent
                is_ready = readiness.wait(request, writable=has_unsent, again=again, seconds=seconds)
            if is_ready:
                has_waited = True
                libpq.consume_input()
            elif is_silent is not None and is_silent():
                raise psycopg.OperationalError("the database does not answer")
        elif (result := libpq.get_result()) is None:  # after each statement, and for ever after the connection's end
            if libpq.status == _BAD:
                raise psycopg.OperationalError(_LOST)
            if not syncs:
                return received
        elif result.status == pq.ExecStatus.PIPELINE_SYNC:
            if len(received) == syncs:
                return received
            received.append([])
        else:
            received[-1].append(result)


def _poll(descriptor: int, *, writable: bool) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | (select.POLLOUT if writable else 0))
    return bool(poll.poll(_POLL_MS))


def prepared_on(connection: "psycopg.Connection[Any]") -> _Prepared:
    found: _Prepared | None = connection.__dict__.get("_rows_prepared")
    return connection.__dict__.setdefault("_rows_prepared", _Prepared()) if found is None else found


def note_tables(wrapper: BaseDatabaseWrapper, prepared: _Prepared, sql: bytes) -> None:
    prepared.tables.update(_QUALIFIED.findall(sql))
    if len(prepared.tables) > settings.TABLES_PER_CONNECTION:
        discard_when_idle(wrapper)


def discard_when_idle(wrapper: BaseDatabaseWrapper) -> None:
    """Close the connection when its request or task ends."""
    wrapper.close_at = 0.0


_QUALIFIED: Final = re.compile(rb'"env_[0-9a-z]{26}"\."[^"]+"')


def checked(wrapper: BaseDatabaseWrapper, libpq: Any, result: pq.abc.PGresult) -> pq.abc.PGresult:
    if result.status in _DONE:
        return result
    if result.error_field(pq.DiagnosticField.SQLSTATE) is None:
        # Without SQLSTATE the error is libpq's: the connection is broken, even if its status does not show that yet.
        libpq.finish()
        wrapper.errors_occurred = True
        raise psycopg.OperationalError(_LOST)
    raise psycopg.errors.error_from_result(result, "utf-8")


def read_rows(result: pq.abc.PGresult) -> list[Row]:
    value = result.get_value
    width = range(result.nfields)
    return [tuple([value(row, column) for column in width]) for row in range(result.ntuples)]
