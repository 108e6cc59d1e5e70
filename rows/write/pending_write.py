"""A pending write of one row: its shape, the values of its statements, and its event."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from platform_site.http.requests import current_request_id
from platform_site.identity import call_depth, ids
from platform_site.identity.signals import row_written
from platform_site.postgres.libpq import Row
from rows.query.context import QueryContext
from rows.query.service import RowResult, etag_of
from rows.rules.access import Access
from rows.schema import values
from rows.schema.model import Table
from rows.write.statements import conditions
from rows.write.statements.shapes import (
    DEPTH,
    EVENT_ID,
    REQUEST,
    EventIds,
    Ids,
    InsertShape,
    UpdateShape,
    WriteShape,
)
from rows.write.update_operators import GROWING, Change

Named = dict[Any, bytes | None]
"""The values of a statement's parameters, by their keys (`rows.write.statements`)."""
Shape = TypeVar("Shape", bound=WriteShape, covariant=True)


@dataclass(frozen=True, slots=True)
class PendingWrite(Generic[Shape]):
    """Made as `PendingWrite(…)`: calling an alias with a type argument is slower."""

    table: Table
    access: Access
    shape: Shape
    named: Named

    def with_computed_cells(self: "PendingUpdate", changes: Mapping[str, Change]) -> "PendingUpdate":
        operators = tuple(sorted((column, change.operator) for column, change in changes.items()))
        large = self.shape.large or any(operator in GROWING for _, operator in operators)
        named = dict(self.named)
        for change in changes.values():
            named |= change.bounds
        return replace(self, shape=replace(self.shape, computed=operators, large=large), named=named)

    def with_event(self, context: QueryContext) -> "PendingWrite[Shape]":
        return replace(self, shape=replace(self.shape, events=True), named=self.named | event_values(context))

    def needs_second_statement(self: "PendingWrite[InsertShape | UpdateShape]", context: QueryContext) -> bool:
        role_view = context.compiled.role_view(context.role_key)
        return conditions.needs_second_statement(role_view, self.shape)


PendingInsert = PendingWrite[InsertShape]
PendingUpdate = PendingWrite[UpdateShape]


def event_values(context: QueryContext) -> Named:
    request_id = current_request_id()
    return {
        EVENT_ID: ids.new("evt").encode(),
        REQUEST: None if request_id is None else request_id.encode(),
        DEPTH: b"%d" % call_depth.depth_here(context.environment.environment_id),
    }


def values_of_rows(rows: Sequence[str], part: int = 0) -> Named:
    """For a statement that writes many rows, each with an event."""
    return {
        Ids(part): values.wire("text[]", tuple(rows)),
        EventIds(part): values.wire("text[]", tuple(ids.new("evt") for _ in rows)),
    }


def announce(context: QueryContext, table: str, action: str, row_id: str, *, is_due: bool = True) -> None:
    """Notify higher layers of an event that the current statement has recorded. `is_due`: the relay may need it."""
    row_written.send(
        sender=None,
        environment=context.environment,
        table=table,
        action=action,
        row_id=row_id,
        using=context.compiled.alias,
        is_due=is_due,
    )


def announce_recorded(context: QueryContext, pending: PendingWrite[WriteShape], row: Row) -> None:
    """Announce the event recorded with `row`; remember if there were no subscribers."""
    if not pending.shape.events:
        return
    is_due = row[-1]
    if is_due is None:
        context.compiled.learn_interest(pending.table.name, pending.shape.action, False)
        return
    identity = row[0] if pending.shape.action == "delete" else row[1]
    announce(context, pending.table.name, pending.shape.action, (identity or b"").decode(), is_due=is_due == b"t")


def result_of(row_id: str, body: bytes | None) -> RowResult:
    """Only the id of a row that the principal may not read any more."""
    if body is None:
        return RowResult(row_id, b'{"id":"%s"}' % row_id.encode(), None)
    return RowResult(row_id, body, etag_of(body))
