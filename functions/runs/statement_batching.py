"""Group commit: while one call's statement runs, the same statements of others are collected and sent together in the
next round trip, which costs more than their work. Each statement is its own transaction and fails by itself."""

import os
import threading
from collections import defaultdict, deque
from collections.abc import Mapping
from itertools import count
from typing import Final

from django.db import DatabaseError, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from platform_site.concurrency import loop_requests
from platform_site.http.errors import Unavailable
from platform_site.postgres import prepared
from platform_site.postgres.libpq import Row, Statement
from platform_site.postgres.sql_files import PreparedStatement, Value

MAX_BATCH: Final = 16
_DURABLE: Final = b"SELECT pg_logical_emit_message(true, 'functions', '')"
"""Its commit waits for the disk, and so for all earlier records of the log."""


def wait_until_durable(using: str) -> None:
    """Wait until all earlier commits of this database are on disk."""
    prepared.run(using, _DURABLE, [])


class StatementBatcher:
    """A statement with two more parameters: `is_asynchronous`, whether its commit need not wait for the disk, and
    `mark`, which it returns in the last column of each row. The mark proves that each outcome goes to its own caller,
    since callers belong to different tenants. Thread-safe."""

    def __init__(self, statement: PreparedStatement, *, is_durable: bool) -> None:
        """`is_durable`: `run` returns when the commit is on disk; otherwise as soon as others can see it."""
        self.statement, self.is_durable = statement, is_durable
        self._reset()
        # The child has none of the parent's threads, for which it would wait.
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._queues: defaultdict[str, _Queue] = defaultdict(_Queue)

    def run(self, using: str, parameters: Mapping[str, Value]) -> list[Row]:
        """As `prepared.run`, without the last column. In a transaction the statement is sent alone, as a part of it."""
        # A request on the loop is in no transaction, and borrows a connection only to lead.
        if loop_requests.current() is None and connections[using].in_atomic_block:
            return _rows_of(b"", prepared.run(using, *self._bound(parameters, b"f", b"")))
        ticket = _Ticket(parameters)
        queue = self._queues[using]
        with self._lock:
            if queue.is_running:
                queue.waiting.append(ticket)
            else:
                queue.is_running, ticket.batch = True, [ticket]
        if ticket.batch is None:
            ticket.gate.wait()
        if ticket.batch is not None:
            self._lead(using, queue, ticket.batch)
        if isinstance(ticket.outcome, BaseException):
            raise ticket.outcome
        return ticket.outcome

    def _lead(self, using: str, queue: "_Queue", batch: list["_Ticket"]) -> None:
        try:
            outcomes = self._outcomes(connections[using], batch)
        except BaseException as error:  # of the connection, or a bug: no thread may wait for ever
            outcomes = [error, *(_error_for_others(error) for _ in batch[1:])]
        finally:
            with self._lock:
                following = [queue.waiting.popleft() for _ in range(min(MAX_BATCH, len(queue.waiting)))]
                queue.is_running = bool(following)
            if following:
                following[0].batch = following
                following[0].gate.open()
        for ticket, outcome in zip(batch, outcomes, strict=True):
            ticket.outcome = outcome
            if ticket is not batch[0]:
                ticket.gate.open()

    def _outcomes(self, connection: BaseDatabaseWrapper, batch: list["_Ticket"]) -> "list[_Outcome]":
        if len(batch) == 1:  # the usual case, and cheaper than the general one
            mark = b"%d" % next(_marks)
            statement = self._bound(batch[0].parameters, b"f" if self.is_durable else b"t", mark)
            return [_rows_of(mark, prepared.run_on(connection, *statement))]
        marks = [b"%d" % next(_marks) for _ in batch]
        statements: list[Statement] = [
            self._bound(each.parameters, b"t", mark) for each, mark in zip(batch, marks, strict=True)
        ]
        outcomes: list[list[Row] | DatabaseError]
        if not self.is_durable:
            outcomes = prepared.run_each(connection, statements)
        else:
            *outcomes, durable = prepared.run_each(connection, [*statements, (_DURABLE, [])])
            if isinstance(durable, DatabaseError):
                raise durable
        return [
            outcome if isinstance(outcome, DatabaseError) else _rows_of(mark, outcome)
            for mark, outcome in zip(marks, outcomes, strict=True)
        ]

    def _bound(self, parameters: Mapping[str, Value], is_asynchronous: bytes, mark: bytes) -> Statement:
        return self.statement.bind({**parameters, "is_asynchronous": is_asynchronous, "mark": mark})


_marks: Final = count(1)


def _rows_of(mark: bytes, rows: list[Row]) -> list[Row]:
    for row in rows:
        if row[-1] != mark:
            raise RuntimeError("a statement got the rows of another one")
    return [row[:-1] for row in rows]


_Outcome = list[Row] | BaseException


def _error_for_others(error: BaseException) -> Exception:
    """The leader's error for another call of the batch: each thread raises its own, with PostgreSQL's as the cause."""
    if isinstance(error, Unavailable):  # it got no connection
        return Unavailable(error.text)
    copy = OperationalError(*error.args)
    copy.__cause__ = error.__cause__ if isinstance(error, DatabaseError) else error
    return copy


class _Queue:
    def __init__(self) -> None:
        self.is_running = False
        self.waiting: deque[_Ticket] = deque()


class _Ticket:
    """The gate opens when there is an outcome, or when this call becomes the leader."""

    __slots__ = ("batch", "gate", "outcome", "parameters")

    def __init__(self, parameters: Mapping[str, Value]) -> None:
        self.parameters = parameters
        self.batch: list[_Ticket] | None = None
        self.outcome: _Outcome = []
        self.gate = loop_requests.Gate()
