"""Re-encrypts every sealed value with the first platform key, row by row, while the service runs: only if it is
unchanged. Done values are recognised by their key id, so it can be interrupted."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from django.apps import apps
from django.db import connections, router
from django.db.models import BinaryField, F, Func, Model, QuerySet, Value

from platform_site.security import keyring
from platform_site.security.keyring import SealedField

BATCH: Final = 200
Problem = Literal["older key", "unknown key", "damaged"]


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
    rotated: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)


def columns() -> Iterator[Column]:
    for sealed in keyring.sealed_fields:
        model = apps.get_model(sealed.model)
        for alias in connections:
            if router.allow_migrate_model(alias, model):
                yield Column(sealed, model, alias)


def _sealed(column: Column) -> "QuerySet[Any, Any]":
    return column.model._base_manager.using(column.using).exclude(**{column.sealed.field: None})


def outdated(column: Column) -> "QuerySet[Any, Any]":
    binary, header = BinaryField(), keyring.current_header()
    sealed_by = Func(F(column.sealed.field), 1, len(header), function="substring", output_field=binary)
    rows: QuerySet[Any, Any] = _sealed(column).alias(sealed_by=sealed_by)
    return rows.exclude(sealed_by=Value(header, output_field=binary))


def _in_batches(rows: "QuerySet[Any, Any]") -> Iterator[Any]:
    batch = list(rows.order_by("pk")[:BATCH])
    while batch:
        yield from batch
        batch = list(rows.order_by("pk").filter(pk__gt=batch[-1].pk)[:BATCH])


def _id(row: Model) -> str:
    return row.pk.hex() if isinstance(row.pk, bytes) else str(row.pk)


def check(column: Column) -> dict[Problem, list[str]]:
    """The ids of values that the first key alone does not decrypt."""
    found: defaultdict[Problem, list[str]] = defaultdict(list)
    for row in _in_batches(_sealed(column)):
        sealed = bytes(getattr(row, column.sealed.field))
        try:
            keyring.unseal(sealed, purpose=column.sealed.purpose)
            if not sealed.startswith(keyring.current_header()):
                found["older key"].append(_id(row))
        except keyring.UnknownKey:
            found["unknown key"].append(_id(row))
        except keyring.Tampered:
            found["damaged"].append(_id(row))
    return found


def rotate(column: Column, *, on_row: Callable[[], object] = lambda: None) -> Outcome:
    """One transaction per row."""
    outcome = Outcome()
    for row in _in_batches(outdated(column)):
        old = bytes(getattr(row, column.sealed.field))
        try:
            new = keyring.rewrap(old, purpose=column.sealed.purpose)
        except keyring.KeyringError as error:
            outcome.failed.append((f"{column.name}, id {_id(row)}", str(error)))
        else:
            same = column.model._base_manager.using(column.using).filter(pk=row.pk, **{column.sealed.field: old})
            outcome.rotated += same.update(**{column.sealed.field: new})
        on_row()
    return outcome
