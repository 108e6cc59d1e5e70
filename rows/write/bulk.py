"""Updates or deletes all rows that match a filter, in one transaction. First the rows are found and locked in the order
of their ids, by the filter as the caller may read it and the action's rule; then they are written, each with its
event. docs/reference/rows.md."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from django.db import transaction

from platform_site.http import cursors
from platform_site.http.errors import ValidationFailed
from rows.query import service as query_service
from rows.query import where as query_where
from rows.query.context import QueryContext
from rows.query.params import DEFAULT_ORDER
from rows.query.sql.statement import LIMIT, After, Cell
from rows.schema.model import MAX_ERRORS, Table
from rows.write import body_parsing
from rows.write import service as write_service
from rows.write.errors import WriteRefused, unknown_users
from rows.write.execution import write
from rows.write.pending_write import PendingUpdate, PendingWrite, announce, values_of_rows
from rows.write.references import referential_actions
from rows.write.row_size import is_large
from rows.write.statements import writes
from rows.write.statements.shapes import UpdateShape

MAX_ROWS: Final = 1_000
_KIND: Final = "rows to change"
QUERY_FIELDS: Final = frozenset({"where", "limit", "cursor"})


@dataclass(frozen=True, slots=True)
class BulkQuery:
    """`where` is JSON text or an object, and required: an empty one matches all rows. With `limit` (1 to MAX_ROWS) more
    rows may match; `cursor` continues."""

    where: Any
    limit: int | None = None
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Changed:
    ids: list[str]
    next_cursor: str | None


def update(context: QueryContext, name: str, query: BulkQuery, body: Any) -> Changed:
    """Raises NotFound (no such table for this principal, or no right to update it), and ValidationFailed naming `where`
    (missing, invalid, or matching more than MAX_ROWS without a limit), `cursor` or a column. Messages about one row
    begin with its id."""
    table, access = context.table(name)
    if access.read is None or access.update is None:
        raise WriteRefused
    cells, changes, errors = body_parsing.read_update(
        table, body, writable=access.update.columns, readable=context.resolver.columns(name)
    )
    if len(errors) < MAX_ERRORS:
        errors += unknown_users(context, table, cells)
    if errors:
        raise ValidationFailed(fields=errors)
    named = {Cell(column): cell for column, cell in cells.items()}
    pending = PendingWrite(table, access, UpdateShape(name, tuple(sorted(cells))), named).with_computed_cells(changes)
    with transaction.atomic(using=context.compiled.alias):
        chosen = _choose(context, table, "update", query)
        if not pending.named:
            return chosen
        written = _update_at_once(context, pending, chosen.ids)
        for row_id in chosen.ids:
            if row_id not in written:
                try:  # raises the reason, or writes what one statement cannot
                    write_service.update(context, name, row_id, body)
                except ValidationFailed as error:
                    fields = [replace(field, message=f"{row_id}: {field.message}") for field in error.fields]
                    raise ValidationFailed(fields=fields) from error
    return chosen


def _update_at_once(context: QueryContext, pending: PendingUpdate, ids: Sequence[str]) -> frozenset[str]:
    """The rows that one statement wrote: none that is refused, and none at all if each has to be checked by itself."""
    table = pending.table
    if not ids or is_large(table, pending.named) or pending.needs_second_statement(context):
        return frozenset()
    wants = context.compiled.wants_events(table.name, "update")
    current = pending.with_event(context) if wants else pending
    named = current.named | values_of_rows(ids)
    rows = write(context, pending, context.statement(writes.bulk_update, current.shape), named)
    written = frozenset((cell or b"").decode() for (cell,) in rows)
    if wants:
        for row_id in written:
            announce(context, table.name, "update", row_id)
    return written


def delete(context: QueryContext, name: str, query: BulkQuery) -> Changed:
    """With referrers. Raises as `update`, and Conflict as `write_service.delete`."""
    table, access = context.table(name)
    if access.read is None or access.delete is None:
        raise WriteRefused
    with transaction.atomic(using=context.compiled.alias):
        chosen = _choose(context, table, "delete", query)
        if chosen.ids:
            referential_actions.delete_with_referrers(context, table, chosen.ids)
    return chosen


def _choose(context: QueryContext, table: Table, action: Literal["update", "delete"], query: BulkQuery) -> Changed:
    if query.where is None:
        message = 'Name the rows to change, such as where={"done": true}; where={} means all rows.'
        raise ValidationFailed.of("where", "required", message)
    where = query_where.parse_where(query.where, table.name, context.resolver)
    facts = [action, *query_service.cursor_facts(context, table, where, DEFAULT_ORDER)]
    most = query.limit or MAX_ROWS
    named: dict[Any, bytes | None] = {LIMIT: b"%d" % (most + 1)}
    if query.cursor is not None:
        [last] = cursors.decode(_KIND, facts, query.cursor)
        named[After(0)] = str(last).encode()
    statement = context.statement(writes.select_rows, table.name, action, where.shape, query.cursor is not None)
    rows = context.write(statement, named, where.wire)
    if not rows:
        context.verify()
    ids = [(cell or b"").decode() for (cell,) in rows]
    if len(ids) <= most:
        return Changed(ids, None)
    if query.limit is None:
        message = (
            f"More than {MAX_ROWS:,} rows match, and nothing was changed. Narrow the filter, or send limit={MAX_ROWS} "
            "and continue with the next_cursor of each response."
        )
        raise ValidationFailed.of("where", "too_many", message)
    return Changed(ids[:most], cursors.encode(_KIND, facts, [ids[most - 1]]))
