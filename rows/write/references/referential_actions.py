"""Referential actions of the schema when rows or users are deleted, with events. PostgreSQL's own cascade would record
no events, so the referring rows are found and locked here, and deleted or detached by statements that record theirs
(`rows.write.statements`). Deleted users are handled in the same way, by the policies of user columns. No rules are
applied: the caller was allowed to delete the first row."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from django.db import IntegrityError, transaction

from platform_site.http.errors import Conflict
from platform_site.identity import ids
from platform_site.identity.callers import EnvironmentRef
from platform_site.postgres import sqlstates
from rows.models import PendingUserDeletion
from rows.outbox import subscriptions
from rows.query.context import QueryContext, run
from rows.rules.principal import Principal
from rows.schema import values
from rows.schema.model import Column, Table
from rows.write.pending_write import Named, announce, event_values
from rows.write.statements import referrers
from rows.write.statements.shapes import EventIds, Ids

MAX_CASCADE: Final = 10_000
"""Rows that one delete may take with it or change."""


def referring_columns(context: QueryContext, name: str) -> list[tuple[Table, Column]]:
    return [
        (table, column)
        for table in context.compiled.schema.tables.values()
        for column in table.columns.values()
        if column.references == name
    ]


def delete_with_referrers(context: QueryContext, table: Table, rows: Sequence[str]) -> None:
    """Delete locked rows, and delete or detach those that refer to them. Raises Conflict if another row restricts that,
    or if more than MAX_CASCADE would be deleted or changed. A concurrent insert that refers to a locked row waits for
    the lock, and fails when we are done; one that came before is found."""
    deleted, detached = _find_referrers(context, table, rows)
    _refresh_interests(context)
    for (child, column), found in detached.items():
        _detach(context, child, column, [row_id for row_id in found if row_id not in deleted[child]])
    _delete(context, {name: list(gone) for name, gone in deleted.items() if gone})


_Found = dict[str, None]
"""Ids of rows in the order in which they were found, each once."""


def _find_referrers(
    context: QueryContext, table: Table, rows: Sequence[str]
) -> tuple[defaultdict[str, _Found], dict[tuple[str, str], _Found]]:
    """The rows to delete, by table, and those to detach, by table and column. All locked."""
    deleted: defaultdict[str, _Found] = defaultdict(dict)
    deleted[table.name].update(dict.fromkeys(rows))
    detached: defaultdict[tuple[str, str], _Found] = defaultdict(dict)
    referencing: defaultdict[str, set[str]] = defaultdict(set)
    budget = MAX_CASCADE
    waiting = [(table.name, list(rows))]
    while waiting:
        parent, parents = waiting.pop()
        for child, column in referring_columns(context, parent):
            # Rows that are to be deleted already may be found again. The limit allows for all of them, so that they
            # hide no others.
            found = _referring(context, child, column, parents, budget + 1 + len(deleted[child.name]))
            fresh = [row_id for row_id in found if row_id not in deleted[child.name]]
            if column.on_delete == "restrict":
                referencing[child.name].update(fresh)
                continue
            budget -= len(fresh)
            if budget < 0:
                raise Conflict(f"More than {MAX_CASCADE:,} rows refer to this one. Delete them first.")
            if column.on_delete == "null":
                detached[child.name, column.name].update(dict.fromkeys(fresh))
            elif fresh:
                deleted[child.name].update(dict.fromkeys(fresh))
                waiting.append((child.name, fresh))
    # A restricting row prevents nothing if it is deleted through another of its columns.
    if any(found - deleted[child].keys() for child, found in referencing.items()):
        raise _referenced_error()
    return deleted, detached


def _referenced_error() -> Conflict:
    return Conflict("Other rows refer to this one and keep it from being deleted.")


def _referring(context: QueryContext, table: Table, column: Column, targets: Sequence[str], most: int) -> list[str]:
    """The rows of `table` whose `column` holds one of `targets`, locked."""
    statement = context.statement(referrers.children, table.name, column.name, most)
    rows = context.write(statement, {Ids(): values.wire("text[]", tuple(targets))})
    return [(cell or b"").decode() for (cell,) in rows]


def _refresh_interests(context: QueryContext) -> None:
    """These statements do not test which events have subscribers."""
    compiled = context.compiled
    compiled.set_interests(subscriptions.interests_of(compiled.environment_id, compiled.alias))


def _detach(context: QueryContext, table: str, column: str, rows: list[str]) -> None:
    """Set the rows' `column` to null. Raises Conflict where a check of their table does not allow that."""
    if not rows:
        return
    wants = context.compiled.wants_events(table, "update")
    statement = context.statement(referrers.detach, table, column, wants)
    try:
        context.write(statement, event_values(context) | rows_and_events(0, rows))
    except IntegrityError as error:
        if sqlstates.sqlstate(error) == "23514":
            raise _referenced_error() from error
        raise
    if wants:
        for row_id in rows:
            announce(context, table, "update", row_id)


def _delete(context: QueryContext, deleted: Mapping[str, list[str]]) -> None:
    parts = tuple((name, context.compiled.wants_events(name, "delete")) for name in sorted(deleted))
    named: Named = event_values(context)
    for number, (name, _) in enumerate(parts):
        named |= rows_and_events(number, deleted[name])
    context.write(context.statement(referrers.delete_with_events, parts), named)
    for name, wants in parts:
        if wants:
            for row_id in deleted[name]:
                announce(context, name, "delete", row_id)


def rows_and_events(number: int, rows: Sequence[str]) -> Named:
    return {
        Ids(number): values.wire("text[]", tuple(rows)),
        EventIds(number): values.wire("text[]", tuple(ids.new("evt") for _ in rows)),
    }


_OPERATOR: Final = Principal("key", bypass=True)
_BATCH: Final = 500


def apply_user_deletion(environment: EnvironmentRef, user_id: str, *, pending: PendingUserDeletion | None) -> None:
    """Apply the policy (`null` or `delete`) of each user column to the rows that name a deleted user, in batches, each
    a transaction with its events. May run twice. `pending` is recorded with each batch while the deletion is pending
    (`user_deletion`); then a row that may not be deleted raises Conflict, and earlier batches stay committed. With None
    the user is deleted already, and such a row stays as it is."""
    run(environment, _OPERATOR, lambda context: _apply_user_deletion(context, user_id, pending))


def _apply_user_deletion(context: QueryContext, user_id: str, pending: PendingUserDeletion | None) -> None:
    context.verify()  # its statements do not test the version
    tables = context.compiled.schema.tables.values()
    for policy in ("delete", "null"):  # first what may be refused
        for table in tables:
            for column in table.columns.values():
                if column.on_user_delete == policy:
                    kept: set[str] = set()
                    while _apply_batch(context, table, column, user_id, pending, kept):
                        pass


def _apply_batch(
    context: QueryContext,
    table: Table,
    column: Column,
    user_id: str,
    pending: PendingUserDeletion | None,
    kept: set[str],
) -> bool:
    """Whether there may be more. Without `pending`, rows that may not be deleted or changed are added to `kept`."""
    using = context.compiled.alias
    with transaction.atomic(using=using):
        found = _referring(context, table, column, [user_id], _BATCH + len(kept))
        rows = [row_id for row_id in found if row_id not in kept]
        if rows and column.on_user_delete == "null":
            _refresh_interests(context)
        if rows and pending is not None:
            PendingUserDeletion.objects.using(using).bulk_create([pending], ignore_conflicts=True)
            _delete_or_detach(context, table, column, rows)
        elif rows:
            _delete_or_detach_each(context, table, column, rows, kept)
    return len(rows) == _BATCH


def _delete_or_detach(context: QueryContext, table: Table, column: Column, rows: list[str]) -> None:
    if column.on_user_delete == "delete":
        delete_with_referrers(context, table, rows)
    else:
        _detach(context, table.name, column.name, rows)


def _delete_or_detach_each(
    context: QueryContext, table: Table, column: Column, rows: list[str], kept: set[str]
) -> None:
    """`_delete_or_detach` where possible: all at once or, if a row prevents that, each by itself."""
    try:
        with transaction.atomic(using=context.compiled.alias):
            _delete_or_detach(context, table, column, rows)
    except Conflict:
        if len(rows) == 1:
            kept.update(rows)
        else:
            for row_id in rows:
                _delete_or_detach_each(context, table, column, [row_id], kept)
