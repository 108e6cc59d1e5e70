"""Updates and deletes a row: one statement where the rules allow it, otherwise one transaction. If the statement wrote
nothing, `rows.write.errors` finds the reason; if there is none any more because of a concurrent change, the write is
tried again. Contract section 4.8."""

from collections.abc import Sequence
from typing import Any

from django.db import transaction

from platform_site.http.errors import ValidationFailed
from rows.query.context import QueryContext
from rows.query.service import RowResult
from rows.query.sql import select
from rows.query.sql.select import ReadShape
from rows.query.sql.statement import ROW_ID, Cell
from rows.schema import column_values, values
from rows.schema.model import MAX_ERRORS
from rows.write import body_parsing
from rows.write.errors import WriteRefused, check_written, run_probe, unknown_users, unseen_references
from rows.write.execution import lock, persist, read_back
from rows.write.pending_write import Named, PendingUpdate, PendingWrite, result_of
from rows.write.references import referential_actions
from rows.write.row_size import is_large
from rows.write.statements import conditions, writes
from rows.write.statements.shapes import ETAGS, DeleteShape, OldCell, UpdateShape


def update(
    context: QueryContext,
    name: str,
    row_id: str,
    body: Any,
    *,
    matches: Sequence[str] | None = None,
) -> RowResult:
    """`matches` are the hex digests of an If-Match. An empty `body` changes nothing and records no event. Raises
    NotFound, PreconditionFailed and ValidationFailed."""
    table, access = context.table(name)
    if access.read is None or access.update is None or not column_values.ROW_ID.fullmatch(row_id):
        raise WriteRefused
    cells, changes, errors = body_parsing.read_update(
        table, body, writable=access.update.columns, readable=context.resolver.columns(name)
    )
    if len(errors) < MAX_ERRORS:
        errors += unknown_users(context, table, cells)
        if errors:
            references = {key: cell for key, cell in cells.items() if table.columns[key].is_reference}
            sent: Named = {Cell(key): cell for key, cell in references.items()} | {ROW_ID: row_id.encode()}
            shape = UpdateShape(name, tuple(sorted(references)))
            errors += unseen_references(context, PendingWrite(table, access, shape, sent))
    if errors:
        raise ValidationFailed(fields=errors)
    named: Named = {Cell(column): cell for column, cell in cells.items()}
    named[ROW_ID] = row_id.encode()
    if matches is not None:
        named[ETAGS] = values.wire("text[]", tuple(matches))
    shape = UpdateShape(name, tuple(sorted(cells)), matches is not None, large=is_large(table, named))
    pending = PendingWrite(table, access, shape, named)
    if changes:
        pending = pending.with_computed_cells(changes)
    if not cells:
        return _unchanged(context, pending, row_id)
    role_view = context.compiled.role_view(context.role_key)
    if not conditions.needs_second_statement(role_view, shape):
        row = persist(context, pending, writes.update)
        return result_of(row_id, row[0])
    with transaction.atomic(using=context.compiled.alias):
        columns = conditions.old_columns(role_view, shape)
        _, *cells_before = lock(context, pending, columns)
        persist(context, pending, writes.update)
        old: Named = {OldCell(column): cell for column, cell in zip(columns, cells_before, strict=True)}
        check_written(context, pending, old)
        return read_back(context, name, row_id)


def _unchanged(context: QueryContext, pending: PendingUpdate, row_id: str) -> RowResult:
    """The response to an empty update: the row, if it may be updated and matches. Its check is not evaluated."""
    run_probe(context, pending.with_event(context))
    rows = context.read(context.statement(select.read, ReadShape(pending.table.name)), pending.named)
    if not rows:
        context.verify()
        raise WriteRefused
    return result_of(row_id, rows[0][0])


def delete(context: QueryContext, name: str, row_id: str, *, matches: Sequence[str] | None = None) -> None:
    """Delete one row, and delete or detach the rows that refer to it, each with its event. Raises NotFound,
    PreconditionFailed, and Conflict if a row that refers to it restricts that, or if more than
    `referential_actions.MAX_CASCADE` rows would be deleted or changed."""
    table, access = context.table(name)
    if access.read is None or access.delete is None or not column_values.ROW_ID.fullmatch(row_id):
        raise WriteRefused
    named: Named = {ROW_ID: row_id.encode()}
    if matches is not None:
        named[ETAGS] = values.wire("text[]", tuple(matches))
    pending = PendingWrite(table, access, DeleteShape(name, matches is not None), named)
    if not referential_actions.referring_columns(context, name):
        persist(context, pending, writes.delete)
        return
    with transaction.atomic(using=context.compiled.alias):
        lock(context, pending)
        referential_actions.delete_with_referrers(context, table, [row_id])
