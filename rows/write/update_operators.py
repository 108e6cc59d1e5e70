"""Update operators: compute a cell from its previous value (`{"$inc": 1}`, `{"$append": ["a"]}`, `{"$add": ["a"]}`).
PostgreSQL computes it from the row whose lock it holds, so no other change is lost. The operator is part of a
statement's shape, the operand a value. The previous value is the cell as the caller sees it: PostgreSQL may compute a
cell before it refuses the write, and the duration would reveal the length of a hidden list. No expression here raises
an error, whatever the cell contains. docs/reference/rows.md, "Operators in a write"."""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any, Final, Literal

from rows.query.sql.expressions import ALWAYS, Parameter, Sql, boolean
from rows.query.sql.statement import Cell
from rows.schema.column_values import read_cell, read_unbounded
from rows.schema.model import SQL_TYPES, Column, ColumnType
from rows.schema.values import MAX_INTEGER, MIN_INTEGER, InvalidValue, wire

Operator = Literal["$inc", "$append", "$add", "$remove"]

_OF_NUMBERS: Final[tuple[Operator, ...]] = ("$inc",)
_OF_LISTS: Final[tuple[Operator, ...]] = ("$append", "$add", "$remove")
OPERATORS: Final[Mapping[ColumnType, tuple[Operator, ...]]] = {
    "integer": _OF_NUMBERS,
    "decimal": _OF_NUMBERS,
    "float": _OF_NUMBERS,
    "text[]": _OF_LISTS,
}
"""docs/reference/rows.md is checked against this."""
_ALL: Final = frozenset(_OF_NUMBERS + _OF_LISTS)
GROWING: Final = frozenset[Operator]({"$append", "$add"})
"""They make a row longer than what is sent."""
MAX_TEXTS: Final = 1_000
"""In the operand of one operator, as in a list of a filter: each is searched for in the cell."""
MAX_LIST_BYTES: Final = 2**20
"""Of a list that an operator makes longer, in PostgreSQL's text: as much as the body of a request."""

_EXACT: Final = Context(prec=2_500)
"""More digits than a decimal column can have."""
_INFINITE: Final = 2**1024 - 2**970
"""The least number that a float rounds to infinity: half of the last digit above the greatest finite one."""


@dataclass(frozen=True, slots=True)
class IncrementBound:
    """The least or the greatest number to which the operand of a $inc can be added."""

    column: str
    end: Literal["least", "greatest"]


@dataclass(frozen=True, slots=True)
class Change:
    column: Column
    operator: Operator
    operand: Any

    @property
    def wire(self) -> bytes:
        return wire(SQL_TYPES[self.column.type], self.operand)

    @property
    def bounds(self) -> "dict[IncrementBound, bytes]":
        """The bounds between which `cell` and `fits` accept the old value of a $inc; empty for other operators."""
        if self.operator != "$inc":
            return {}
        name, type_ = self.column.name, SQL_TYPES[self.column.type]
        least, greatest = _increment_bounds(self.column, self.operand)
        return {
            IncrementBound(name, "least"): wire(type_, least),
            IncrementBound(name, "greatest"): wire(type_, greatest),
        }

    def initial_cell(self) -> bytes:
        """Computed from the column's default. Raises InvalidValue."""
        default, type_ = self.column.default, SQL_TYPES[self.column.type]
        if self.operator == "$inc":
            least, greatest = _increment_bounds(self.column, self.operand)
            number = 0 if default is None else read_cell(self.column, default)
            if not least <= number <= greatest:
                raise too_large(self.operator)
            is_decimal = self.column.type == "decimal"
            return wire(type_, _EXACT.add(number, self.operand) if is_decimal else number + self.operand)
        texts: tuple[str, ...] = () if default is None else read_cell(self.column, default)
        match self.operator:
            case "$append":
                return wire(type_, texts + self.operand)
            case "$add":
                return wire(type_, tuple(dict.fromkeys(texts + self.operand)))
            case _:
                removed = frozenset(self.operand)
                return wire(type_, tuple(text for text in texts if text not in removed))


def read(column: Column, value: Mapping[str, Any]) -> Change | None:
    """None for an ordinary value, as always for json. Raises InvalidValue."""
    if column.type == "json" or not value or not all(name.startswith("$") for name in value):
        return None
    fitting = OPERATORS.get(column.type, ())
    unknown = next((name for name in value if name not in fitting), None)
    if unknown in _ALL:
        raise InvalidValue("misplaced", f"{unknown} cannot be used on a column of type {column.type}.")
    if not fitting:
        return None
    if unknown is not None:
        raise InvalidValue("unknown_operator", f"There is no such operator. This column takes {' or '.join(fitting)}.")
    if len(value) > 1:
        raise InvalidValue("too_many", "Use one operator.")
    [operator] = [name for name in fitting if name in value]
    try:
        return Change(column, operator, _operand(column, operator, value[operator]))
    except InvalidValue as error:
        raise InvalidValue(error.code, f"{operator}: {error.continued}") from None


def _operand(column: Column, operator: Operator, value: Any) -> Any:
    if value is None:
        raise InvalidValue("null", "Must not be null.")
    operand = read_unbounded(column, value)
    if operator == "$inc":
        return operand
    if len(operand) > MAX_TEXTS:
        raise InvalidValue("too_many", f"Must have at most {MAX_TEXTS:,} texts.")
    return operand if operator == "$append" else tuple(dict.fromkeys(operand))


def unreadable() -> InvalidValue:
    return InvalidValue("not_allowed", "An operator can only change a value that you may read.")


def too_large(operator: Operator) -> InvalidValue:
    if operator == "$inc":
        return InvalidValue("out_of_range", "$inc: the sum would be outside of what the column holds.")
    return InvalidValue("too_long", f"{operator}: the list would have more than {MAX_LIST_BYTES >> 20} MB.")


def _increment_bounds(column: Column, operand: Any) -> tuple[Any, Any]:
    least, greatest = column.min, column.max
    match column.type:
        case "integer":
            lowest = (MIN_INTEGER if least is None else least) - operand
            highest = (MAX_INTEGER if greatest is None else greatest) - operand
            if lowest > MAX_INTEGER or highest < MIN_INTEGER:
                return MAX_INTEGER, MIN_INTEGER  # to no number at all
            return max(MIN_INTEGER, lowest), min(MAX_INTEGER, highest)
        case "decimal":
            largest = Decimal((0, (9,) * (column.precision or 0), -(column.scale or 0)))
            lowest, highest = (-largest if least is None else least), (largest if greatest is None else greatest)
            return _EXACT.subtract(lowest, operand), _EXACT.subtract(highest, operand)
        case _:
            lowest = -_greatest_below(_INFINITE - Fraction(max(-operand, 0.0)))
            highest = _greatest_below(_INFINITE - Fraction(max(operand, 0.0)))
            # PostgreSQL's own sum may be rounded past the end: then the column's CHECK constraint refuses it.
            return (
                lowest if least is None else max(lowest, least - operand),
                highest if greatest is None else min(highest, greatest - operand),
            )


def _greatest_below(bound: Fraction) -> float:
    if bound > sys.float_info.max:
        return sys.float_info.max
    nearest = float(bound)
    return nearest if nearest < bound else math.nextafter(nearest, -math.inf)


def cell(column: Column, operator: Operator, seen: Any) -> Sql:
    """Null if a sum does not fit. `seen` is the old cell as the caller sees it. `NOT IN (SELECT …)` searches texts by
    hashing, `= ANY` of a list would not: the list may have 8 MB."""
    operand = Parameter(Cell(column.name), SQL_TYPES[column.type])
    before = _before(column, seen)
    match operator:
        case "$inc":
            return Sql("(CASE WHEN ", fits(column, operator, seen), " THEN ", before, " + ", operand, " END)")
        case "$append":
            return Sql("(", before, " || ", operand, ")")
        case "$add":
            return Sql(
                "(", before, " || ARRAY(SELECT _u.v FROM unnest(", operand, ") WITH ORDINALITY _u (v, n)"
                " WHERE _u.v NOT IN (SELECT _h.v FROM unnest(", before, ") _h (v)) ORDER BY _u.n))",
            )  # fmt: skip
        case "$remove":
            return Sql(
                "ARRAY(SELECT _h.v FROM unnest(", before, ") WITH ORDINALITY _h (v, n)"
                " WHERE _h.v NOT IN (SELECT _u.v FROM unnest(", operand, ") _u (v)) ORDER BY _h.n)",
            )  # fmt: skip


def fits(column: Column, operator: Operator, seen: Any) -> Sql:
    if operator == "$remove":
        return ALWAYS
    if operator != "$inc":
        return boolean("(octet_length(", cell(column, operator, seen), f"::text) <= {MAX_LIST_BYTES})")
    type_ = SQL_TYPES[column.type]
    least, greatest = (Parameter(IncrementBound(column.name, end), type_) for end in ("least", "greatest"))
    return boolean("(", _before(column, seen), " BETWEEN ", least, " AND ", greatest, ")")


def _before(column: Column, seen: Any) -> Sql:
    nothing = "'{}'" if column.type == "text[]" else "0"
    return Sql("coalesce(", seen, f", {nothing})")
