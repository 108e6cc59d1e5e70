"""Referential actions of the schema when rows are deleted. PostgreSQL's own cascade would record no events, so the
referring rows are found and locked here, and deleted or detached by statements that record theirs. No rules are
applied: the caller was allowed to delete the first row."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from django.db import IntegrityError

from platform_site.http.errors import Conflict
from platform_site.postgres import sqlstates
from rows.outbox import subscriptions
from rows.query.context import QueryContext
from rows.schema import values
from rows.schema.model import Column, Table
from rows.write.pending_write import Named, announce, event_values, values_of_rows
from rows.write.statements import referrers
from rows.write.statements.shapes import Ids

MAX_CASCADE: Final = 10_000
"""Rows that one delete may delete or change with it."""


def referring_columns(context: QueryContext, name: str) -> list[tuple[Table, Column]]:
    return [
        (table, column)
        for table in context.compiled.schema.tables.values()
        for column in table.columns.values()
        if column.references == name
    ]


def delete_with_referrers(
    context: QueryContext, table: Table, rows: Sequence[str], *, names_tables: bool = True
) -> None:
    """Delete locked rows, and delete or detach those that refer to them. Raises Conflict if another row restricts that,
    with the number of such rows if `names_tables` and the role sees them, or if more than MAX_CASCADE would be deleted
    or changed. A concurrent insert that refers to a locked row waits for the lock, and fails when we are done; one that
    came before is found."""
    deleted, detached, restricting = _find_referrers(context, table, rows)
    if restricting:
        own = {table.name: len(rows)}
        between = [name for name, ids in deleted.items() if len(ids) > own.get(name, 0)]
        raise _referenced_error(context, restricting if names_tables else {}, between)
    refresh_interests(context)
    for (child, column), found in detached.items():
        detach(context, child, column, [row_id for row_id in found if row_id not in deleted[child]])
    _delete(context, {name: list(gone) for name, gone in deleted.items() if gone})


_OrderedSet = dict[str, None]


def _find_referrers(
    context: QueryContext, table: Table, rows: Sequence[str]
) -> tuple[defaultdict[str, _OrderedSet], dict[tuple[str, str], _OrderedSet], dict[str, str]]:
    """The ids of the rows to delete, by table, and of those to detach, by table and column, all locked; and how many
    restrict that, by table."""
    deleted: defaultdict[str, _OrderedSet] = defaultdict(dict)
    deleted[table.name].update(dict.fromkeys(rows))
    detached: defaultdict[tuple[str, str], _OrderedSet] = defaultdict(dict)
    referencing: defaultdict[str, set[str]] = defaultdict(set)
    uncounted: set[str] = set()  # tables with more than were found
    budget = MAX_CASCADE
    waiting = [(table.name, list(rows))]
    while waiting:
        parent, parents = waiting.pop()
        for child, column in referring_columns(context, parent):
            # Rows that are to be deleted already may be found again. The limit allows for all of them, so that they
            # hide no others.
            most = budget + 1 + len(deleted[child.name])
            found = lock_referrers(context, child, column, parents, most)
            fresh = [row_id for row_id in found if row_id not in deleted[child.name]]
            if column.on_delete == "restrict":
                referencing[child.name].update(fresh)
                if len(found) == most:
                    uncounted.add(child.name)
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
    restricting = {
        child: f"{'at least ' if child in uncounted else ''}{len(left):,}"
        for child, found in referencing.items()
        if (left := found - deleted[child].keys())
    }
    return deleted, detached, restricting


def _referenced_error(context: QueryContext, restricting: Mapping[str, str], between: Sequence[str] = ()) -> Conflict:
    """Names the tables where nothing is hidden from the role, nor in those `between`: their rows refer to the deleted
    one, and are referred to."""
    seen = context.compiled.role_view(context.role_key).sees_everything
    named = [f"{count} of {name}" for name, count in sorted(restricting.items()) if all(map(seen, (name, *between)))]
    text = "Other rows refer to this one and keep it from being deleted"
    return Conflict(f"{text}: {', '.join(named)}." if named else f"{text}.")


def lock_referrers(context: QueryContext, table: Table, column: Column, targets: Sequence[str], most: int) -> list[str]:
    """The ids of the rows of `table` whose `column` holds one of `targets`, locked."""
    statement = context.statement(referrers.lock_referrers, table.name, column.name, most)
    rows = context.write(statement, {Ids(): values.wire("text[]", tuple(targets))})
    return [(cell or b"").decode() for (cell,) in rows]


def refresh_interests(context: QueryContext) -> None:
    """These statements do not test which events have subscribers."""
    compiled = context.compiled
    compiled.set_interests(subscriptions.interests_of(compiled.environment_id, compiled.alias))


def detach(context: QueryContext, table: str, column: str, rows: list[str]) -> None:
    """Sets `column` to null. Raises Conflict where a check of the table does not allow that."""
    if not rows:
        return
    wants = context.compiled.wants_events(table, "update")
    statement = context.statement(referrers.detach, table, column, wants)
    try:
        context.write(statement, event_values(context) | values_of_rows(rows))
    except IntegrityError as error:
        if sqlstates.sqlstate(error) == "23514":
            raise _referenced_error(context, {}) from error
        raise
    if wants:
        for row_id in rows:
            announce(context, table, "update", row_id)


def _delete(context: QueryContext, deleted: Mapping[str, list[str]]) -> None:
    parts = tuple((name, context.compiled.wants_events(name, "delete")) for name in sorted(deleted))
    named: Named = event_values(context)
    for number, (name, _) in enumerate(parts):
        named |= values_of_rows(deleted[name], number)
    context.write(context.statement(referrers.delete_with_events, parts), named)
    for name, wants in parts:
        if wants:
            for row_id in deleted[name]:
                announce(context, name, "delete", row_id)
