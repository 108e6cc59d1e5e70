"""A queryset compiled once and executed with different values: Django compiles longer than PostgreSQL executes."""

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.db import connections
from django.db.models import QuerySet


class Compiled:
    """`Compiled(lambda pk: Thing.objects.filter(pk=pk).values_list("name"))`: parameters are compared texts."""

    def __init__(self, make: "Callable[..., QuerySet[Any, Any]]") -> None:
        self._make = make
        self._marks = tuple(f"<{name}>" for name in make.__code__.co_varnames[: make.__code__.co_argcount])
        self._compiled: tuple[str, str, tuple[Any, ...]] | None = None

    def first(self, *values: str) -> tuple[Any, ...] | None:
        """The first row as psycopg returns it (JSON is text), or None."""
        if self._compiled is None or not settings.FASTPATH:
            asked = self._make(*self._marks)[:1]
            self._compiled = (asked.db, *asked.query.get_compiler(asked.db).as_sql())
        alias, sql, parameters = self._compiled
        meant = dict(zip(self._marks, values, strict=True))
        with connections[alias].cursor() as cursor:
            cursor.execute(sql, [meant.get(each, each) if isinstance(each, str) else each for each in parameters])
            row: tuple[Any, ...] | None = cursor.fetchone()
            return row
