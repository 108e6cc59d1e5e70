"""Inserts several rows in one round trip, by libpq's pipeline mode; rows of the same shape by one statement. A pipeline
cannot decide anything between two statements, so it serves the usual case that every row is inserted."""

from collections.abc import Sequence

from django.db import DatabaseError, OperationalError

from platform_site.postgres.sqlstates import TOO_LONG_FOR_AN_INDEX, sqlstate
from rows.query.context import QueryContext
from rows.query.service import RowResult
from rows.query.sql.statement import ROW_ID, Cell, Statement
from rows.schema import values
from rows.write.pending_write import Named, PendingInsert, announce_recorded, result_of
from rows.write.statements import writes
from rows.write.statements.conditions import depends_on_insert_order
from rows.write.statements.shapes import EVENT_ID, EventIds, InsertShape


class NotInOneTrip(Exception):
    """A row was refused. Roll the transaction back and insert one row after the other, which finds the reason."""


def insert_in_one_trip(context: QueryContext, pending_writes: Sequence[PendingInsert]) -> list[RowResult]:
    """In a transaction, for rows that need no second statement. Raises NotInOneTrip if a row is refused, and
    OperationalError for a lost connection, a deadlock or a timeout."""
    wants = context.compiled.wants_events
    current = [
        pending.with_event(context) if wants(pending.table.name, "insert") else pending for pending in pending_writes
    ]
    try:
        results = context.write_all([_statement(context, group) for group in _groups(context, current)])
    except DatabaseError as error:
        if isinstance(error, OperationalError) and sqlstate(error) != TOO_LONG_FOR_AN_INDEX:
            raise
        raise NotInOneTrip from error
    rows = {row[1]: row for result in results for row in result}
    if len(rows) < len(current):
        raise NotInOneTrip
    answers = []
    for pending in current:
        row = rows[pending.named[ROW_ID]]
        announce_recorded(context, pending, row)
        answers.append(result_of((row[1] or b"").decode(), row[0]))
    return answers


def _groups(context: QueryContext, pending_writes: Sequence[PendingInsert]) -> list[list[PendingInsert]]:
    """The inserts of each statement: those of the same shape, but a row behind those that it refers to, and each by
    itself where their order matters. Raises NotInOneTrip if a row refers to a later one."""
    if len(pending_writes) == 1 or depends_on_insert_order(
        context.compiled.role_view(context.role_key), {pending.table.name for pending in pending_writes}
    ):
        return [[pending] for pending in pending_writes]
    groups: list[list[PendingInsert]] = []
    last_of_shape: dict[InsertShape, int] = {}
    referred_to: set[bytes | None] = set()
    for pending in pending_writes:
        if pending.named[ROW_ID] in referred_to:
            raise NotInOneTrip
        referred = set()
        for column in pending.table.columns.values():
            if column.references is not None:
                referred.add(column.references)
                referred_to.add(pending.named.get(Cell(column.name)))
        number = last_of_shape.get(pending.shape)
        if number is not None and referred.isdisjoint(group[0].table.name for group in groups[number:]):
            groups[number].append(pending)
        else:
            last_of_shape[pending.shape] = len(groups)
            groups.append([pending])
    return groups


def _statement(context: QueryContext, group: Sequence[PendingInsert]) -> tuple[Statement, Named]:
    first, shape = group[0], group[0].shape
    if len(group) == 1:
        return context.statement(writes.insert, shape), first.named
    named: Named = {}
    for key, value in first.named.items():
        if key == EVENT_ID:
            named[EventIds()] = values.wire_texts([pending.named[key] for pending in group])
        elif key == ROW_ID or isinstance(key, Cell):
            named[key] = values.wire_texts([pending.named[key] for pending in group])
        else:
            named[key] = value
    return context.statement(writes.insert_many, shape), named
