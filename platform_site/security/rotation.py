"""Re-encrypts every sealed value with the first platform key, row by row, while the service runs: only if it is
unchanged. Done values are recognised by their key id, so it can be interrupted."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from django.apps import apps
from django.db import connections, router
from django.db.models import BinaryField, F, Func, Model, QuerySet, Value

from platform_site.security import keyring
from platform_site.security.keyring import SealedField

BATCH: Final = 200


@dataclass(frozen=True, slots=True)
class Column:
    sealed: SealedField
    model: type[Model]
    using: str

    @property
    def name(self) -> str:
        return f"{self.model._meta.db_table}.{self.sealed.field} in {self.using}"


@dataclass(slots=True)
class Outcome:
    """`failed` names rows that cannot be opened, with the reason."""

    rotated: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)


def columns() -> Iterator[Column]:
    for sealed in keyring.sealed_fields():
        model = apps.get_model(sealed.model)
        for alias in connections:
            if router.allow_migrate_model(alias, model):
                yield Column(sealed, model, alias)


def _not_sealed_by(column: Column, heads: list[bytes]) -> "QuerySet[Any, Any]":
    """Reads the table once."""
    binary = BinaryField()
    rows: QuerySet[Any, Any] = (
        column.model._base_manager.using(column.using)
        .exclude(**{column.sealed.field: None})
        .alias(sealed_by=Func(F(column.sealed.field), 1, len(heads[0]), function="substring", output_field=binary))
        .exclude(sealed_by__in=[Value(head, output_field=binary) for head in heads])
    )
    return rows


def count_outdated(column: Column) -> int:
    return _not_sealed_by(column, [keyring.current_header()]).count()


def count_unknown(column: Column) -> int:
    """Values whose key is not in ENCRYPTION_KEYS."""
    return _not_sealed_by(column, keyring.known_headers()).count()


def rotate(column: Column, *, on_row: Callable[[], object] = lambda: None) -> Outcome:
    """Rewrap outdated values, one transaction per row; `on_row` is called for each."""
    outcome = Outcome()
    name, purpose = column.sealed.field, column.sealed.purpose
    last: Any = None
    while True:
        rows = _not_sealed_by(column, [keyring.current_header()]).order_by("pk")
        if last is not None:
            rows = rows.filter(pk__gt=last)
        batch = list(rows[:BATCH])
        for row in batch:
            old = bytes(getattr(row, name))
            try:
                new = keyring.rewrap(old, purpose=purpose if isinstance(purpose, str) else purpose(row))
            except keyring.KeyringError as error:
                outcome.failed.append((f"{column.name}: {row}", str(error)))
            else:
                same = column.model._base_manager.using(column.using).filter(pk=row.pk, **{name: old})
                outcome.rotated += same.update(**{name: new})
            on_row()
        if len(batch) < BATCH:
            return outcome
        last = batch[-1].pk
