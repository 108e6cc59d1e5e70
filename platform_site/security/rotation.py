"""Encrypts every sealed value again with the first platform key, row by row, while the service runs. Each value is
replaced by itself under the new key only where it is still the one that was read, so a row that changes meanwhile keeps
its change. What is done is recognised by the key id in front of the value: a run that was cut off goes on where it was,
and a second one has nothing to do. Called by `manage.py rotate_encryption_keys`."""

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
    """What a rotation did. `failed` names rows whose value does not open, with the reason; they are as they were."""

    rotated: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)


def columns() -> Iterator[Column]:
    """Every registered column in each database that has its table."""
    for sealed in keyring.sealed_fields():
        model = apps.get_model(sealed.model)
        for alias in connections:
            if router.allow_migrate_model(alias, model):
                yield Column(sealed, model, alias)


def _outdated(column: Column) -> "QuerySet[Any, Any]":
    """Rows whose value another key sealed. Reads the table once: the key id is no index's business."""
    head = keyring.current_header()
    binary = BinaryField()
    rows: QuerySet[Any, Any] = (
        column.model._base_manager.using(column.using)
        .exclude(**{column.sealed.field: None})
        .alias(sealed_by=Func(F(column.sealed.field), 1, len(head), function="substring", output_field=binary))
        .exclude(sealed_by=Value(head, output_field=binary))
    )
    return rows


def count_outdated(column: Column) -> int:
    """How many values are not under the first platform key."""
    return _outdated(column).count()


def rotate(column: Column, *, on_row: Callable[[], object] = lambda: None) -> Outcome:
    """Rewrap every outdated value of `column`; each row is a transaction of its own. `on_row` is called for each."""
    outcome = Outcome()
    name, purpose = column.sealed.field, column.sealed.purpose
    last: Any = None
    while True:
        rows = _outdated(column).order_by("pk")
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
