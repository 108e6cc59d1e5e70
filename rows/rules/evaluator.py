"""Evaluates conditions in Python with PostgreSQL's results, over rows as JSON of the API: for webhooks' filters, and as
the oracle of property tests. What is not in the row comes through `Facts`, a cost limit included.
tests/rows/test_evaluate.py compares each operator with PostgreSQL."""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, NamedTuple

from rows.rules.conditions import (
    OLD,
    Always,
    And,
    Compare,
    Condition,
    Constant,
    IsNull,
    Not,
    Operand,
    Or,
    OtherCell,
    Path,
    Present,
    Quantified,
    Search,
    Slot,
    Variable,
)
from rows.schema.model import Hop
from rows.schema.types import Type
from rows.schema.values import ELEMENTS, read

Row = Mapping[str, Any]

_SEPARATOR: Final = "\x1f"
_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "eq": operator.eq, "lt": operator.lt, "lte": operator.le, "gt": operator.gt, "gte": operator.ge
}  # fmt: skip
_STEPS_PER_NODE: Final = 3
_ITEMS_PER_STEP: Final = 2


def _no_variable(variable: Variable) -> Any:
    raise LookupError(f"${variable.name} has no value")


def _no_rows(hop: Hop, row: Row) -> Sequence[Row]:
    raise LookupError(f"the rows of {hop.relation} are not given")


class TooCostly(Exception):
    pass


class Effort:
    """Remaining steps (about 0.3 µs each). Counted, not timed: the limit is the same everywhere."""

    def __init__(self, steps: float) -> None:
        self._left = steps

    def spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise TooCostly


_UNLIMITED: Final = Effort(math.inf)


@dataclass(frozen=True, slots=True)
class Facts:
    """Inputs beside the row. `values`: a filter's. `variable`: a variable's value or None (`principal.resolve`).
    `related`: a hop's rows as the caller sees them (for rules: all). `old`: the row before a write."""

    values: Sequence[Any] = ()
    variable: Callable[[Variable], Any] = _no_variable
    related: Callable[[Hop, Row], Sequence[Row]] = _no_rows
    old: Row | None = None
    effort: Effort = _UNLIMITED


def holds(condition: Condition, row: Row, facts: Facts = Facts()) -> bool:
    """Raises LookupError for missing facts, TooCostly."""
    facts.effort.spend(_STEPS_PER_NODE)
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
            return _operand(condition.variable, facts) not in (None, ())


def _cell(path: Path, row: Row, facts: Facts) -> Any:
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
        case OtherCell():
            raise TypeError("a cell belongs to a row: `_compare` reads it")


def _typed(type_: Type, raw: Any) -> Any:
    if raw is None or type_ == "text" or isinstance(raw, Decimal | date):
        return raw
    return tuple(raw) if type_ == "text[]" else read(type_, raw)


def _compare(leaf: Compare, row: Row, facts: Facts) -> bool:
    raw = _cell(leaf.path, row, facts)
    if isinstance(leaf.operand, OtherCell):
        operand = _typed(leaf.operand.type, _cell(Path(leaf.path.hops, leaf.operand.column), row, facts))
    else:
        operand = _operand(leaf.operand, facts)
    if raw is None or operand is None:
        return False
    type_ = leaf.operand.type
    if isinstance(raw, list | Mapping):
        facts.effort.spend(len(raw) // _ITEMS_PER_STEP)
    match leaf.operator:
        case "in":
            facts.effort.spend(len(operand) // _ITEMS_PER_STEP)
            return _typed(ELEMENTS[type_], raw) in operand
        case "like":
            facts.effort.spend(_cost_of_like(raw, operand))
            return is_like(raw, operand)
        case "ilike":
            facts.effort.spend(_cost_of_like(raw, operand))
            return is_like(lower(raw), lower(operand))
        case "has_any":
            return not _keys(raw).isdisjoint(operand)
        case "has_all":
            return _keys(raw).issuperset(operand)
        case "encloses":
            return encloses(raw, operand, facts.effort.spend)
        case "eq" if type_ == "jsonb":
            return is_same_json(raw, operand)
    return bool(_COMPARISONS[leaf.operator](_typed(type_, raw), operand))


def _search(leaf: Search, row: Row, facts: Facts) -> bool:
    patterns = _operand(leaf.operand, facts)
    if patterns is None:
        return False
    cells = (_cell(path, row, facts) for path in leaf.paths)
    text = lower(_SEPARATOR.join(cell for cell in cells if cell is not None))
    facts.effort.spend(sum(_cost_of_like(text, pattern) for pattern in patterns))
    return all(is_like(text, lower(pattern)) for pattern in patterns)


def lower(text: str) -> str:
    """PostgreSQL's `lower` under C.UTF-8, character by character."""
    # Python differs for two characters: it makes two of U+0130 (PostgreSQL: "i"), and another sigma at a word's end.
    return text if text.islower() else text.replace("\u0130", "i").replace("\u03a3", "\u03c3").lower()


def is_like(text: str, pattern: str) -> bool:
    r"""SQL's LIKE with `\` as escape. Examines each character of `text` at most once."""
    parsed = _parse_like(pattern)
    if not parsed.underscores:
        return _has_in_order(text, parsed.words)
    if any(word not in text for word in parsed.words):
        return False
    state = 1
    for character in text:
        state = state & parsed.percents | (state & parsed.takes.get(character, parsed.underscores)) << 1
        if not state:
            return False
    return bool(state & parsed.end)


def _has_in_order(text: str, words: Sequence[str]) -> bool:
    if len(words) == 1:
        return text == words[0]
    first, *middle, last = words
    at, end = len(first), len(text) - len(last)
    if at > end or not text.startswith(first) or not text.endswith(last):
        return False
    for word in middle:
        found = text.find(word, at, end)
        if found < 0:
            return False
        at = found + len(word)
    return True


def _cost_of_like(text: str, pattern: str) -> int:
    return len(text) if "_" in pattern else len(text) // 100


class _Like(NamedTuple):
    """A LIKE pattern. Bit n of a state says that what was read so far matches the first n letters of the pattern; bit n
    of the masks says how it may go on (Baeza-Yates and Gonnet 1992, "shift-and")."""

    words: Sequence[str]
    """Those between `%` and `_`."""
    percents: int
    """A `%` comes next, which any character leaves there."""
    underscores: int
    takes: Mapping[str, int]
    """By character: it comes next, or a `_`."""
    end: int


@lru_cache(maxsize=1024)
def _parse_like(pattern: str) -> _Like:
    words, percents, underscores, takes, end = [""], 0, 0, dict[str, int](), 1
    letters = iter(pattern)
    for letter in letters:
        if letter == "%":
            percents |= end
            words.append("")
            continue
        if letter == "_":
            underscores |= end
            words.append("")
        else:
            plain = next(letters, "\\") if letter == "\\" else letter
            takes[plain] = takes.get(plain, 0) | end
            words[-1] += plain
        end <<= 1
    return _Like(words, percents, underscores, {letter: bits | underscores for letter, bits in takes.items()}, end)


def _number(value: float) -> Decimal:
    # jsonb keeps the digits that were written; repr gives those of a float, its binary value has others.
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)


def is_same_json(left: Any, right: Any) -> bool:
    """`left = right` as jsonb: numbers by value, keys unordered, true is not 1."""
    if isinstance(left, bool) or isinstance(right, bool) or left is None or right is None:
        return left is right
    if isinstance(left, int | float) and isinstance(right, int | float):
        return _number(left) == _number(right)
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(is_same_json(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(is_same_json, left, right))
    return isinstance(left, str) and isinstance(right, str) and left == right


def encloses(left: Any, right: Any, spend: Callable[[int], None] = lambda steps: None) -> bool:
    """`left @> right` as jsonb: at the top an array contains a scalar. `spend` gets the comparisons."""
    if isinstance(left, list) and not isinstance(right, list | Mapping):
        spend(len(left))
        return any(is_same_json(item, right) for item in left)
    return _encloses(left, right, spend)


def _encloses(left: Any, right: Any, spend: Callable[[int], None]) -> bool:
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return all(key in left and _encloses(left[key], value, spend) for key, value in right.items())
    if isinstance(left, list) and isinstance(right, list):
        spend(len(left) * len(right))
        return all(any(_encloses(item, value, spend) for item in left) for value in right)
    return is_same_json(left, right) if not isinstance(right, list | Mapping) else False


def _keys(value: Any) -> set[str]:
    if isinstance(value, str):
        return {value}
    return {key for key in value if isinstance(key, str)} if isinstance(value, Mapping | list | tuple) else set()
