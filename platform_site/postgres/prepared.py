"""Runs prepared statements on a connection through libpq, and returns PostgreSQL's bytes.

In: the text of a statement (`$1`, `$2`, …) and its values as text bytes. Out: rows of bytes. Used by
`rows.query.context`, `rows.migrate.rule_impact`, the runs of functions, and on the control database by
`accounts.directory.user_lookup`. It uses libpq on psycopg's connection, because a cursor costs 20-35 µs more per
statement, and handles what a cursor would:

* Inside `atomic()` it begins the transaction: psycopg sends its BEGIN lazily with its own next statement, and a
  statement sent before it would commit by itself.
* A statement is prepared at its second use on a connection (a prepared list takes 41 KB in the server). Names are kept
  per connection, least recently used first out. psycopg prepares nothing on region connections (`settings`), so it
  never sends DEALLOCATE ALL there. On the control database it does, so inside a transaction nothing is prepared there.
  If a name vanishes (SQLSTATE 26000: a pooler, DISCARD ALL), the statement is run by its text and prepared again. A
  name is a digest of the text: behind a pooler it can be missing or taken (42P05), but never mean another statement.
* A backend caches the metadata of each table it has used (20 KB for 15 columns), so a connection that has used
  TABLES_PER_CONNECTION of them is replaced when its request or task ends.
* A dead connection is closed, so that the next statement opens another. A read outside of a transaction is then
  repeated; a write never is, because its outcome is unknown.

It also enforces row isolation: SQL over tenant tables that reaches a region's cursor without the row manager is refused
(`forbid_unruled_statements`).
"""

import re
import select
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from typing import Any, Final, TypeVar

import psycopg
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import pq
from psycopg.sql import Composable

from platform_site.postgres import replicas, sqlstates
from platform_site.postgres.availability import watch
from platform_site.postgres.replicas import Freshness

Row = tuple[bytes | None, ...]
"""One row of a result: the text of each column, None for NULL."""
Statement = tuple[bytes, Sequence[bytes | None]]
"""Its text and its values."""
Result = TypeVar("Result")

PREPARED_PER_CONNECTION: Final = 256
_SEEN_PER_CONNECTION: Final = 1024

_DONE: Final = frozenset({pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK})
_IDLE: Final = pq.TransactionStatus.IDLE
_TAKES_ONE_MORE: Final = frozenset({_IDLE, pq.TransactionStatus.INTRANS})
_BAD: Final = pq.ConnStatus.BAD
_NAME_GONE: Final = b"26000"
_LOOK_UP_MS: Final = 100
"""So long a wait for a pipeline lasts before it is asked whether it makes sense."""


class RowsClosed(RuntimeError):
    """SQL over a tenant's tables that did not come from the row manager. A programming error, never a client's."""


class _Prepared:
    """What one connection has prepared, and which tables it has met. Lives on psycopg's connection object, and as long:
    a dictionary of weak references would make one for each look."""

    __slots__ = ("names", "seen", "tables")

    def __init__(self) -> None:
        self.names: OrderedDict[bytes, bytes] = OrderedDict()
        self.seen: OrderedDict[bytes, None] = OrderedDict()
        self.tables: set[bytes] = set()


def run(alias: str, sql: bytes, values: Sequence[bytes | None]) -> list[Row]:
    """Every row that `sql` returns on the database `alias`, for values bound in order of their numbers.

    Joins the transaction of an enclosing `atomic()`, else commits by itself. Raises Django's database errors, with
    psycopg's as the cause.
    """
    return run_on(connections[alias], sql, values)


def run_on(connection: BaseDatabaseWrapper, sql: bytes, values: Sequence[bytes | None]) -> list[Row]:
    """As `run`, on a connection in hand: to look one up for the thread takes eight calls."""
    return _read(_watched(connection, _run, sql, values))


def run_each(connection: BaseDatabaseWrapper, statements: Sequence[Statement]) -> list[list[Row] | DatabaseError]:
    """As `run_on` for each statement, in one round trip: a transaction for each, in order.

    The result of a failed one is its error; the others continue. Outside of `atomic()`. Raises Django's
    OperationalError if the connection is lost: then their outcomes are unknown.
    """
    outcomes: list[list[Row] | DatabaseError] = []
    for result in _watched(connection, _run_each, statements):
        try:
            with connection.wrap_database_errors:
                outcomes.append(_read(_checked(connection, connection.connection.pgconn, result)))
        except DatabaseError as error:
            outcomes.append(error)
    return outcomes


def run_in_transaction(connection: BaseDatabaseWrapper, statements: Sequence[Statement]) -> list[list[Row]]:
    """As `run_on` for each statement, in one round trip, in the transaction of an enclosing `atomic()`.

    Raises the first error, which undoes the transaction.
    """
    return [_read(result) for result in _watched(connection, _run_in_transaction, statements)]


def _watched(connection: BaseDatabaseWrapper, work: Callable[..., Result], *arguments: Any) -> Result:
    """What `work(connection, *arguments)` returns, while the database's watch knows that this thread waits for it."""
    watched = watch(connection.alias)
    try:
        entered = watched.enter(connection)
        try:
            return work(connection, *arguments)
        except psycopg.Error:
            if _is_lost(connection):
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
    return _again_if_lost(connection, _run, sql, values)


def run_limited(
    connection: BaseDatabaseWrapper, sql: bytes, values: Sequence[bytes | None], limit_ms: int
) -> list[Row]:  # fmt: skip
    """As `run_again_if_lost`, with a statement timeout of its own, in one trip to the server."""
    return _again_if_lost(connection, _run_limited, sql, values, limit_ms)


def _again_if_lost(connection: BaseDatabaseWrapper, work: Callable[..., pq.abc.PGresult], *arguments: Any) -> list[Row]:
    was_open = connection.connection is not None
    try:
        return _read(_watched(connection, work, *arguments))
    except DatabaseError:
        # A connection that could not be opened is another matter: to try again at once would double the wait.
        if connection.in_atomic_block or connection.connection is not None or not was_open:
            raise
        return _read(_watched(connection, work, *arguments))


def run_on_replica(
    alias: str, freshness: Freshness, sql: bytes, values: Sequence[bytes | None], limit_ms: int | None = None
) -> list[Row] | None:  # fmt: skip
    """As `run`, for a statement that only reads, on a replica of `alias` that is as fresh as asked; notes which one.

    None where the primary must answer: no replica is fit, it has not come so far, or it failed (gone, a conflict with
    what it replays, a column that it does not have yet). Raises only what the primary would say as well, and as late:
    that the statement took too long.
    """
    chosen = replicas.region(alias).choose(freshness)
    if chosen is None:
        return None
    replica, position = chosen
    wrapper, watched, entered = replica.connection, watch(replica.name), False
    try:
        with wrapper.wrap_database_errors:
            entered = watched.enter(wrapper)
            limit = [] if limit_ms is None else [_limit(limit_ms)]
            reached, *_, result = _run_in_order(wrapper, [(_REACHED, ()), *limit, (sql, values)], replica.is_silent)
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
    [[at]] = _read(reached)
    if at is None or int(at) < position:
        replica.count("behind")
        return None
    found = _read(result)
    replica.count("answered" if found else "empty")
    if found:
        freshness.answered_by = replica.name
    return found


_REACHED: Final = replicas.REACHED.encode()
_PASSING: Final = frozenset({"22", "40", "42", "55"})
"""Classes of errors that say nothing against a replica: values, a conflict with what it replays, an older schema, a
lock that what it replays holds."""


def _run(wrapper: BaseDatabaseWrapper, sql: bytes, values: Sequence[bytes | None]) -> pq.abc.PGresult:
    libpq, prepared = _opened(wrapper)
    if wrapper.in_atomic_block:
        _begin(wrapper, libpq)
        if wrapper.alias == DEFAULT_DB_ALIAS:  # after a DEALLOCATE ALL the transaction would be lost
            return _checked(wrapper, libpq, libpq.exec_params(sql, values))
    name = prepared.names.get(sql)
    if name is not None:
        prepared.names.move_to_end(sql)
        result: pq.abc.PGresult = libpq.exec_prepared(name, values)
        if result.status in _DONE:
            return result
        if result.error_field(pq.DiagnosticField.SQLSTATE) != _NAME_GONE:
            return _checked(wrapper, libpq, result)
        prepared.names.clear()  # who deallocates one deallocates all
        if libpq.transaction_status != _IDLE:
            return _checked(wrapper, libpq, result)  # the transaction is lost; its owner may run it again
    if libpq.transaction_status in _TAKES_ONE_MORE and _comes_again(wrapper, prepared, sql):
        name = _prepare(wrapper, libpq, prepared, sql)
        return _checked(wrapper, libpq, libpq.exec_prepared(name, values))
    return _checked(wrapper, libpq, libpq.exec_params(sql, values))


def _begin(wrapper: BaseDatabaseWrapper, libpq: Any) -> None:
    """Begin the transaction of an enclosing `atomic()`, if it has not begun. Raises if it is broken."""
    if wrapper.needs_rollback:
        wrapper.validate_no_broken_transaction()
    if libpq.transaction_status == _IDLE:
        _checked(wrapper, libpq, libpq.exec_(b"BEGIN"))


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
            return _run_in_order(wrapper, statements, lambda: False)[-1]
        except psycopg.errors.InvalidSqlStatementName:
            _opened(wrapper)[1].names.clear()
            return _run_in_order(wrapper, statements, lambda: False)[-1]
    [[before]] = _read(_run(wrapper, _TIMEOUT, ()))
    _run(wrapper, *_limit(limit_ms))
    result = _run(wrapper, sql, values)  # after an error the rollback restores the timeout
    _run(wrapper, _LIMIT, [before])
    return result


def _opened(wrapper: Any) -> tuple[Any, _Prepared]:
    """libpq's connection of this BaseDatabaseWrapper, alive as far as we know, and what is prepared on it."""
    if wrapper.connection is None or not wrapper.health_check_done:  # as both would find out themselves
        wrapper.close_if_health_check_failed()
        wrapper.ensure_connection()
    connection: psycopg.Connection[Any] = wrapper.connection
    # psycopg's protocol does not say that a value may be None.
    return connection.pgconn, connection.__dict__.get("_rows_prepared") or _prepared_on(connection)


def _comes_again(wrapper: BaseDatabaseWrapper, prepared: _Prepared, sql: bytes) -> bool:
    """Whether to prepare the statement now: this connection has seen it once. If not, that is noted."""
    if sql in prepared.seen and settings.PREPARED_STATEMENTS:
        del prepared.seen[sql]
        return True
    if sql not in prepared.seen:
        _meet(wrapper, prepared, sql)
    prepared.seen[sql] = None
    if len(prepared.seen) > _SEEN_PER_CONNECTION:
        prepared.seen.popitem(last=False)
    return False


def _prepare(wrapper: BaseDatabaseWrapper, libpq: Any, prepared: _Prepared, sql: bytes) -> bytes:
    name = _name_of(sql)
    _checked(wrapper, libpq, libpq.prepare(name, sql))
    _keep(wrapper, libpq, prepared, sql)
    return name


def _name_of(sql: bytes) -> bytes:
    return b"rows_" + sha256(sql).hexdigest()[:40].encode()


def _keep(wrapper: BaseDatabaseWrapper, libpq: Any, prepared: _Prepared, sql: bytes) -> None:
    """Note that the statement is prepared."""
    prepared.names[sql] = _name_of(sql)
    if len(prepared.names) > PREPARED_PER_CONNECTION:
        _, oldest = prepared.names.popitem(last=False)
        _forget(wrapper, libpq, oldest)


def _run_each(wrapper: BaseDatabaseWrapper, statements: Sequence[Statement]) -> list[pq.abc.PGresult]:
    """The result of each, good or bad, by libpq's pipeline mode."""
    if wrapper.in_atomic_block:
        raise RuntimeError("a pipeline of transactions inside of a transaction")
    libpq, prepared = _opened(wrapper)
    if settings.PREPARED_STATEMENTS:
        for sql in {sql for sql, _ in statements} - prepared.names.keys():
            _prepare(wrapper, libpq, prepared, sql)
    try:
        libpq.enter_pipeline_mode()
        for sql, values in statements:
            _send(libpq, prepared.names.get(sql), sql, values)
            libpq.pipeline_sync()
        # What fails at its commit has a result and then an error, which is the last word.
        results = [each[-1] for each in _receive(libpq, len(statements))]
        libpq.exit_pipeline_mode()
    except BaseException:
        libpq.finish()  # further results could not be attributed
        raise
    for number, result in enumerate(results):
        if result.error_field(pq.DiagnosticField.SQLSTATE) == _NAME_GONE:
            prepared.names.clear()
            sql, values = statements[number]
            results[number] = libpq.exec_params(sql, values)
    return results


def _run_in_transaction(wrapper: BaseDatabaseWrapper, statements: Sequence[Statement]) -> list[pq.abc.PGresult]:
    if not wrapper.in_atomic_block or wrapper.alias == DEFAULT_DB_ALIAS:
        raise RuntimeError("a pipeline in a transaction needs atomic() on a region's database")
    libpq, prepared = _opened(wrapper)
    _begin(wrapper, libpq)
    try:
        return _run_in_order(wrapper, statements, lambda: False)
    except psycopg.errors.InvalidSqlStatementName:
        prepared.names.clear()
        raise


def _run_in_order(
    wrapper: BaseDatabaseWrapper, statements: Sequence[Statement], is_silent: Callable[[], bool]
) -> list[pq.abc.PGresult]:
    """The results of pipelined statements. Outside of a transaction each sees what is committed at its turn. Raises the
    first error; OperationalError once the server `is_silent`."""
    libpq, prepared = _opened(wrapper)
    made: list[bytes | None] = []
    """Of each result the statement that was prepared; None for a statement's own."""
    try:
        libpq.enter_pipeline_mode()
        for sql, values in statements:
            name = prepared.names.get(sql)
            if name is not None:
                prepared.names.move_to_end(sql)
            elif _comes_again(wrapper, prepared, sql):
                name = _name_of(sql)
                libpq.send_prepare(name, sql)
                made.append(sql)
            _send(libpq, name, sql, values)
            made.append(None)
        libpq.pipeline_sync()
        [results] = _receive(libpq, 1, is_silent)
        libpq.exit_pipeline_mode()
    except BaseException:
        libpq.finish()  # further results could not be attributed
        raise
    wanted = []
    for result, sql_made in zip(results, made, strict=False):  # behind an error there are fewer
        _checked(wrapper, libpq, result)
        if sql_made is None:
            wanted.append(result)
        else:
            _keep(wrapper, libpq, prepared, sql_made)
    return wanted


def _send(libpq: Any, name: bytes | None, sql: bytes, values: Sequence[bytes | None]) -> None:
    if name is None:
        libpq.send_query_params(sql, values)
    else:
        libpq.send_query_prepared(name, values)


def _receive(libpq: Any, syncs: int, is_silent: Callable[[], bool] | None = None) -> list[list[pq.abc.PGresult]]:
    """The results of a pipeline with so many syncs, those before each by themselves. Waits without the interpreter
    lock; raises psycopg's OperationalError if the connection is lost, or once the server `is_silent`."""
    readable, both = select.poll(), select.poll()
    readable.register(libpq.socket, select.POLLIN)
    both.register(libpq.socket, select.POLLIN | select.POLLOUT)

    def wait(until: select.poll) -> None:
        while not until.poll(_LOOK_UP_MS):
            if is_silent is not None and is_silent():
                raise psycopg.OperationalError("the database does not answer")
        libpq.consume_input()

    while libpq.flush():  # more than the socket takes at once
        wait(both)
    received: list[list[pq.abc.PGresult]] = [[]]
    while len(received) <= syncs:
        while libpq.is_busy():
            wait(readable)
        result = libpq.get_result()
        if result is None:  # between two statements, and for ever after the end of the connection
            if libpq.status == _BAD:
                raise psycopg.OperationalError("the connection to the database was lost")
        elif result.status == pq.ExecStatus.PIPELINE_SYNC:
            received.append([])
        else:
            received[-1].append(result)
    return received[:-1]


def _prepared_on(connection: "psycopg.Connection[Any]") -> _Prepared:
    found: _Prepared = connection.__dict__.setdefault("_rows_prepared", _Prepared())
    return found


def _meet(wrapper: BaseDatabaseWrapper, prepared: _Prepared, sql: bytes) -> None:
    prepared.tables.update(_QUALIFIED.findall(sql))
    if len(prepared.tables) > settings.TABLES_PER_CONNECTION:
        discard_when_idle(wrapper)


def discard_when_idle(wrapper: BaseDatabaseWrapper) -> None:
    """Have the connection closed when its request or task ends, as if it had reached its age."""
    wrapper.close_at = 0.0


_QUALIFIED: Final = re.compile(rb'"env_[0-9a-z]{26}"\."[^"]+"')


def _forget(wrapper: BaseDatabaseWrapper, libpq: Any, name: bytes) -> None:
    """Close a prepared statement by a protocol message, which poolers translate; the SQL command would reach another
    server connection. libpq before 17 only has the command."""
    done = libpq.close_prepared(name) if pq.version() >= 170000 else libpq.exec_(b'DEALLOCATE "%b"' % name)
    _checked(wrapper, libpq, done)


def _checked(wrapper: BaseDatabaseWrapper, libpq: Any, result: pq.abc.PGresult) -> pq.abc.PGresult:
    """The result itself, or its error raised as psycopg would."""
    if result.status in _DONE:
        return result
    if result.error_field(pq.DiagnosticField.SQLSTATE) is None:
        # libpq's own words, not PostgreSQL's: the connection broke, which its status does not always say yet.
        libpq.finish()
        wrapper.errors_occurred = True
        raise psycopg.OperationalError("the connection to the database was lost")
    raise psycopg.errors.error_from_result(result, "utf-8")


def _read(result: pq.abc.PGresult) -> list[Row]:
    value = result.get_value
    width = range(result.nfields)
    return [tuple([value(row, column) for column in width]) for row in range(result.ntuples)]


def _is_lost(wrapper: BaseDatabaseWrapper) -> bool:
    return wrapper.connection is not None and (wrapper.connection.closed or wrapper.connection.pgconn.status == _BAD)


# ── Row access ──────────────────────────────────────────────────────────────────────────────────────────────────────

_row_access_allowed: ContextVar[bool] = ContextVar("rows_door_is_open", default=False)
_TENANT_TABLE: Final = re.compile(r'\benv_[0-9a-z]{26}"?\s*\.')
_DEFINES: Final = re.compile(r"\s*(?:CREATE|ALTER|DROP|COMMENT|GRANT|REVOKE)\b", re.IGNORECASE)


@contextmanager
def row_access() -> Generator[None]:
    """For the row manager's own queries, and for DDL that must read or fill what it changes (`rows.migrate.apply`)."""
    token = _row_access_allowed.set(True)
    try:
        yield
    finally:
        _row_access_allowed.reset(token)


def forbid_unruled_statements(
    execute: Callable[[Any, Any, bool, dict[str, Any]], Any], sql: Any, params: Any, many: bool, context: dict[str, Any]
) -> Any:
    """Execute wrapper of every region connection. Raises RowsClosed for tenant tables outside of `row_access`.

    Definitions (CREATE SCHEMA, DROP TABLE) pass: they show no rows, and `projects`, a lower layer, creates and drops
    the schemas.
    """
    text = sql if isinstance(sql, str) else _spelled(sql)
    if _TENANT_TABLE.search(text) and not _DEFINES.match(text):
        if not _row_access_allowed.get():
            raise RowsClosed("rows are reached through the row manager: visible_to(principal), or unruled")
        wrapper = context["connection"]
        _meet(wrapper, _prepared_on(wrapper.connection), text.encode())
    return execute(sql, params, many, context)


def _spelled(statement: Any) -> str:
    """A statement that came as bytes or put together of psycopg's pieces, as it will be sent."""
    if isinstance(statement, Composable):
        return statement.as_string()
    return statement.decode(errors="replace") if isinstance(statement, bytes) else str(statement)


def guard_connection(sender: object, connection: BaseDatabaseWrapper, **_: object) -> None:
    """Receiver of `connection_created`: installs the check in a region's connection, once per wrapper."""
    if connection.alias in settings.REGION_DATABASES and forbid_unruled_statements not in connection.execute_wrappers:
        connection.execute_wrappers.append(forbid_unruled_statements)
