"""Django models of an environment's tables, in registries of their own, made to compile statements and not cached. They
have no relation fields, so no join can bypass the rules: each hop is a subquery over a queryset of the row manager. The
default and the base manager refuse all access (`rows.query.tables.managers`)."""

import threading
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from django.apps.config import AppConfig
from django.apps.registry import Apps
from django.db import models

from rows.query.tables.managers import RowManager, UnruledManager
from rows.query.tables.table_models import LABEL, plain_field
from rows.schema.model import ID, Schema, Table


class RowModel(models.Model):
    """Base of tenant models. Instances are only read; writes go through `rows.services`."""

    class Meta:
        abstract = True
        managed = False

    objects: ClassVar[RowManager]
    unruled: ClassVar[UnruledManager]
    TABLE: ClassVar[Table]
    """In capitals, unlike any column."""

    def __str__(self) -> str:
        return str(self.pk)


class _Config(AppConfig):
    path = "/"

    def __init__(self, registry: Apps) -> None:
        self.name = self.label = LABEL
        self.module = self.models_module = None
        self.apps = registry
        self.models = registry.all_models[LABEL]


class RowApps(Apps):
    """A registry of one model. Uncached: `Apps.get_models` is cached for ever, keyed by registry."""

    def __init__(self) -> None:
        super().__init__(())
        self.app_configs[LABEL] = _Config(self)

    def get_models(self, include_auto_created: bool = False, include_swapped: bool = False) -> list[type[models.Model]]:
        return list(self.all_models[LABEL].values())

    def get_swappable_settings_name(self, to_string: str) -> str | None:
        return None

    def clear_cache(self) -> None:
        for model in self.get_models():
            model._meta._expire_cache()  # type: ignore[attr-defined]


class RowModels:
    """Models are made on demand and not kept: requests use compiled statements, and idle models (90 objects each) would
    slow garbage collection. About 0.4 ms and 40 KB each."""

    __slots__ = ("_environment_id", "_lock", "_made", "_schema")

    def __init__(self, environment_id: str, schema: Schema) -> None:
        self._environment_id, self._schema = environment_id, schema
        self._made: WeakValueDictionary[str, type[RowModel]] = WeakValueDictionary()
        self._lock = threading.Lock()

    def __getitem__(self, name: str) -> type[RowModel]:
        found = self._made.get(name)
        if found is None:
            table = self._schema.tables[name]
            with self._lock:  # of two threads that ask at once, one makes it
                found = self._made.get(name)
                if found is None:
                    found = self._made[name] = _model(table, self._environment_id)
        return found


def _model(table: Table, environment_id: str) -> type[RowModel]:
    meta = type(
        "Meta",
        (),
        {
            "apps": RowApps(),
            "app_label": LABEL,
            "managed": False,
            "db_table": f'"{environment_id}"."{table.name}"',
            "base_manager_name": "objects",
            "default_manager_name": "objects",
        },
    )
    fields: dict[str, Any] = {
        column.name: plain_field(column, null=column.null, blank=column.null, primary_key=column is ID)
        for column in table.all_columns.values()
    }
    members = fields | {
        "__module__": __name__,
        "Meta": meta,
        "objects": RowManager(),
        "unruled": UnruledManager(),
        "TABLE": table,
    }
    made: type[RowModel] = type(f"Row_{table.name}", (RowModel,), members)
    return made
