"""What a deletion does to the rows that refer to what goes: the referential actions of the schema, under its events.

PostgreSQL's own cascade would leave no event, so the rows are found and locked here, and go, or let go, in statements
that record theirs (`rows.write.statements`). A user who is gone is let go of in the same way, by the policies of user
columns. No rule is asked: what a rule allows is decided by whoever deletes the first row.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from django.db import transaction

from platform_site.http.errors import Conflict
from platform_site.identity import ids
from platform_site.identity.callers import Place
from rows.models import LeavingUser
from rows.outbox.models import EventInterest
from rows.query.context import Asking, asked
from rows.rules.rules import Principal
from rows.schema import values
from rows.schema.model import Column, Table
from rows.write import statements
from rows.write.pending_write import Named, announce, event_values
from rows.write.statements import ChildrenShape, EventIds, Ids, ReleaseShape, RemovalShape

MAX_CASCADE: Final = 10_000
"""Rows that one delete may take with it or change."""


def referring_columns(asking: Asking, name: str) -> list[tuple[Table, Column]]:
    """The references that lead to a table."""
    return [
        (table, column)
        for table in asking.environment.schema.tables.values()
        for column in table.columns.values()
        if column.references == name
    ]


def delete_with_referrers(asking: Asking, table: Table, rows: Sequence[str], depth: int) -> None:
    """Delete locked rows and what goes with them. Raises Conflict where another row keeps one of them, or where more
    than MAX_CASCADE would go or change.

    All rows that go are found and locked first. A concurrent insert that refers to one of them waits for our lock, and
    fails when we are done; one that came before is found.
    """
    going, freed = _find_referrers(asking, table, rows)
    _refresh_interests(asking)
    for (child, column), found in freed.items():
        _free(asking, child, column, [row_id for row_id in found if row_id not in going[child]], depth)
    _remove(asking, {name: list(gone) for name, gone in going.items() if gone}, depth)


_Found = dict[str, None]
"""Ids of rows in the order in which they were found, each once."""


def _find_referrers(
    asking: Asking, table: Table, rows: Sequence[str]
) -> tuple[defaultdict[str, _Found], dict[tuple[str, str], _Found]]:
    """The rows that go with these, which are among them, by table; and those that let go of one, by table and column.
    All locked. Raises as `delete_with_referrers`."""
    going: defaultdict[str, _Found] = defaultdict(dict)
    going[table.name].update(dict.fromkeys(rows))
    freed: defaultdict[tuple[str, str], _Found] = defaultdict(dict)
    holding: defaultdict[str, set[str]] = defaultdict(set)
    budget = MAX_CASCADE
    waiting = [(table.name, list(rows))]
    while waiting:
        parent, parents = waiting.pop()
        for child, column in referring_columns(asking, parent):
            # Those that go already may be found once more: with as many as there are of them, none hides another.
            found = _referring(asking, child, column, parents, budget + 1 + len(going[child.name]))
            fresh = [row_id for row_id in found if row_id not in going[child.name]]
            if column.on_delete == "restrict":
                holding[child.name].update(fresh)
                continue
            budget -= len(fresh)
            if budget < 0:
                raise Conflict(f"More than {MAX_CASCADE:,} rows refer to this one. Delete them first.")
            if column.on_delete == "null":
                freed[child.name, column.name].update(dict.fromkeys(fresh))
            elif fresh:
                going[child.name].update(dict.fromkeys(fresh))
                waiting.append((child.name, fresh))
    # One that refers to what goes and goes itself, by another of its columns, holds nothing.
    if any(held - going[child].keys() for child, held in holding.items()):
        raise Conflict("Other rows refer to this one and keep it from being deleted.")
    return going, freed


def _referring(asking: Asking, table: Table, column: Column, targets: Sequence[str], most: int) -> list[str]:
    """The rows of `table` whose `column` holds one of `targets`, locked."""
    statement = asking.statement(ChildrenShape(table.name, column.name, most), statements.children)
    rows = asking.write(statement, {Ids(): values.wire("text[]", tuple(targets))})
    return [(cell or b"").decode() for (cell,) in rows]


def _refresh_interests(asking: Asking) -> None:
    """Know for sure who listens: these statements do not test it."""
    environment = asking.environment
    interests = EventInterest.objects.using(environment.alias).filter(environment_id=environment.id)
    environment.set_interests(set(interests.values_list("table_name", "action")))


def _free(asking: Asking, table: str, column: str, rows: list[str], depth: int) -> None:
    """Set the rows' `column` to null."""
    if not rows:
        return
    wants = asking.environment.wants_events(table, "update")
    statement = asking.statement(ReleaseShape(table, column, wants), statements.release)
    asking.write(statement, event_values(depth) | rows_and_events(0, rows))
    if wants:
        for row_id in rows:
            announce(asking, table, "update", row_id)


def _remove(asking: Asking, going: Mapping[str, list[str]], depth: int) -> None:
    """Delete the rows of all these tables, in one statement."""
    parts = tuple((name, asking.environment.wants_events(name, "delete")) for name in sorted(going))
    named: Named = event_values(depth)
    for number, (name, _) in enumerate(parts):
        named |= rows_and_events(number, going[name])
    asking.write(asking.statement(RemovalShape(parts), statements.removal), named)
    for name, wants in parts:
        if wants:
            for row_id in going[name]:
                announce(asking, name, "delete", row_id)


def rows_and_events(number: int, rows: Sequence[str]) -> Named:
    return {
        Ids(number): values.wire("text[]", tuple(rows)),
        EventIds(number): values.wire("text[]", tuple(ids.new("evt") for _ in rows)),
    }


# ── Users who are gone ──────────────────────────────────────────────────────────────────────────────────────────────

_OPERATOR: Final = Principal("key", bypass=True)
_BATCH: Final = 500


def let_go_of_user(place: Place, user_id: str, *, leaving: LeavingUser | None, depth: int = 0) -> None:
    """Apply the policy of each user column to the rows that name a user who is no more: `null` or `delete`, in batches,
    each a transaction with its events. `depth` counts the webhooks and functions that led to it.
    may run twice.

    `leaving` is put down with each batch, of a user who is about to be no more (`rows.write.user_deletion`); where a
    row may not go because another refers to it, that raises Conflict, and batches before that one stay done. None: the
    user is gone already, and such a row stays as it is.
    """
    asked(place, _OPERATOR, lambda asking: _let_go_of_user(asking, user_id, leaving, depth))


def _let_go_of_user(asking: Asking, user_id: str, leaving: LeavingUser | None, depth: int) -> None:
    asking.verify()  # its statements do not test the version
    tables = asking.environment.schema.tables.values()
    for policy in ("delete", "null"):  # first what may be refused
        for table in tables:
            for column in table.columns.values():
                if column.on_user_delete == policy:
                    staying: set[str] | None = None if leaving is not None else set()
                    while _let_go_of_some(asking, table, column, user_id, leaving, staying, depth):
                        pass


def _let_go_of_some(
    asking: Asking,
    table: Table,
    column: Column,
    user_id: str,
    leaving: LeavingUser | None,
    staying: set[str] | None,
    depth: int,
) -> bool:
    """One batch. Whether there may be more. `staying` takes up the rows that may not go; None: that is a Conflict."""
    using = asking.environment.alias
    with transaction.atomic(using=using):
        found = _referring(asking, table, column, [user_id], _BATCH + len(staying or ()))
        rows = [row_id for row_id in found if row_id not in (staying or ())]
        if rows and leaving is not None:
            LeavingUser.objects.using(using).bulk_create([leaving], ignore_conflicts=True)
        if rows and column.on_user_delete == "delete":
            if staying is None:
                delete_with_referrers(asking, table, rows, depth)
            else:
                _delete_or_leave(asking, table, rows, staying, depth)
        elif rows:
            _refresh_interests(asking)
            _free(asking, table.name, column.name, rows, depth)
    return len(rows) == _BATCH


def _delete_or_leave(asking: Asking, table: Table, rows: Sequence[str], staying: set[str], depth: int) -> None:
    """`delete_with_referrers` what may go: all at once or, where some may not, each by itself."""
    try:
        with transaction.atomic(using=asking.environment.alias):
            return delete_with_referrers(asking, table, rows, depth)
    except Conflict:
        if len(rows) == 1:
            staying.update(rows)
            return None
    for row_id in rows:
        _delete_or_leave(asking, table, [row_id], staying, depth)
    return None
