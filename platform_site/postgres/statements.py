"""Single statements that are not the ORM's, each on a cursor of its own and in the current transaction, if any."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import connections

Parameters = Sequence[Any] | Mapping[str, Any] | None


def rows(using: str, statement: str, parameters: Parameters = None) -> list[tuple[Any, ...]]:
    with connections[using].cursor() as cursor:
        cursor.execute(statement, parameters)
        found: list[tuple[Any, ...]] = cursor.fetchall()
    return found


def dicts(using: str, statement: str, parameters: Parameters = None) -> list[dict[str, Any]]:
    """The rows by the names of their columns."""
    with connections[using].cursor() as cursor:
        cursor.execute(statement, parameters)
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def row(using: str, statement: str, parameters: Parameters = None) -> tuple[Any, ...]:
    """The only row."""
    [found] = rows(using, statement, parameters)
    return found


def value(using: str, statement: str, parameters: Parameters = None) -> Any:
    """The only column of the only row."""
    [found] = row(using, statement, parameters)
    return found


def column(using: str, statement: str, parameters: Parameters = None) -> list[Any]:
    """The values of the only column."""
    return [value for (value,) in rows(using, statement, parameters)]


def execute(using: str, statement: str, parameters: Parameters = None) -> int:
    """Returns how many rows were changed."""
    with connections[using].cursor() as cursor:
        cursor.execute(statement, parameters)
        return int(cursor.rowcount)
