"""Two expressions for Django's compiler: a value that is bound later, and a piece of SQL around other expressions.
Everything that `rows` asks of a table becomes a queryset of these: `translation` builds them from conditions,
`managers` filters by them, `compiler` renders the queryset and numbers the parameters. No value ever becomes part of
the text, and the text comes from constants of this package: columns are named through Django's `F`, which quotes
them."""

from collections.abc import Hashable, Sequence
from typing import Any, Self

import psycopg
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import BooleanField, Expression, Field, TextField
from django.db.models.sql.compiler import SQLCompiler
from psycopg.adapt import Dumper

Piece = tuple[str, list[Any]]
"""SQL with `%s` for each parameter (and `%%` for a percent sign), and the parameters in order."""

_BOOLEAN = BooleanField()
_TEXT = TextField()


class Parameter(Expression):
    """A value that the statement takes when it runs, cast to `sql_type`, the bare PostgreSQL type. `key` names it: the
    same key is the same `$n`. With `wire` (text as PostgreSQL reads it; bytes) the value is known already: a constant
    of the schema document, or, in a queryset that Django runs itself, the caller's value. The instance itself is in
    Django's list of parameters, so nothing converts the value on the way."""

    conditional = False

    def __init__(self, key: Hashable, sql_type: str, wire: bytes | None = None, *, is_bound: bool = False) -> None:
        super().__init__(output_field=_BOOLEAN if sql_type == "boolean" else _TEXT)
        self.key = key
        self.sql_type = sql_type
        self.wire = wire
        self.is_bound = is_bound or wire is not None

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


class _WireDumper(Dumper):
    """For querysets that Django runs by itself: psycopg sends a bound parameter's text, untyped."""

    oid = 0

    def dump(self, obj: Parameter) -> bytes | None:
        if not obj.is_bound:
            raise TypeError(f"{obj!r} has no value: this queryset was made to be compiled, not to be run")
        return obj.wire


psycopg.adapters.register_dumper(Parameter, _WireDumper)


class Sql(Expression):
    """Text and expressions in turn: `Sql("(", left, " = ", right, ")")`. Text is this package's own, with `%%` for a
    percent sign. `boolean` says that it can stand in WHERE."""

    def __init__(
        self, *parts: "str | Expression | Any", boolean: bool = False, field: "Field[Any, Any] | None" = None
    ) -> None:
        super().__init__(output_field=_BOOLEAN if boolean else field or _TEXT)
        self.parts: list[Any] = list(parts)

    def get_source_expressions(self) -> list[Any]:
        return [part for part in self.parts if not isinstance(part, str)]

    def set_source_expressions(self, exprs: Sequence[Any]) -> None:
        found = iter(exprs)
        self.parts = [part if isinstance(part, str) else next(found) for part in self.parts]

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
    """A piece of SQL that is a condition."""
    return Sql(*parts, boolean=True)


ALWAYS = boolean("TRUE")
NEVER = boolean("FALSE")


def joined(separator: str, conditions: Sequence[Expression], neutral: Sql) -> Expression:
    """`(a AND b AND c)`; `neutral` where there is none."""
    if len(conditions) < 2:
        return conditions[0] if conditions else neutral
    parts: list[Any] = ["("]
    for condition in conditions:
        parts += [condition, separator]
    parts[-1] = ")"
    return boolean(*parts)
