"""Single statements that are not the ORM's, each on a cursor of its own and in the current transaction, if any, and
changes of many rows in batches, each in a transaction of its own, so that locks are held briefly."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import connections
from django.db.models import QuerySet
from psycopg import sql

Statement = str | sql.SQL | sql.Composed
Parameters = Sequence[Any] | Mapping[str, Any] | None


def rows(using: str, statement: Statement, parameters: Parameters = None) -> list[tuple[Any, ...]]:
    with connections[using].cursor() as cursor:
        cursor.execute(statement, parameters)
        found: list[tuple[Any, ...]] = cursor.fetchall()
    return found


def dicts(using: str, statement: Statement, parameters: Parameters = None) -> list[dict[str, Any]]:
    """The rows by the names of their columns."""
    with connections[using].cursor() as cursor:
        cursor.execute(statement, parameters)
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def row(using: str, statement: Statement, parameters: Parameters = None) -> tuple[Any, ...]:
    """The only row."""
    [found] = rows(using, statement, parameters)
    return found


def value(using: str, statement: Statement, parameters: Parameters = None) -> Any:
    """The only column of the only row."""
    [found] = row(using, statement, parameters)
    return found


def column(using: str, statement: Statement, parameters: Parameters = None) -> list[Any]:
    """The values of the only column."""
    return [value for (value,) in rows(using, statement, parameters)]


def execute(using: str, statement: Statement, parameters: Parameters = None) -> int:
    """Returns how many rows were changed."""
    with connections[using].cursor() as cursor:
        cursor.execute(statement, parameters)
        return int(cursor.rowcount)


def execute_in_batches(using: str, statement: str, parameters: Mapping[str, Any], *, batch: int) -> int:
    """Repeat a statement that changes at most about `batch` rows (a parameter) until it changes fewer. Returns how many
    rows were changed."""
    changed = 0
    while True:
        in_batch = execute(using, statement, {**parameters, "batch": batch})
        changed += in_batch
        if in_batch < batch:
            return changed


def delete_in_batches(rows: QuerySet[Any], batch: int = 1000) -> int:
    """Delete these rows, with Django's cascades. Returns how many rows, cascaded ones too."""
    deleted = 0
    while keys := list(rows.values_list("pk", flat=True)[:batch]):
        # By key alone: with the conditions, the planner might choose an index of theirs, and scan all rows each time.
        deleted += rows.model._base_manager.using(rows.db).filter(pk__in=keys).delete()[0]
    return deleted
