"""A plan: the steps of a schema change, and what existing rows have to fit."""

from dataclasses import dataclass

from django.db.migrations.operations.base import Operation as DjangoOperation

from rows.migrate.planning import renames
from rows.rules.conditions import Condition
from rows.schema.model import Column, Schema


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of Django's, and what people call it."""

    django: DjangoOperation
    name: str
    """Such as `drop column tasks.internal`: shown, stored, and typed to confirm it."""
    path: str
    """The place in the document that an error of it is about."""
    column: Column | None = None
    """The column that is added or altered."""
    columns: tuple[str, ...] = ()
    """The columns of a unique or of an index that comes or goes, as people know them."""


@dataclass(frozen=True, slots=True)
class NewUnique:
    """A unique over columns that are there already and keep their values, so that its index can be made beforehand."""

    step: Step
    """The operation that adds the constraint."""
    constraint: str
    table: str
    """By its old name, as `columns`."""
    columns: tuple[str, ...]
    index: str
    """The name of the index until the constraint takes it over."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A column that existing rows may have no value for: it is refused if there are such rows."""

    table: str
    """By its old name."""
    column: str | None
    """By its old name; None where the column is new, so that any row is one too many."""
    path: str


@dataclass(frozen=True, slots=True)
class NewCheck:
    """A CHECK constraint over values that are there already, which may violate it."""

    table: str
    """By its old name."""
    check: Column | Condition
    """The column whose check it is, or the check of the table. All columns by their old names."""
    path: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What `rows.migrate.apply` runs: `renamed.statements`, then `steps`. `notes` are changes without SQL."""

    old: Schema
    new: Schema
    renamed: renames.Renamed
    steps: tuple[Step, ...]
    notes: tuple[str, ...]
    destructive: frozenset[str]
    """The names of operations that lose data: they must be confirmed."""
    gaps: tuple[Gap, ...]
    new_checks: tuple[NewCheck, ...]
    new_uniques: tuple[NewUnique, ...]
    """Those over existing columns (`rows.migrate.concurrent_unique_indexes`); others are made with their columns."""
    exclusive: frozenset[str]
    """Existing tables, by their old names, that the change alters."""
    guarded: frozenset[str]
    """Existing tables, by their old names, that new foreign keys will point to."""

    @property
    def is_empty(self) -> bool:
        return not (self.renamed.statements or self.steps or self.notes)
