"""The statement of an aggregate request: a `GROUP BY` over the ruled and filtered queryset, whose cells are masked in
the innermost select, so that no group, sum or `having` gets an unreadable value; then `having`, cursor, order, limit,
JSON and the test of the schema version. Floats are summed in order, so equal values give equal bytes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from platform_site.http import cursors
from rows.query.aggregates.request import AVERAGE_DIGITS, Output, result_column
from rows.query.params import OrderKey
from rows.query.role_view import RoleView
from rows.query.sql import select
from rows.query.sql.conditions import CURRENT_ROW, AliasedRow, ConditionCompiler
from rows.query.sql.expressions import ALWAYS, NEVER, Parameter, Sql, joined, listed
from rows.query.sql.row_json import json_format
from rows.query.sql.select import ReadShape
from rows.query.sql.statement import AS_TEXT, LIMIT, Statement, build_statement, is_current
from rows.rules.conditions import TRUE, Condition, Operand, Slot
from rows.schema.model import Column, Table

TIME_ZONE: Final = "time_zone"
_RESULTS: Final = "results"
_FIRST_DAY: Final = "0001-01-01"
_LAST_DAY: Final = "9999-12-31"
"""A time zone may put a timestamp into the year 0 or 10000, which no date has. It counts to the nearest day."""


@dataclass(frozen=True, slots=True)
class HavingValue:
    index: int


@dataclass(frozen=True, slots=True)
class AggregateShape:
    """`after`: None for a first page, else per order key whether it was null."""

    table: str
    outputs: tuple[Output, ...]
    where: Condition = TRUE
    having: Condition = TRUE
    order: tuple[OrderKey, ...] = ()
    after: tuple[bool, ...] | None = None


def aggregated(role_view: RoleView, shape: AggregateShape) -> Statement:
    """The group as JSON (null beyond MAX_ANSWER_BYTES), and each order key for the cursor. No rows for a stale
    version."""
    table = role_view.schema.tables[shape.table]
    columns = {output.name: result_column(output, _source(table, output)) for output in shape.outputs}
    groups = _groups(role_view, table, shape)
    page: list[Any] = ["SELECT * FROM (", groups, ") _g WHERE ", _having(role_view, shape, columns)]
    if shape.after:
        keys_of_page = [(key, AliasedRow("_g").column(key.path.column)) for key in shape.order]
        behind = [joined(" AND ", conditions, ALWAYS) for conditions in select.ranges(keys_of_page, shape.after)]
        page += [" AND ", joined(" OR ", behind, NEVER)]
    if shape.order:
        page.append(" ORDER BY " + ", ".join(f'_g."{key.path.column}"{select.direction(key)}' for key in shape.order))
    page += [" LIMIT ", Parameter(LIMIT, "bigint")]
    keys = [f'left(_a."{key.path.column}"{AS_TEXT}, {cursors.MAX_CHARACTERS})' for key in shape.order]
    found = Sql(
        "SELECT ",
        listed(["row_to_json(_q)", *keys]),
        " FROM (",
        *page,
        ") _a CROSS JOIN LATERAL (SELECT ",
        listed([_shown(table, output, columns[output.name]) for output in shape.outputs]),
        ") _q WHERE ",
        is_current(),
    )
    return build_statement(role_view.alias, select.bounded(found, len(keys)))


def _source(table: Table, output: Output) -> Column | None:
    return None if output.source is None else table.all_columns[output.source]


def _groups(role_view: RoleView, table: Table, shape: AggregateShape) -> Sql:
    needed = dict.fromkeys(output.source for output in shape.outputs if output.source is not None)
    names = {column: f"_c{number}" for number, column in enumerate(needed)}
    rows = select.filtered(role_view, ReadShape(table.name, shape.where))
    masked = {alias: role_view.reading.cell(table.name, column, CURRENT_ROW) for column, alias in names.items()}
    rows = rows.annotate(**masked).values_list(*(names.values() or ["id"]))
    # OFFSET 0 keeps the planner from evaluating a mask again for each function over its cell.
    is_masked = any(role_view.mask(table.name, column) is not None for column in needed)
    results = [
        Sql(_computed(output, _source(table, output), names), f' AS "{output.name}"') for output in shape.outputs
    ]
    keys = [str(number) for number, output in enumerate(shape.outputs, 1) if output.kind == "key"]
    return Sql(
        "SELECT ",
        listed(results),
        " FROM (",
        rows,
        " OFFSET 0" if is_masked else "",
        ") _r",
        f" GROUP BY {', '.join(keys)}" if keys else "",
    )


def _computed(output: Output, source: Column | None, names: Mapping[str, str]) -> str | Sql:
    if source is None:
        return "count(*)"
    cell = f"_r.{names[source.name]}"
    match output.kind:
        case "key":
            return _key(output.part, source, cell)
        case "count_distinct":
            return f"count(DISTINCT {cell})"
        case "sum" if source.type == "float":
            return f"sum({cell} ORDER BY {cell})"
        case "avg" if source.type == "float":  # avg() also sums the squares, which overflow earlier
            return f"sum({cell} ORDER BY {cell}) / nullif(count({cell}), 0)"
        case "avg" if source.type == "decimal":  # avg() keeps 16 significant digits, which may be fewer
            return f"round(sum({cell}), {_average_digits(source):d}) / nullif(count({cell}), 0)"
        case _:
            return f"{output.kind}({cell})"


def _average_digits(source: Column) -> int:
    return (source.scale or 0) + AVERAGE_DIGITS


def _key(part: str | None, source: Column, cell: str) -> str | Sql:
    if part is None or (part == "day" and source.type == "date"):
        return cell
    if source.type == "date":
        return f"date_trunc('{part}', {cell}::timestamp)::date"
    zone = Parameter(TIME_ZONE, "text")
    if part == "hour":  # an instant, since an hour comes twice when the clocks go back
        return _not_null(cell, "greatest(date_trunc('hour', ", cell, ", ", zone, f"), '{_FIRST_DAY} UTC')")
    local = Sql(f"least(greatest({cell} AT TIME ZONE ", zone, f", '{_FIRST_DAY}'), '{_LAST_DAY}')")
    return _not_null(cell, f"date_trunc('{part}', ", local, ")::date")


def _not_null(cell: str, *parts: Any) -> Sql:
    """Null where the cell is, because `least` and `greatest` ignore nulls."""
    return Sql(f"CASE WHEN {cell} IS NOT NULL THEN ", *parts, " END")


def _shown(table: Table, output: Output, column: Column) -> str:
    source = _source(table, output)
    before, after = json_format(column)
    if output.kind == "sum" and source is not None and source.type == "integer":
        before, after = "", ""  # all digits
    elif output.kind == "avg" and source is not None and source.type == "integer":
        before, after = "", "::float8"
    elif output.kind == "avg" and source is not None and source.type == "decimal":
        before, after = "round(", f", {_average_digits(source):d})::text"
    return f'{before}_a."{output.name}"{after} AS "{output.name}"'


def _having(role_view: RoleView, shape: AggregateShape, columns: Mapping[str, Column]) -> Any:
    if shape.having == TRUE:
        return "TRUE"

    def operand_of(operand: Operand) -> Any:
        if isinstance(operand, Slot):
            return Parameter(HavingValue(operand.index), operand.type)
        return role_view.operand(operand)

    reading = ConditionCompiler.of_one_row(Table(_RESULTS, columns), operand_of)
    return reading.interruptible(shape.having, _RESULTS, AliasedRow("_g"))
