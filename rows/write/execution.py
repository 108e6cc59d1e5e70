"""Repeats a write until it wrote or locked a row, or a probe found the reason for its refusal."""

from collections.abc import Callable, Sequence

from django.db import DatabaseError

from platform_site.http.errors import Conflict
from platform_site.postgres.libpq import Row
from rows.query.context import MAX_RUNS, QueryContext
from rows.query.service import RowResult
from rows.query.sql import select
from rows.query.sql.select import ReadShape
from rows.query.sql.statement import ROW_ID, Statement
from rows.write.errors import error_of_constraint, raise_reason
from rows.write.pending_write import Named, PendingWrite, announce_recorded, result_of
from rows.write.statements import writes
from rows.write.statements.shapes import DeleteShape, UpdateShape, WriteShape


def persist(context: QueryContext, pending: PendingWrite[WriteShape], compile: Callable[..., Statement]) -> Row:
    """The row that the statement of `compile` wrote. Raises the reason if it cannot, and Conflict if others kept
    changing the row."""
    for _ in range(MAX_RUNS):
        wants = context.compiled.wants_events(pending.table.name, pending.shape.action)
        current = pending.with_event(context) if wants else pending
        if rows := write(context, current, context.statement(compile, current.shape), current.named):
            announce_recorded(context, current, rows[0])
            return rows[0]
        context.verify()
        raise_reason(context, current)
    raise Conflict


def write(context: QueryContext, pending: PendingWrite[WriteShape], statement: Statement, named: Named) -> list[Row]:
    try:
        return context.write(statement, named)
    except DatabaseError as error:
        if refusal := error_of_constraint(context, pending, error):
            raise refusal from error
        raise


def lock(context: QueryContext, pending: PendingWrite[UpdateShape | DeleteShape], columns: Sequence[str] = ()) -> Row:
    """The id of the row to update or delete, which is locked, and its cells in `columns`. Others are not read: the time
    that takes would reveal their length. Raises what keeps it from being changed."""
    for _ in range(MAX_RUNS):
        statement = context.statement(writes.lock_row, pending.shape, tuple(columns))
        if rows := context.write(statement, pending.named):
            return rows[0]
        context.verify()
        raise_reason(context, pending.with_event(context))
    raise Conflict


def read_back(context: QueryContext, table: str, row_id: str) -> RowResult:
    rows = context.read(context.statement(select.read, ReadShape(table)), {ROW_ID: row_id.encode()})
    return result_of(row_id, rows[0][0] if rows else None)
