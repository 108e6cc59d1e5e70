"""Conditions decided in plain Python, over rows as the API shows them: what PostgreSQL would say, without asking it.

For `explain` (which clause refuses this row?), for webhooks' filters over `record` and `old_record`, and as the oracle
that the property tests hold the statements against. No database and no clock: what a row does not hold itself comes
through `Facts`. tests/rows/test_evaluate.py compares each operator with PostgreSQL's own answer.

Cells are JSON values as in answers and events: decimals, dates and timestamps as strings; None is null, and so is a
column that the row does not have.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any, Final

from rows.conditions import (
    Always,
    And,
    Compare,
    Condition,
    Constant,
    Hop,
    IsNull,
    Not,
    Operand,
    Or,
    Path,
    Present,
    Quantified,
    Search,
    Slot,
    Type,
    Variable,
)
from rows.values import ELEMENTS, read

Row = Mapping[str, Any]

OLD: Final = "old."
_SEPARATOR: Final = "\x1f"


def _no_variable(variable: Variable) -> Any:
    raise LookupError(f"nobody said what ${variable.name} is")


def _no_rows(hop: Hop, row: Row) -> Sequence[Row]:
    raise LookupError(f"nobody said where {hop.relation} leads")


@dataclass(frozen=True, slots=True)
class Facts:
    """What a condition may ask beside its row.

    `values` are a filter's (`Filter.values`). `variable` gives a variable's value in Python's spelling or None
    (`rules.resolve`). `related` gives the rows a hop leads to, as the asker sees them: those it may read, unreadable
    cells null; for rules all rows, whole. `old` is the row before a write.
    """

    values: Sequence[Any] = ()
    variable: Callable[[Variable], Any] = _no_variable
    related: Callable[[Hop, Row], Sequence[Row]] = _no_rows
    old: Row | None = None


def holds(condition: Condition, row: Row, facts: Facts = Facts()) -> bool:
    """Whether `condition` is true of `row`. Raises LookupError where `facts` lack what it asks for."""
    match condition:
        case Always():
            return condition.holds
        case And():
            return all(holds(part, row, facts) for part in condition.conditions)
        case Or():
            return any(holds(part, row, facts) for part in condition.conditions)
        case Not():
            return not holds(condition.condition, row, facts)
        case Quantified():
            some = any(holds(condition.condition, far, facts) for far in facts.related(condition.hop, row))
            return some == (condition.kind == "some")
        case IsNull():
            return _cell(condition.path, row, facts) is None
        case Compare():
            return _compare(condition, row, facts)
        case Search():
            return _search(condition, row, facts)
        case Present():
            return _is_present(condition.variable, facts)


def _cell(path: Path, row: Row, facts: Facts) -> Any:
    """The raw cell at the end of `path`, None where a hop leads nowhere."""
    for hop in path.hops:
        found = facts.related(hop, row)
        if not found:
            return None
        row = found[0]
    return row.get(path.column)


def _operand(operand: Operand, facts: Facts) -> Any:
    match operand:
        case Slot():
            return facts.values[operand.index]
        case Constant():
            return operand.value
        case Variable(name=name) if name.startswith(OLD):
            return _typed(operand.type, facts.old.get(name.removeprefix(OLD)) if facts.old else None)
        case Variable():
            return facts.variable(operand)


def _is_present(variable: Variable, facts: Facts) -> bool:
    value = _operand(variable, facts)
    if variable.name.startswith(OLD):
        return value is not None and value != ()
    return value is not None


def _typed(type_: Type, raw: Any) -> Any:
    """A cell in Python's spelling; what has it already (a Decimal, a datetime) stays."""
    if raw is None or isinstance(raw, Decimal | date):
        return raw
    return read(type_, raw)


def _compare(leaf: Compare, row: Row, facts: Facts) -> bool:
    raw = _cell(leaf.path, row, facts)
    operand = _operand(leaf.operand, facts)
    if raw is None or operand is None:
        return False
    type_ = leaf.operand.type
    match leaf.operator:
        case "in":
            return _typed(ELEMENTS[type_], raw) in operand
        case "like":
            return is_like(raw, operand)
        case "ilike":
            return is_like(lower(raw), lower(operand))
        case "has_any":
            return any(_has_key(raw, key) for key in operand)
        case "has_all":
            return all(_has_key(raw, key) for key in operand)
        case "encloses":
            return encloses(raw, operand)
        case "eq" if type_ == "jsonb":
            return is_same_json(raw, operand)
    cell = _typed(type_, raw)
    match leaf.operator:
        case "eq":
            return bool(cell == operand)
        case "lt":
            return bool(cell < operand)
        case "lte":
            return bool(cell <= operand)
        case "gt":
            return bool(cell > operand)
        case "gte":
            return bool(cell >= operand)


def _search(leaf: Search, row: Row, facts: Facts) -> bool:
    patterns = _operand(leaf.operand, facts)
    if patterns is None:
        return False
    cells = (_cell(path, row, facts) for path in leaf.paths)
    text = lower(_SEPARATOR.join(cell for cell in cells if cell is not None))
    return all(is_like(text, lower(pattern)) for pattern in patterns)


# Text


def lower(text: str) -> str:
    """PostgreSQL's `lower` under the collation C.UTF-8: each character by itself, to one character."""
    if text.isascii():
        return text.lower()
    # Only U+0130 has a lower case of two characters in full mapping; its simple one is "i". Taken one by one, a sigma
    # at the end of a word is no special case either.
    return "".join("i" if letter == "\u0130" else letter.lower() for letter in text)


def is_like(text: str, pattern: str) -> bool:
    r"""SQL's LIKE with `\` as escape, in time bounded by the product of the lengths, whatever the pattern."""
    tokens = _tokens(pattern)
    at = token = 0
    resume_token = resume_at = -1
    while at < len(text):
        if token < len(tokens) and tokens[token] is _MANY:
            resume_token, resume_at = token + 1, at
            token += 1
        elif token < len(tokens) and (tokens[token] is _ONE or tokens[token] == text[at]):
            token += 1
            at += 1
        elif resume_token >= 0:  # let the last `%` take one character more
            resume_at += 1
            token, at = resume_token, resume_at
        else:
            return False
    return all(rest is _MANY for rest in tokens[token:])


_ONE: Final = object()
_MANY: Final = object()


def _tokens(pattern: str) -> list[Any]:
    found: list[Any] = []
    letters = iter(pattern)
    for letter in letters:
        if letter == "\\":
            found.append(next(letters, "\\"))
        else:
            found.append(_MANY if letter == "%" else _ONE if letter == "_" else letter)
    return found


# JSON


def _number(value: float) -> Decimal:
    # jsonb keeps the digits that were written; repr gives those of a float, its binary value has others.
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)


def is_same_json(left: Any, right: Any) -> bool:
    """`left = right` as jsonb: numbers by value, objects whatever the order of their keys; true is not 1."""
    if isinstance(left, bool) or isinstance(right, bool) or left is None or right is None:
        return left is right
    if isinstance(left, int | float) and isinstance(right, int | float):
        return _number(left) == _number(right)
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(is_same_json(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(is_same_json, left, right))
    return isinstance(left, str) and isinstance(right, str) and left == right


def encloses(left: Any, right: Any) -> bool:
    """`left @> right` as jsonb, with its one exception: at the top an array encloses a scalar that it holds."""
    if isinstance(left, list) and not isinstance(right, list | Mapping):
        return any(is_same_json(item, right) for item in left)
    return _encloses(left, right)


def _encloses(left: Any, right: Any) -> bool:
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return all(key in left and _encloses(left[key], value) for key, value in right.items())
    if isinstance(left, list) and isinstance(right, list):
        return all(any(_encloses(item, value) for item in left) for value in right)
    return is_same_json(left, right) if not isinstance(right, list | Mapping) else False


def _has_key(value: Any, key: str) -> bool:
    """`value ? key` as jsonb, and membership of a text[]."""
    if isinstance(value, Mapping):
        return key in value
    if isinstance(value, list | tuple):
        return any(isinstance(item, str) and item == key for item in value)
    return isinstance(value, str) and value == key
