from collections.abc import Mapping
from dataclasses import dataclass, field

from rows.rules.conditions import FALSE, TRUE, Condition, Operand


@dataclass(frozen=True, slots=True)
class Clause:
    """One key of a rule's condition object: its JSON `text`, for explanations, and its compiled condition."""

    text: str
    condition: Condition


@dataclass(frozen=True, slots=True)
class Grant:
    """One entry of a `read` rule: the rows (`where`) and the columns that it shows."""

    where: Condition
    columns: frozenset[str]
    clauses: tuple[Clause, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadRule:
    """The readable rows and cells. `columns` are those of any grant."""

    grants: tuple[Grant, ...]
    where: Condition
    columns: tuple[str, ...]
    partial: Mapping[str, Condition] = field(default_factory=dict, hash=False)
    """Columns that not every grant shows, with the condition of each."""

    @property
    def conditions(self) -> tuple[Condition, ...]:
        return (self.where, *self.partial.values())

    def cell(self, column: str) -> Condition:
        """Of a readable row: TRUE if all grants show the column, FALSE if none does."""
        return self.partial.get(column, TRUE) if column in self.columns else FALSE


@dataclass(frozen=True, slots=True)
class WriteRule:
    """One insert, update or delete. `where` is about the row before and includes the read rule, `check` about the row
    after. `set` are forced values. `columns` may be sent; on insert `id`, if the caller may choose it."""

    where: Condition = TRUE
    check: Condition = TRUE
    set: Mapping[str, Operand | None] = field(default_factory=dict, hash=False)
    columns: frozenset[str] = frozenset()
    where_clauses: tuple[Clause, ...] = ()
    """Of the rule's `where`, without the read rule."""
    check_clauses: tuple[Clause, ...] = ()


@dataclass(frozen=True, slots=True)
class Access:
    """What a role may do with a table; None: nothing. Without `read`, the table can only be inserted into."""

    role: str | None
    read: ReadRule | None = None
    insert: WriteRule | None = None
    update: WriteRule | None = None
    delete: WriteRule | None = None
