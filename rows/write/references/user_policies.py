"""Applies the policy (`null` or `delete`) of each user column to the rows that name a deleted user."""

from typing import Final

from django.db import transaction

from platform_site.http.errors import Conflict
from platform_site.identity.callers import EnvironmentRef
from rows.models import PendingUserDeletion
from rows.query.context import QueryContext, run
from rows.rules.principal import Principal
from rows.schema.model import Column, Table
from rows.write.references.referential_actions import delete_with_referrers, detach, lock_referrers, refresh_interests

_OPERATOR: Final = Principal("key", bypass=True)
_BATCH: Final = 500


def apply_user_deletion(environment: EnvironmentRef, user_id: str, *, pending: PendingUserDeletion | None) -> None:
    """In batches, each a transaction with its events. May run twice. `pending` is recorded with each batch while the
    deletion is pending; then a row that may not be deleted raises Conflict, and earlier batches stay committed. With
    None the user is deleted already, and such a row stays as it is."""
    run(environment, _OPERATOR, lambda context: _apply_user_deletion(context, user_id, pending))


def _apply_user_deletion(context: QueryContext, user_id: str, pending: PendingUserDeletion | None) -> None:
    context.verify()  # its statements do not test the version
    tables = context.compiled.schema.tables.values()
    for policy in ("delete", "null"):  # first what may be refused
        for table in tables:
            for column in table.columns.values():
                if column.on_user_delete == policy:
                    blocked: set[str] = set()
                    while _apply_batch(context, table, column, user_id, pending, blocked):
                        pass


def _apply_batch(
    context: QueryContext,
    table: Table,
    column: Column,
    user_id: str,
    pending: PendingUserDeletion | None,
    blocked: set[str],
) -> bool:
    """Whether there may be more. Without `pending`, rows that cannot be deleted or changed are added to `blocked`."""
    using = context.compiled.alias
    with transaction.atomic(using=using):
        found = lock_referrers(context, table, column, [user_id], _BATCH + len(blocked))
        rows = [row_id for row_id in found if row_id not in blocked]
        if rows and column.on_user_delete == "null":
            refresh_interests(context)
        if rows and pending is not None:
            PendingUserDeletion.objects.using(using).bulk_create([pending], ignore_conflicts=True)
            _delete_or_detach(context, table, column, rows)
        elif rows:
            _delete_or_detach_each(context, table, column, rows, blocked)
    return len(rows) >= _BATCH  # more, if rows in `blocked` were deleted with others


def _delete_or_detach(context: QueryContext, table: Table, column: Column, rows: list[str]) -> None:
    if column.on_user_delete == "delete":
        delete_with_referrers(context, table, rows, names_tables=False)  # the caller may not read rows
    else:
        detach(context, table.name, column.name, rows)


def _delete_or_detach_each(
    context: QueryContext, table: Table, column: Column, rows: list[str], blocked: set[str]
) -> None:
    """All at once or, if a row prevents that, each by itself."""
    try:
        with transaction.atomic(using=context.compiled.alias):
            _delete_or_detach(context, table, column, rows)
    except Conflict:
        if len(rows) == 1:
            blocked.update(rows)
        else:
            for row_id in rows:
                _delete_or_detach_each(context, table, column, [row_id], blocked)
