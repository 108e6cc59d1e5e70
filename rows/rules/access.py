"""The compiled rules of one role: the rows and columns of a table that it may read and write."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rows.rules.conditions import FALSE, TRUE, Condition, Operand


@dataclass(frozen=True, slots=True)
class Clause:
    """One member of a `where` or `check` as its author wrote it (JSON), for `explain`."""

    text: str
    condition: Condition


@dataclass(frozen=True, slots=True)
class Grant:
    """One rule of a `read`: the rows it matches, the columns it shows there (`id` always)."""

    where: Condition
    columns: frozenset[str]
    clauses: tuple[Clause, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadRule:
    """The rows and cells that may be read. `columns` are those of any grant, in the table's order."""

    grants: tuple[Grant, ...]
    where: Condition
    columns: tuple[str, ...]
    partial: Mapping[str, Condition] = field(default_factory=dict, hash=False)
    """The columns that not every grant shows, each with the condition under which a cell may be read."""

    def cell(self, column: str) -> Condition:
        """When the cell of a readable row may be read: TRUE for most columns, FALSE for those that do not exist."""
        return self.partial.get(column, TRUE) if column in self.columns else FALSE


@dataclass(frozen=True, slots=True)
class WriteRule:
    """One insert, update or delete. `where` is asked of the row before, and has the read rule in it: what may not be
    read may not be changed. `check` is asked of the row after. `set` are forced values (None: null). `columns` may be
    sent; on insert `id` is among them where the caller may choose it."""

    where: Condition = TRUE
    check: Condition = TRUE
    set: Mapping[str, Operand | None] = field(default_factory=dict, hash=False)
    columns: frozenset[str] = frozenset()
    where_clauses: tuple[Clause, ...] = ()
    """Of the rule's own `where`, without the read rule."""
    check_clauses: tuple[Clause, ...] = ()


@dataclass(frozen=True, slots=True)
class Access:
    """What a role_key may do with a table; None for what it may not do at all. Without `read` the table is not there,
    but for inserting."""

    role: str | None
    """The role whose rules these are; None where no rule names it, and the default applies."""
    read: ReadRule | None = None
    insert: WriteRule | None = None
    update: WriteRule | None = None
    delete: WriteRule | None = None
