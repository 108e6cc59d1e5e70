"""Inserts several rows in one round trip, by libpq's pipeline mode.

A pipeline cannot decide anything between two statements, so it serves the usual case that every row is inserted. After
NotInOneTrip the caller rolls the transaction back and inserts one row after the other, which finds the reason.
"""

from collections.abc import Sequence

from django.db import DatabaseError, OperationalError

from platform_site.postgres.sqlstates import TOO_LONG_FOR_AN_INDEX, sqlstate
from rows.query.context import QueryContext
from rows.query.service import RowAnswer
from rows.write.pending_write import PendingWrite, announce_recorded, answer_of
from rows.write.statements import conditions, writes
from rows.write.statements.shapes import InsertShape


class NotInOneTrip(Exception):
    """A row was refused. The transaction has to be undone."""


def is_possible(context: QueryContext, attempt: PendingWrite) -> bool:
    """Whether one statement inserts the row: no rule asks about the table as it is after the write."""
    assert isinstance(attempt.shape, InsertShape)  # noqa: S101 - for the type checker
    role_view = context.environment.open_role_view(context.role_key)
    return not conditions.uses_old_row(role_view, attempt.table.name, attempt.shape)


def insert_in_one_trip(context: QueryContext, attempts: Sequence[PendingWrite]) -> list[RowAnswer]:
    """The inserted rows, in the order of `attempts`, for each of which it `is_possible`. Inside of a transaction.

    Raises NotInOneTrip if a row is refused, and OperationalError for a lost connection, a deadlock or a timeout.
    """
    wants = context.environment.wants_events
    current = [attempt.with_events(wants(attempt.table.name, "insert")) for attempt in attempts]
    try:
        results = context.write_all(
            [(context.statement(attempt.shape, writes.insert), attempt.named) for attempt in current]
        )
    except DatabaseError as error:
        if isinstance(error, OperationalError) and sqlstate(error) != TOO_LONG_FOR_AN_INDEX:
            raise
        raise NotInOneTrip from error
    if not all(results):
        raise NotInOneTrip
    answers = []
    for attempt, [row] in zip(current, results, strict=True):
        announce_recorded(context, attempt, row)
        answers.append(answer_of((row[1] or b"").decode(), row[0]))
    return answers
