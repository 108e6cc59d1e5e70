"""Compiles conditions (filters and rules) to SQL expressions over one row, which a `RowSource` refers to. A *rule's*
paths see all related rows, because its author wrote them and mutual rules would not terminate; a *caller's* paths see
what the read rules show. A short filter can make a long statement, since each related table adds its rules:
`compile_budget` bounds what one statement may cost to compile."""

import math
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from django.db.models import Exists, Expression, F, OuterRef, Subquery

from rows.query.sql.expressions import ALWAYS, NEVER, Sql, boolean, joined, listed
from rows.query.tables.managers import RowQuerySet
from rows.rules.conditions import (
    OLD,
    Always,
    And,
    Compare,
    Condition,
    IsNull,
    Leaf,
    Not,
    Operand,
    Operator,
    Or,
    OtherCell,
    Path,
    Present,
    Quantified,
    Search,
    Variable,
    all_of,
    parts,
)
from rows.rules.rule_costs import MAX_CONDITIONS, SUBQUERY_COST
from rows.schema.column_values import LONG_TYPES, is_indexed
from rows.schema.model import ID, Column, Hop, Schema, Table

_INFIX: Final = {
    "eq": " = ",
    "lt": " < ",
    "lte": " <= ",
    "gt": " > ",
    "gte": " >= ",
    "like": " LIKE ",
    "ilike": " ILIKE ",
    "has_any": " && ",
    "has_all": " @> ",
    "encloses": " @> ",
}
_JSON_INFIX: Final = {"has_any": " ?| ", "has_all": " ?& "}
_UNINTERRUPTED: Final = 4
"""Conditions of a row that may be evaluated together."""


class TooLarge(Exception):
    pass


class _Budget(threading.local):
    left: float = math.inf


_budget: Final = _Budget()


@contextmanager
def compile_budget(cost: int = MAX_CONDITIONS) -> Generator[None]:
    """For what this thread compiles in the block, in conditions (`rows.rules.rule_costs`). Raises TooLarge."""
    before, _budget.left = _budget.left, cost
    try:
        yield
    finally:
        _budget.left = before


def _charge(cost: int) -> None:
    _budget.left -= cost
    if _budget.left < 0:
        raise TooLarge


class RowSource(Protocol):
    def column(self, name: str, depth: int = 0) -> Any: ...


class _CurrentRow:
    def column(self, name: str, depth: int = 0) -> Any:
        reference: Any = name
        for _ in range(depth):
            reference = OuterRef(reference)
        return reference if depth else F(name)


CURRENT_ROW: Final[RowSource] = _CurrentRow()


@dataclass(frozen=True, slots=True)
class AliasedRow:
    alias: str
    prefix: str = ""
    """Prefix of column names: two rows can share an alias."""

    def column(self, name: str, depth: int = 0) -> Any:
        return Sql(f'{self.alias}."{self.prefix}{name}"')


@dataclass(frozen=True, slots=True)
class GivenRow:
    """A row of these cells, such as the one after a write, whose others are as in `before`."""

    cells: Mapping[str, Any]
    before: RowSource | None = None

    def column(self, name: str, depth: int = 0) -> Any:
        cell = self.cells.get(name)
        if cell is not None:
            return cell
        if self.before is None:
            raise LookupError(f"the row says nothing about {name}")
        return self.before.column(name, depth)


def always_readable(table: str, column: str, source: RowSource) -> None:
    return None


def _no_relations(table: str) -> RowQuerySet:
    raise LookupError(f"{table} has no relations here")


@dataclass(frozen=True, slots=True)
class ConditionCompiler:
    """`far`: visible rows of a related table; `readable`: the condition (None: always) for a cell; `operand`: a
    parameter; `old`: the row before the write; `rule`: the condition of `far`."""

    schema: Schema
    far: Callable[[str], RowQuerySet]
    readable: Callable[[str, str, RowSource], Expression | None]
    operand: Callable[[Operand], Expression]
    old: RowSource | None = None
    rule: Callable[[str], Expression] | None = None

    @classmethod
    def of_one_row(cls, table: Table, operand: Callable[[Operand], Any]) -> "ConditionCompiler":
        return cls(Schema({table.name: table}, {}), _no_relations, always_readable, operand)

    def condition(self, node: Condition, table: str, source: RowSource = CURRENT_ROW, depth: int = 0) -> Expression:
        _charge(1)
        match node:
            case Always():
                return ALWAYS if node.holds else NEVER
            case And():
                return joined(" AND ", [self.condition(c, table, source, depth) for c in node.conditions], ALWAYS)
            case Or():
                return joined(" OR ", [self.condition(c, table, source, depth) for c in node.conditions], NEVER)
            case Not(condition=IsNull() as leaf) if not leaf.path.hops:
                return boolean("(", self.cell(table, leaf.path.column, source), " IS NOT NULL)")
            case Not():
                return boolean("(", self._leaf(node.condition, table, source, depth), " IS NOT TRUE)")
            case Present():
                return self._present(node.variable, depth)
            case Quantified():
                found = self._through(node.hop, table, source, depth, node.condition)
                return found if node.kind == "some" else boolean("(", found, " IS NOT TRUE)")
            case Compare() | IsNull() | Search():
                return self._leaf(node, table, source, depth)

    def narrowed(self, rows: RowQuerySet, node: Condition, table: str, rule: Expression, depth: int = 0) -> RowQuerySet:
        """`rows` are those of `rule`. PostgreSQL may evaluate a cheap filter before the rule, and slow conditions would
        reveal hidden rows by their duration; so they are only evaluated for rows that the rule shows.
        docs/explanation/row-isolation.md."""
        if rule == ALWAYS:
            return rows.filter(self.interruptible(node, table, CURRENT_ROW, depth))
        quick: list[Condition] = []
        slow: list[Condition] = []
        for part in node.conditions if isinstance(node, And) else (node,):
            (quick if self._is_quick(part, table) else slow).append(part)
        if quick:
            rows = rows.filter(self.condition(all_of(quick), table, CURRENT_ROW, depth))
        if slow:
            condition = self.interruptible(all_of(slow), table, CURRENT_ROW, depth)
            rows = rows.filter(boolean("(CASE WHEN ", rule, " THEN ", condition, " END)"))
        return rows

    def interruptible(
        self, node: Condition, table: str, source: RowSource = CURRENT_ROW, depth: int = 0
    ) -> Expression:  # fmt: skip
        """As `condition`. PostgreSQL ends a statement at its timeout between rows and subqueries, but not between the
        conditions of a row, of which each may take a second for a long cell. So many slow ones become subqueries."""
        if not isinstance(node, And | Or) or _leaf_count(node) <= _UNINTERRUPTED:
            return self.condition(node, table, source, depth)
        compiled: list[Expression] = []
        for part in node.conditions:
            expression = self.interruptible(part, table, source, depth)
            is_split = isinstance(part, Quantified) or _leaf_count(part) > _UNINTERRUPTED
            is_wrapped = not (is_split or self._is_quick(part, table))
            compiled.append(boolean("(SELECT ", expression, ")") if is_wrapped else expression)
        is_and = isinstance(node, And)
        return joined(" AND " if is_and else " OR ", compiled, ALWAYS if is_and else NEVER)

    def _is_quick(self, node: Condition, table: str) -> bool:
        """Whether its duration does not depend on the cells."""
        match node:
            case Always() | Present():
                return True
            case And() | Or():
                return all(self._is_quick(part, table) for part in node.conditions)
            case Not():
                return self._is_quick(node.condition, table)
            case Quantified():
                return self._is_quick(node.condition, node.hop.table)
            case Search() | Compare(operand=OtherCell()):
                return False
            case Compare() | IsNull():
                far = self.schema.tables[node.path.hops[-1].table if node.path.hops else table]
                column = far.all_columns[node.path.column]
                if self.readable(far.name, column.name, CURRENT_ROW) is not None:
                    return False
                return isinstance(node, IsNull) or is_quick(far, column, node.operator)

    def cell(self, table: str, column: str, source: RowSource) -> Any:
        spelled = source.column(column)
        readable = self.readable(table, column, source)
        return spelled if readable is None else Sql("(CASE WHEN ", readable, " THEN ", spelled, " END)")

    def value(self, path: Path, table: str, source: RowSource = CURRENT_ROW, depth: int = 0) -> Any:
        """The value at the end of `path`, for sorting; null without a visible row."""
        if not path.hops:
            return self.cell(table, path.column, source)
        hop, rest = path.hops[0], Path(path.hops[1:], path.column)
        rows, guard = self.linked(hop, table, source)
        inner = self.value(rest, hop.table, CURRENT_ROW, depth + 1)
        found = Sql(Subquery(rows.annotate(_value=inner).values("_value")))
        return found if guard is None else Sql("(CASE WHEN ", guard, " THEN ", found, " END)")

    def _leaf(self, leaf: Leaf, table: str, source: RowSource, depth: int) -> Expression:
        path = leaf.paths[0] if isinstance(leaf, Search) else leaf.path
        if path.hops:
            hop = path.hops[0]
            if isinstance(leaf, IsNull):  # null, or no row on the way: there is no row with a value
                there = self._through(hop, table, source, depth, Not(IsNull(_shorter(leaf.path))))
                return boolean("(", there, " IS NOT TRUE)")
            return self._through(hop, table, source, depth, _nearer(leaf))
        if isinstance(leaf, IsNull):
            return boolean("(", self.cell(table, leaf.path.column, source), " IS NULL)")
        if isinstance(leaf, Search):
            cells = listed(self.cell(table, one.column, source) for one in leaf.paths)
            operand = self._operand(leaf.operand, depth)
            return boolean(r"(concat_ws(E'\x1f', ", cells, ") ILIKE ALL (", operand, "))")
        cell = self.cell(table, leaf.path.column, source)
        if isinstance(leaf.operand, OtherCell):
            return boolean("(", cell, _INFIX[leaf.operator], self.cell(table, leaf.operand.column, source), ")")
        operand = self._operand(leaf.operand, depth)
        if leaf.operator == "in":
            return boolean("(", cell, " = ANY (", operand, "))")
        infix = _INFIX[leaf.operator]
        if self.schema.tables[table].all_columns[leaf.path.column].type == "json":
            infix = _JSON_INFIX.get(leaf.operator, infix)
        return boolean("(", cell, infix, operand, ")")

    def _operand(self, operand: Operand, depth: int) -> Any:
        if isinstance(operand, Variable) and operand.name.startswith(OLD):
            return self._old(operand, depth)
        return self.operand(operand)

    def _old(self, variable: Variable, depth: int) -> Any:
        if self.old is None:
            raise LookupError("only an update has an old row")
        return self.old.column(variable.name.removeprefix(OLD), depth)

    def _present(self, variable: Variable, depth: int) -> Expression:
        if not variable.name.startswith(OLD):
            return boolean("(", self.operand(variable), " IS NOT NULL)")
        cell = self._old(variable, depth)
        if variable.type.endswith("[]"):
            return boolean("(cardinality(", cell, ") > 0)")  # null for null, which is as good as false
        return boolean("(", cell, " IS NOT NULL)")

    def _through(self, hop: Hop, table: str, source: RowSource, depth: int, node: Condition) -> Expression:
        rows, guard = self.linked(hop, table, source)
        rule = ALWAYS if self.rule is None else self.rule(hop.table)
        found: Any = Exists(self.narrowed(rows, node, hop.table, rule, depth + 1))
        return found if guard is None else boolean("(", guard, " AND ", found, ")")

    def linked(self, hop: Hop, table: str, source: RowSource) -> tuple[RowQuerySet, Expression | None]:
        """The related rows of one hop, and the condition to read the linking cell."""
        _charge(SUBQUERY_COST)
        rows = self.far(hop.table)
        if hop.many:
            link = self.cell(hop.table, hop.column, CURRENT_ROW)
            return rows.filter(boolean("(", link, " = ", source.column("id", 1), ")")), None
        link = source.column(hop.column, 1)
        return rows.filter(boolean("(", F("id"), " = ", link, ")")), self.readable(table, hop.column, source)


def _leaf_count(node: Condition) -> int:
    return sum(not isinstance(part, Quantified) for part in parts(node))


def _shorter(path: Path) -> Path:
    return Path(path.hops[1:], path.column)


def _nearer(leaf: Compare | Search) -> Leaf:
    if isinstance(leaf, Search):
        return Search(tuple(map(_shorter, leaf.paths)), leaf.operand)
    return Compare(_shorter(leaf.path), leaf.operator, leaf.operand)


def is_quick(table: Table, column: Column, operator: Operator) -> bool:
    """Whether comparing a cell takes constant time: short values, indexed texts, and equality."""
    if column.type not in LONG_TYPES:
        return True
    if column.type != "text" or operator == "ilike":
        return False
    return operator in ("eq", "in") or column is ID or is_indexed(table, column)
