"""Who looks, made ready for the compiler: one role_key before one schema version, and what stands for its values. A
`Viewer` answers, as expressions over a table's row: which rows may be read, which cells, and what a caller's condition
means (`reading`) as opposed to a rule's (`rules`). With its operands left open it compiles statements that serve every
principal of the role_key (`Environment.open_role_view`); with a principal's values bound it makes querysets that Django
runs (`RowModels.viewer_of`). The SQL is the same."""

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Final, Literal

from django.db.models import Expression

from rows.query.sql.conditions import CURRENT_ROW, ConditionCompiler, RowSource
from rows.query.sql.expressions import NEVER, Parameter, Sql
from rows.rules.access import Access
from rows.rules.conditions import TRUE, Condition, Constant, Operand, OtherCell, Slot, Variable
from rows.rules.principal import Principal, RoleKey, bind
from rows.rules.rules import Ruleset
from rows.schema.model import Column, Schema

if TYPE_CHECKING:
    from rows.query.tables.dynamic_models import RowModel
    from rows.query.tables.managers import RowQuerySet


CLOCK: Final = b"statement_timestamp()"
"""What a statement has in it that asks for `$now`."""


def _clock(type_: str) -> Sql:
    """`$now`: the clock that stamps `created_at`, so that no web process' clock decides who sees a row, and a row
    written a moment ago is not in the future."""
    return Sql(f"{CLOCK.decode()}::{type_}")


def open_operand(operand: Operand) -> Expression:
    """The expression of an operand: a parameter whose value is bound when the statement runs, or the clock."""
    match operand:
        case Slot():
            return Parameter(operand.index, operand.type)
        case Variable(name="now"):
            return _clock(operand.type)
        case Variable():
            return Parameter(operand, operand.type)
        case Constant():
            return Parameter(operand, operand.type, operand.wire)
        case OtherCell():
            raise TypeError("a cell is no parameter: `ConditionCompiler` compares it")


def bound_operand(principal: Principal) -> Callable[[Operand], Expression]:
    """As `open_operand`, with the values of one principal."""

    def operand_of(operand: Operand) -> Expression:
        if isinstance(operand, Variable) and operand.name != "now":
            return Parameter(operand, operand.type, bind(operand, principal), is_bound=True)
        return open_operand(operand)

    return operand_of


class RoleView:
    """One role_key's view of one schema version, on the database `alias`."""

    def __init__(
        self,
        schema: Schema,
        models: "Mapping[str, type[RowModel]]",
        ruleset: Ruleset,
        role_key: RoleKey,
        alias: str,
        operand: Callable[[Operand], Expression],
    ) -> None:
        self.schema = schema
        self.models = models
        self.alias = alias
        self.role_key = role_key
        self._ruleset = ruleset
        self.operand = operand
        self.resolver = ruleset.resolver(role_key)
        self.remembered: dict[Hashable, object] = {}
        """What others worked out about this view, which does not change."""

    @property
    def rules(self) -> ConditionCompiler:
        """Conditions of rules: their paths see every row."""
        # Made each time, as is `reading`: kept here, it would be a circle, which only the collector undoes.
        return self.rules_with(None)

    @property
    def reading(self) -> ConditionCompiler:
        """Conditions of this role_view: their paths see what it may see."""
        return ConditionCompiler(self.schema, self._seen, self.readable, self.operand, rule=self.may_read)

    def rules_with(self, old: RowSource | None) -> ConditionCompiler:
        """As `rules`, where `$old` is the row at `old`."""
        return ConditionCompiler(self.schema, self._all, _always, self.operand, old)

    def access(self, table: str) -> Access:
        return self._ruleset.access(table, self.role_key)

    def may_read(self, table: str) -> Expression:
        """The condition under which the row at hand may be read; no rule means no row."""
        rule = self.access(table).read
        return NEVER if rule is None else self.rules.condition(rule.where, table)

    def may_change(self, table: str, action: Literal["update", "delete"]) -> Expression:
        """The condition under which the row at hand may be updated or deleted. It has `may_read` in it."""
        rule = getattr(self.access(table), action)
        return NEVER if rule is None else self.rules.condition(rule.where, table)

    def columns(self, table: str) -> list[Column]:
        """The columns that may be read in some row, in the document's order."""
        rule = self.access(table).read
        known = self.schema.tables[table].all_columns
        return [known[name] for name in rule.columns] if rule else []

    def mask(self, table: str, column: str) -> Condition | None:
        """When the cell of a readable row may be read; None for always."""
        rule = self.access(table).read
        condition = rule.cell(column) if rule else None
        return None if condition == TRUE else condition

    def sees_everything(self, table: str) -> bool:
        """Whether every cell of every row may be read."""
        rule = self.access(table).read
        everything = self.schema.tables[table].all_columns
        return rule is not None and rule.where == TRUE and not rule.partial and len(rule.columns) == len(everything)

    def readable(self, table: str, column: str, source: RowSource) -> Expression | None:
        """`mask` as an expression over the row at `source`."""
        mask = self.mask(table, column)
        return None if mask is None else self.rules.condition(mask, table, source)

    def _all(self, table: str) -> "RowQuerySet":
        rows: RowQuerySet = self.models[table].unruled.using(self.alias)
        return rows

    def _seen(self, table: str) -> "RowQuerySet":
        return self.models[table].objects.visible_to(self)


def _always(table: str, column: str, source: RowSource = CURRENT_ROW) -> None:
    return None
