"""Expressions for Django's compiler: a value that is bound later, and SQL around other expressions and queries. Values
never become part of the text, which comes from constants of this package; columns are quoted by Django's `F`."""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Self

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import BooleanField, Expression, F, OrderBy, QuerySet, TextField
from django.db.models.sql import Query
from django.db.models.sql.compiler import SQLCompiler

_BOOLEAN = BooleanField()
_TEXT = TextField()


class Parameter(Expression):
    """A value bound at execution. The same `key` is the same `$n`. `wire` (PostgreSQL's text format) is a known value.
    The instance itself is Django's parameter, so nothing converts it; psycopg refuses it, so that a queryset with one
    is compiled and never run."""

    conditional = False

    def __init__(self, key: Hashable, sql_type: str, wire: bytes | None = None) -> None:
        super().__init__(output_field=_BOOLEAN if sql_type == "boolean" else _TEXT)
        self.key = key
        self.sql_type = sql_type
        self.wire = wire

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Any:
        return f"%s::{self.sql_type}", [self]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Parameter)
            and (self.key, self.sql_type, self.wire) == (other.key, other.sql_type, other.wire)
        )  # fmt: skip

    def __hash__(self) -> int:
        return hash((self.key, self.sql_type, self.wire))

    def __repr__(self) -> str:
        return f"<Parameter {self.key!r}::{self.sql_type}>"


class Sql(Expression):
    """Texts (with `%%`), expressions and whole queries in turn: `Sql("(", left, " = ", right, ")")`. `boolean`: allowed
    in WHERE."""

    def __init__(self, *parts: "str | Expression | Query | QuerySet[Any, Any] | Any", boolean: bool = False) -> None:
        super().__init__(output_field=_BOOLEAN if boolean else _TEXT)
        self.parts: list[Any] = [part.query if isinstance(part, QuerySet) else part for part in parts]

    def get_source_expressions(self) -> list[Any]:
        return [part for part in self.parts if not isinstance(part, str | Query)]

    def set_source_expressions(self, exprs: Sequence[Any]) -> None:
        found = iter(exprs)
        self.parts = [part if isinstance(part, str | Query) else next(found) for part in self.parts]

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Any:
        texts: list[str] = []
        params: list[Any] = []
        for part in self.parts:
            if isinstance(part, str):
                texts.append(part)
            else:
                text, found = compiler.compile(part)
                texts.append(text)
                params.extend(found)
        return "".join(texts), params

    def copy(self) -> Self:
        copied = super().copy()
        copied.parts = list(self.parts)
        return copied

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sql) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash(tuple(self.parts))


def boolean(*parts: "str | Expression | Any") -> Sql:
    return Sql(*parts, boolean=True)


ALWAYS = boolean("TRUE")
NEVER = boolean("FALSE")


def joined(separator: str, conditions: Sequence[Expression], neutral: Sql) -> Expression:
    if len(conditions) < 2:
        return conditions[0] if conditions else neutral
    return boolean("(", listed(conditions, separator), ")")


def ordered(value: F, *, descending: bool, nulls_first: bool) -> OrderBy:
    """NULLS FIRST or LAST only if not the default, so that an index can serve it."""
    first, last = (nulls_first, not nulls_first) if nulls_first != descending else (False, False)
    return OrderBy(value, descending=descending, nulls_first=first or None, nulls_last=last or None)


def listed(parts: Iterable[Any], separator: str = ", ") -> Sql:
    found: list[Any] = []
    for part in parts:
        found += [part, separator]
    return Sql(*found[:-1])
