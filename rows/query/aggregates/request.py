"""The body of an aggregate request: `group` (own columns, or date parts such as `created_at.month`), functions over
columns with results such as `sum_value`, `having` and `order` over result names. Unreadable columns are unknown."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, Literal, NoReturn
from zoneinfo import available_timezones

from platform_site.http.errors import ValidationFailed
from rows.query import params
from rows.query import where as query_where
from rows.query.params import OrderKey
from rows.rules.conditions import Filter, Path
from rows.rules.name_resolver import InvalidCondition, NameResolver
from rows.schema.identifiers import did_you_mean
from rows.schema.model import EMPTY, SQL_TYPES, UNORDERED_TYPES, Column, ColumnType, Hop

MAX_KEYS: Final = 4
MAX_GROUPS: Final = 1_000
MAX_VALUES: Final = 20
_MAX_NAME: Final = 100

DATE_PARTS: Final = ("hour", "day", "week", "month", "year")
Kind = Literal["key", "count", "count_distinct", "sum", "avg", "min", "max"]

_NUMBERS: Final[tuple[ColumnType, ...]] = ("integer", "decimal", "float")
_KEYS: Final[tuple[ColumnType, ...]] = tuple(type_ for type_ in SQL_TYPES if type_ not in UNORDERED_TYPES)
TAKES: Final[Mapping[str, tuple[ColumnType, ...]]] = {
    "count_distinct": _KEYS,
    "sum": _NUMBERS,
    "avg": _NUMBERS,
    "min": (*_NUMBERS, "text", "date", "timestamp"),
    "max": (*_NUMBERS, "text", "date", "timestamp"),
}
"""Column types of each function, in the order of results."""
AGGREGATE_FIELDS: Final = frozenset(
    {"group", "count", "where", "having", "order", "limit", "cursor", "time_zone", *TAKES}
)

AVERAGE_DIGITS: Final = 4


@dataclass(frozen=True, slots=True)
class Output:
    """A field of a group. `source` is its column (None: the number of rows); `part` a date part."""

    name: str
    kind: Kind
    source: str | None = None
    part: str | None = None


@dataclass(frozen=True, slots=True)
class AggregateRequest:
    """`limit` None: all groups, at most MAX_GROUPS."""

    outputs: tuple[Output, ...]
    where: Filter
    having: Filter
    order: tuple[OrderKey, ...]
    limit: int | None
    cursor: str | None
    time_zone: str


def parse(body: Mapping[str, Any], table: str, resolver: NameResolver) -> AggregateRequest:
    """`table` is readable. Raises ValidationFailed naming the field of the body."""
    results: dict[str, tuple[Output, Column]] = {}
    _add_keys(results, body.get("group"), table, resolver)
    keys = list(results)
    if _optional(body, "count", bool):
        _add(results, "group", Output("count", "count"), Column("count", "count", "integer"))
    for kind in TAKES:
        _add_values(results, kind, body.get(kind), table, resolver)
    if not results:
        raise ValidationFailed.of(
            "group", "required", 'Request at least one result: "count": true, a function such as "sum", or a "group".'
        )
    if len(results) - len(keys) > MAX_VALUES:
        raise ValidationFailed.of("count", "too_many", f"Ask for at most {MAX_VALUES} values.")
    outputs = tuple(output for output, _ in results.values())
    computed = _Results({name: column for name, (_, column) in results.items()})
    return AggregateRequest(
        outputs=outputs,
        where=query_where.parse_where(_optional(body, "where", dict), table, resolver),
        having=query_where.parse_where(_optional(body, "having", dict), "", computed, "having"),
        order=_order(_optional(body, "order", str), keys, computed),
        limit=_limit(body.get("limit")),
        cursor=_optional(body, "cursor", str),
        time_zone=_time_zone(_optional(body, "time_zone", str)),
    )


def result_column(output: Output, source: Column | None) -> Column:
    if source is None or output.kind == "count_distinct":
        return Column(output.name, output.name, "integer")
    if output.part is not None:
        type_: ColumnType = "timestamp" if output.part == "hour" else "date"
        return Column(output.name, output.name, type_, null=source.null)
    null = source.null if output.kind == "key" else True
    made = replace(source, name=output.name, key=output.name, null=null, default=None, backfill=None)
    if output.kind in ("sum", "avg") and source.type == "integer":
        return replace(made, type="decimal", scale=0)  # a sum of 64-bit integers may be longer
    return made


class _Results(NameResolver):
    """Resolves names of results for `having` and `order`."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        super().__init__(EMPTY)
        self._columns = columns

    def columns(self, table: str) -> Mapping[str, Column]:
        return self._columns

    def relations(self, table: str) -> Mapping[str, Hop]:
        return {}

    def named_condition(self, table: str, name: str) -> None:
        return None

    def searchable(self, table: str) -> NoReturn:
        raise InvalidCondition("$search", "misplaced", "needs a result before it.")


Results = dict[str, tuple[Output, Column]]


def _add(results: Results, field: str, output: Output, column: Column) -> None:
    if output.name in results:
        message = 'two results would have this name. Leave out one of the columns or "count".'
        raise params.refusal(field, output.name, "invalid", message)
    results[output.name] = (output, column)


def _add_keys(results: Results, group: Any, table: str, resolver: NameResolver) -> None:
    names = _names("group", group)
    if len(names) > MAX_KEYS:
        raise ValidationFailed.of("group", "too_many", f"Group by at most {MAX_KEYS} keys.")
    for name in names:
        word, _, part = name.partition(".")
        column = _column("group", word, table, resolver)
        if "." not in name:
            if column.type not in _KEYS:
                raise params.refusal("group", name, "invalid", f"rows cannot be grouped by a {column.type} column.")
            output = Output(word, "key", word)
        else:
            if part not in DATE_PARTS:
                raise params.refusal("group", name, "invalid", f"the date parts are {', '.join(DATE_PARTS)}.")
            if column.type != "timestamp" and (column.type != "date" or part == "hour"):
                raise params.refusal("group", name, "invalid", f"a {column.type} column does not have this part.")
            output = Output(f"{word}_{part}", "key", word, part)
        _add(results, "group", output, result_column(output, column))


def _add_values(results: Results, kind: str, value: Any, table: str, resolver: NameResolver) -> None:
    for name in _names(kind, value):
        column = _column(kind, name, table, resolver)
        if column.type not in TAKES[kind]:
            message = f"{kind} takes columns of these types: {', '.join(TAKES[kind])}."
            raise params.refusal(kind, name, "invalid", message)
        output = Output(f"{kind}_{name}", kind, name)  # type: ignore[arg-type]
        _add(results, kind, output, result_column(output, column))


def _column(field: str, name: str, table: str, resolver: NameResolver) -> Column:
    column = resolver.column(table, name)
    if column is not None:
        return column
    if resolver.relation(table, name) is not None:
        raise params.refusal(field, name, "invalid", "is a relation. Name a column of the row itself.")
    suggestion = did_you_mean(name, resolver.columns(table)) or "."
    raise params.refusal(field, name, "unknown", f"there is no such column{suggestion}")


def _names(field: str, value: Any) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValidationFailed.of(field, "wrong_type", "Must be a list of names of columns.")
    if len(value) > MAX_VALUES:
        raise ValidationFailed.of(field, "too_many", f"Must have at most {MAX_VALUES} names.")
    if any(len(name) > _MAX_NAME for name in value):
        raise ValidationFailed.of(field, "unknown", "There is no column with so long a name.")
    return value


def _order(text: str | None, keys: list[str], results: _Results) -> tuple[OrderKey, ...]:
    """The given order, then all group keys."""
    chosen = [] if text is None else params.order_keys(text, "", results)
    named = {key.path.column for key in chosen}
    for name in keys:
        if name not in named:
            column = results.columns("")[name]
            chosen.append(OrderKey(Path((), name), SQL_TYPES[column.type], null=column.null))
    return tuple(chosen)


def _limit(limit: Any) -> int | None:
    if limit is None:
        return None
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MAX_GROUPS:
        raise ValidationFailed.of("limit", "out_of_range", f"limit must be a whole number from 1 to {MAX_GROUPS}.")
    return limit


_time_zones: Final = cache(available_timezones)


def _time_zone(name: str | None) -> str:
    if name is None:
        return "UTC"
    if name not in _time_zones():
        message = "There is no such time zone. Give a name of the IANA database, such as Europe/Berlin."
        raise ValidationFailed.of("time_zone", "unknown", message)
    return name


_TYPES: Final = {bool: "true or false", str: "a string", dict: "an object"}


def _optional(body: Mapping[str, Any], name: str, type_: type[bool] | type[str] | type[dict[str, Any]]) -> Any:
    value = body.get(name)
    if value is not None and not isinstance(value, type_):
        raise ValidationFailed.of(name, "wrong_type", f"Must be {_TYPES[type_]}.")
    return value
