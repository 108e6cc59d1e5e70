"""A queryset that is compiled once and executed with different values. To compile a queryset takes Django longer than
PostgreSQL to answer it. The text is kept for as long as the process lives; psycopg prepares it, as everything that
recurs (settings)."""

from collections.abc import Callable
from typing import Any

from django.db import connections
from django.db.models import QuerySet


class Compiled:
    """`Compiled(lambda pk: Thing.objects.filter(pk=pk).values_list("name"))`: its parameters are text columns' values.
    They must reach PostgreSQL as they are, so they may be compared and nothing else."""

    def __init__(self, make: "Callable[..., QuerySet[Any, Any]]") -> None:
        self._make = make
        self._marks = tuple(f"<{name}>" for name in make.__code__.co_varnames[: make.__code__.co_argcount])
        self._compiled: tuple[str, str, tuple[Any, ...]] | None = None

    def first(self, *values: str) -> tuple[Any, ...] | None:
        """The first row, as PostgreSQL and psycopg give it (JSON is text), or None. One query."""
        if self._compiled is None:
            asked = self._make(*self._marks)[:1]
            self._compiled = (asked.db, *asked.query.get_compiler(asked.db).as_sql())
        alias, sql, parameters = self._compiled
        meant = dict(zip(self._marks, values, strict=True))
        with connections[alias].cursor() as cursor:
            cursor.execute(sql, [meant.get(each, each) if isinstance(each, str) else each for each in parameters])
            row: tuple[Any, ...] | None = cursor.fetchone()
            return row
