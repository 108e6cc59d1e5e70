from dataclasses import dataclass

from django.db.migrations.operations.base import Operation as DjangoOperation
from psycopg import sql

from rows.migrate.planning import renames
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
class AddedUnique:
    """Of columns that keep their types, by old names: existing duplicates would remain."""

    step: Step
    constraint: str
    table: str
    columns: tuple[str, ...]
    index: str
    """The name of an index that is built before, until the constraint takes it over."""
    keeps_values: bool
    """The columns keep their values, so that the index can be built before."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A column that existing rows may have no value for."""

    table: str
    column: str | None
    """None for a new column: then no row may exist."""
    path: str


@dataclass(frozen=True, slots=True)
class NewCheck:
    """A condition that existing rows must meet, by old names: SQL, or the check of a column."""

    table: str
    condition: sql.Composable | Column
    path: str
    message: str = "existing rows have values that this does not allow"


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
    added_uniques: tuple[AddedUnique, ...]
    exclusive: frozenset[str]
    """Altered tables, by old name."""
    guarded: frozenset[str]
    """Targets of new foreign keys, by old name."""

    @property
    def depends_on_rows(self) -> bool:
        return bool(self.gaps or self.new_checks or self.added_uniques)

    @property
    def new_uniques(self) -> tuple[AddedUnique, ...]:
        """Those whose indexes can be built before (`rows.migrate.concurrent_unique_indexes`)."""
        return tuple(unique for unique in self.added_uniques if unique.keeps_values)

    @property
    def is_empty(self) -> bool:
        return not (self.renamed.statements or self.steps or self.notes)
