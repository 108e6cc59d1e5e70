from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from django.db import connections
from django.db.models import F, QuerySet
from django.db.models.sql import Query

from rows.query.sql.expressions import Parameter, Sql, boolean
from rows.query.tables import table_models
from rows.query.tables.managers import RowQuerySet
from rows.rules.conditions import Variable
from rows.rules.principal import Principal, bind

AS_TEXT: Final = f'::text COLLATE "{table_models.COLLATION}"'
"""Cast of result columns: PostgreSQL refuses a prepared statement whose result types change."""

ENVIRONMENT: Final = "environment"
VERSION: Final = "version"
ROW_ID: Final = "id"
LIMIT: Final = "limit"
Key = Hashable


@dataclass(frozen=True, slots=True)
class After:
    """The last page's value of order key `index`."""

    index: int


class Cell(NamedTuple):
    """The new value of a column. A tuple, for a fast hash."""

    column: str


@dataclass(frozen=True, slots=True)
class Statement:
    """`keys` of parameters: a constant (bytes), an index of the filter's values (int), a rule's `Variable`, or a name
    that the request looks up (`After`, `Cell`, str)."""

    sql: bytes
    keys: tuple[Key, ...]

    def bind(
        self, named: Mapping[Key, bytes | None], filter_values: Sequence[bytes], principal: Principal
    ) -> list[bytes | None]:
        values: list[bytes | None] = []
        for key in self.keys:
            if type(key) is int:  # faster than a match, which uses isinstance
                values.append(filter_values[key])
            elif type(key) is bytes:
                values.append(key)
            elif type(key) is Variable:
                values.append(bind(key, principal))
            else:
                values.append(named[key])
        return values


def build_statement(alias: str, *parts: Any) -> Statement:
    """`parts` are those of an `Sql`. `%s` becomes `$n`, one number for each (key, type)."""
    query = Query(None)
    compiler = query.get_compiler(connection=connections[alias])
    sql, params = compiler.compile(Sql(*parts).resolve_expression(query))
    numbers: dict[tuple[Key, str], int] = {}
    spelled: list[str] = []
    for param in params:
        if isinstance(param, Parameter):
            key = param.wire if param.wire is not None else param.key
            number = numbers.setdefault((key, param.sql_type), len(numbers) + 1)
            spelled.append(f"${number}")
        elif isinstance(param, int) and not isinstance(param, bool):
            spelled.append(str(int(param)))  # Django's own: EXISTS(SELECT 1 …)
        else:
            raise TypeError(f"a value got into a statement: {param!r}")
    return Statement((sql % tuple(spelled)).encode(), tuple(key for key, _ in numbers))


def verdict(condition: Any) -> Sql:
    return boolean("(", condition, " IS TRUE)")


def verdicts(rows: RowQuerySet, conditions: Iterable[Any]) -> QuerySet[Any, Any]:
    flags = {f"_f{index}": verdict(condition) for index, condition in enumerate(conditions)}
    found: QuerySet[Any, Any] = rows.annotate(**flags).values_list(*flags)
    return found


def is_current() -> Sql:
    """The test of the schema version, evaluated once, in the snapshot of the rows."""
    return boolean(
        "(SELECT version = ", Parameter(VERSION, "integer"), ' FROM "platform"."rows_currentversion"'
        " WHERE environment_id = ", Parameter(ENVIRONMENT, "text"), ")",
    )  # fmt: skip


def is_row() -> Sql:
    return boolean("(", F("id"), " = ", Parameter(ROW_ID, "text"), ")")
