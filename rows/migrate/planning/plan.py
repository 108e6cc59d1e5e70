from dataclasses import dataclass

from django.db.migrations.operations.base import Operation as DjangoOperation

from rows.migrate.planning import renames
from rows.rules.conditions import Condition
from rows.schema.model import Column, Schema


@dataclass(frozen=True, slots=True)
class Step:
    django: DjangoOperation
    name: str
    """Such as `drop column tasks.internal`: shown, stored, and typed to confirm."""
    path: str
    column: Column | None = None
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NewUnique:
    """Over unchanged columns, so that its index can be built before."""

    step: Step
    constraint: str
    table: str
    columns: tuple[str, ...]
    index: str
    """Its name until the constraint takes it over."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A column that existing rows may have no value for."""

    table: str
    column: str | None
    """None for a new column: then no row may exist."""
    path: str


@dataclass(frozen=True, slots=True)
class NewCheck:
    table: str
    check: Column | Condition
    """The column, or the check of the table; by old names."""
    path: str


@dataclass(frozen=True, slots=True)
class Shortened:
    """A column whose texts get a smaller `max_length`, by old names."""

    table: str
    column: str
    max_length: int
    path: str


@dataclass(frozen=True, slots=True)
class AddedUnique:
    """Of columns that keep their types, by old names: existing duplicates would remain."""

    step: Step
    table: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Run by `rows.migrate.apply`: `renamed.statements`, then `steps`. `notes` are changes without SQL."""

    old: Schema
    new: Schema
    renamed: renames.Renamed
    steps: tuple[Step, ...]
    notes: tuple[str, ...]
    destructive: frozenset[str]
    gaps: tuple[Gap, ...]
    new_checks: tuple[NewCheck, ...]
    shortened: tuple[Shortened, ...]
    added_uniques: tuple[AddedUnique, ...]
    new_uniques: tuple[NewUnique, ...]
    """Those over existing columns (`rows.migrate.concurrent_unique_indexes`)."""
    exclusive: frozenset[str]
    """Altered tables, by old name."""
    guarded: frozenset[str]
    """Targets of new foreign keys, by old name."""

    @property
    def depends_on_rows(self) -> bool:
        return bool(self.gaps or self.new_checks or self.shortened or self.added_uniques)

    @property
    def is_empty(self) -> bool:
        return not (self.renamed.statements or self.steps or self.notes)
