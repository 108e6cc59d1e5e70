"""One role's view of one schema version, as expressions: the rows and cells that it may read, callers' conditions
(`reading`) and rules' (`rules`). Operands are parameters, so a statement serves every principal of the role."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, Literal

from django.db.models import Expression

from rows.query.sql.conditions import ConditionCompiler, RowSource, always_readable
from rows.query.sql.expressions import NEVER, Parameter, Sql
from rows.query.tables.dynamic_models import RowModels
from rows.query.tables.managers import RowQuerySet
from rows.rules.access import Access
from rows.rules.conditions import TRUE, Condition, Constant, Operand, OtherCell, Slot, Variable
from rows.rules.principal import RoleKey
from rows.rules.rules import Ruleset
from rows.schema.model import Column, Schema

CLOCK: Final = b"statement_timestamp()"
"""Of `$now` and `created_at`, independent of web processes."""


@dataclass(eq=False)
class RoleView:
    schema: Schema
    models: RowModels
    ruleset: Ruleset
    role_key: RoleKey
    alias: str
    cache: dict[Hashable, object] = field(default_factory=dict, init=False)

    @staticmethod
    def operand(operand: Operand) -> Expression:
        match operand:
            case Slot():
                return Parameter(operand.index, operand.type)
            case Variable(name="now"):
                return Sql(f"{CLOCK.decode()}::{operand.type}")
            case Variable():
                return Parameter(operand, operand.type)
            case Constant():
                return Parameter(operand, operand.type, operand.wire)
            case OtherCell():
                raise TypeError("a cell is no parameter: `ConditionCompiler` compares it")

    @property
    def rules(self) -> ConditionCompiler:
        # Made each time, as is `reading`: stored, it would be a reference cycle.
        return self.rules_with(None)

    @property
    def reading(self) -> ConditionCompiler:
        return ConditionCompiler(self.schema, self._seen, self.readable, self.operand, rule=self.may_read)

    def rules_with(self, old: RowSource | None) -> ConditionCompiler:
        return ConditionCompiler(self.schema, self._all, always_readable, self.operand, old)

    def access(self, table: str) -> Access:
        return self.ruleset.access(table, self.role_key)

    def may_read(self, table: str) -> Expression:
        """No rule means no row."""
        rule = self.access(table).read
        return NEVER if rule is None else self.rules.condition(rule.where, table)

    def may_change(self, table: str, action: Literal["update", "delete"]) -> Expression:
        """`may_read` included."""
        rule = getattr(self.access(table), action)
        return NEVER if rule is None else self.rules.condition(rule.where, table)

    def columns(self, table: str) -> list[Column]:
        rule = self.access(table).read
        known = self.schema.tables[table].all_columns
        return [known[name] for name in rule.columns] if rule else []

    def mask(self, table: str, column: str) -> Condition | None:
        """The condition to read the cell of a readable row; None: always."""
        rule = self.access(table).read
        condition = rule.cell(column) if rule else None
        return None if condition == TRUE else condition

    def sees_everything(self, table: str) -> bool:
        rule = self.access(table).read
        everything = self.schema.tables[table].all_columns
        return rule is not None and rule.where == TRUE and not rule.partial and len(rule.columns) == len(everything)

    def readable(self, table: str, column: str, source: RowSource) -> Expression | None:
        mask = self.mask(table, column)
        return None if mask is None else self.rules.condition(mask, table, source)

    def _all(self, table: str) -> RowQuerySet:
        rows: RowQuerySet = self.models[table].unruled.using(self.alias)
        return rows

    def _seen(self, table: str) -> RowQuerySet:
        return self.models[table].objects.visible_to(self)
