"""Statements that are not the ORM's, in the current transaction, if any. `row`, `value` and `column` expect one row or
one column. Changes return how many rows they changed; in batches, they have a transaction each, for brief locks."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
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
    with connections[using].cursor() as cursor:
        cursor.execute(statement, parameters)
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def row(using: str, statement: Statement, parameters: Parameters = None) -> tuple[Any, ...]:
    [found] = rows(using, statement, parameters)
    return found


def value(using: str, statement: Statement, parameters: Parameters = None) -> Any:
    [found] = row(using, statement, parameters)
    return found


def column(using: str, statement: Statement, parameters: Parameters = None) -> list[Any]:
    return [value for (value,) in rows(using, statement, parameters)]


def execute(using: str, statement: Statement, parameters: Parameters = None) -> int:
    with connections[using].cursor() as cursor:
        cursor.execute(statement, parameters)
        return int(cursor.rowcount)


@contextmanager
def copy(using: str, statement: sql.Composed) -> Generator[psycopg.Copy]:
    """COPY is psycopg's own; its errors become Django's here."""
    cursor: Any = connections[using].cursor()
    with connections[using].wrap_database_errors, cursor.copy(statement) as copying:
        yield copying


def execute_in_batches(using: str, statement: str, parameters: Mapping[str, Any], *, batch: int) -> int:
    """Repeat a statement that changes at most about `batch` rows (a parameter) until it changes fewer."""
    changed = 0
    while True:
        in_batch = execute(using, statement, {**parameters, "batch": batch})
        changed += in_batch
        if in_batch < batch:
            return changed


def delete_in_batches(rows: QuerySet[Any], batch: int = 1000) -> int:
    """With Django's cascades, which count, too."""
    deleted = 0
    while keys := list(rows.values_list("pk", flat=True)[:batch]):
        # By key alone: with the conditions, the planner might choose an index of theirs, and scan all rows each time.
        deleted += rows.model._base_manager.using(rows.db).filter(pk__in=keys).delete()[0]
    return deleted
