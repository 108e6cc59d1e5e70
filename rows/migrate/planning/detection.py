from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import replace
from graphlib import TopologicalSorter
from typing import Any

from django.db import models
from django.db.migrations import operations as migrations
from django.db.migrations.autodetector import MigrationAutodetector
from django.db.migrations.graph import MigrationGraph
from django.db.migrations.operations.base import Operation as DjangoOperation
from django.db.migrations.questioner import MigrationQuestioner
from django.db.migrations.state import ProjectState

from rows.migrate.planning import renames
from rows.query.tables import table_models
from rows.schema import literals
from rows.schema.model import Column, Schema, Table


class _Questioner(MigrationQuestioner):
    def __init__(self, schema: Schema) -> None:
        super().__init__({"ask_initial": True})
        self.schema = schema

    def _backfill(self, field_name: str, model_name: str) -> Any:
        column = column_of(self.schema.tables[model_name], field_name)
        return models.NOT_PROVIDED if column.backfill is None else literals.value(column, column.backfill)

    ask_not_null_addition = ask_not_null_alteration = _backfill


class _Detector(MigrationAutodetector):
    """Django's autodetector without its quadratic sort and cubic optimizer. `detect` creates new tables itself and
    presents them to the autodetector as existing."""

    generated_operations: dict[str, list[Any]]

    def _sort_migrations(self) -> None:
        for label, found in self.generated_operations.items():
            by_model: dict[str, list[Any]] = defaultdict(list)
            for operation in found:
                by_model[model_of(operation).lower()].append(operation)
            sorter: TopologicalSorter[Any] = TopologicalSorter()
            for operation in found:
                sorter.add(operation)
                for needed in sorted(operation._auto_deps, key=repr):  # Django passes some through a set
                    if needed.app_label == label:
                        others = by_model.get(needed.model_name_lower, ())
                        sorter.add(operation, *(other for other in others if self.check_dependency(other, needed)))
            self.generated_operations[label] = list(sorter.static_order())

    def _optimize_migrations(self) -> None:
        pass


def model_of(operation: DjangoOperation) -> str:
    if isinstance(operation, migrations.CreateModel | migrations.DeleteModel):
        return str(operation.name)
    return str(operation.model_name)  # type: ignore[attr-defined]


def column_of(table: Table, field: str) -> Column:
    return next(column for column in table.columns.values() if table_models.field_name(column) == field)


def detect(renamed: renames.Renamed, new: Schema) -> list[DjangoOperation]:
    before, after = (
        table_models.state_of(renamed.schema, unconstrained=renamed.unconstrained, checks=renamed.checks),
        table_models.state_of(new),
    )
    made = [name for name in new.tables if name not in renamed.kept_tables]
    created = list(_created(made, new, after))
    for name in made:
        before.add_model(after.models[table_models.LABEL, name].clone())
    changes = _Detector(before, after, _Questioner(new)).changes(MigrationGraph())
    found = [_filled(operation, new) for each in changes.get(table_models.LABEL, []) for operation in each.operations]
    return sorted([*created, *found], key=_phase)


def _filled(operation: DjangoOperation, new: Schema) -> DjangoOperation:
    if isinstance(operation, migrations.AddField | migrations.AlterField):
        column = column_of(new.tables[operation.model_name], operation.name)
        if column.backfill is not None and column.default is not None:
            return _with_default(operation, table_models.field_for(replace(column, default=column.backfill)))
    return operation


def _with_default(
    operation: migrations.AddField | migrations.AlterField, backfilled: "models.Field[Any, Any]"
) -> DjangoOperation:
    """The operation, which first sets the default of `backfilled`, then its own, while the table is locked."""
    kind: Any = type(operation)

    class WithBackfill(kind):  # type: ignore[misc]
        def database_forwards(
            self, app_label: str, schema_editor: Any, from_state: ProjectState, to_state: ProjectState
        ) -> None:
            between = from_state.clone()
            first = kind(self.model_name, self.name, backfilled)
            first.state_forwards(app_label, between)
            first.database_forwards(app_label, schema_editor, from_state, between)
            then = migrations.AlterField(self.model_name, self.name, self.field)
            then.database_forwards(app_label, schema_editor, between, to_state)

    return WithBackfill(operation.model_name, operation.name, operation.field)


def _created(names: Collection[str], new: Schema, state: ProjectState) -> Iterator[DjangoOperation]:
    waiting, made = list(names), set(new.tables).difference(names)
    later: list[DjangoOperation] = []
    while waiting:
        ready = [name for name in waiting if _targets_of(new.tables[name]) <= {*made, name}] or waiting[:1]
        for name in ready:
            model = state.models[table_models.LABEL, name]
            missing = [c.key for c in new.tables[name].columns.values() if c.references not in {None, *made, name}]
            fields = [(key, field) for key, field in model.fields.items() if key not in missing]
            options = dict(model.options)
            if missing:
                later += [migrations.AddField(name, key, model.fields[key]) for key in missing]
                later += [migrations.AddIndex(name, index) for index in options.pop("indexes")]
                later += [migrations.AddConstraint(name, constraint) for constraint in options.pop("constraints")]
            yield migrations.CreateModel(name, fields, options)
        made.update(ready)
        waiting = [name for name in waiting if name not in made]
    yield from later


def _targets_of(table: Table) -> set[str]:
    return {column.references for column in table.columns.values() if column.references}


def _phase(operation: DjangoOperation) -> int:
    """Constraints and indexes are dropped first and added last, because Django ignores that constraints depend on
    fields."""
    if isinstance(operation, migrations.RemoveConstraint | migrations.RemoveIndex):
        return 0
    return 2 if isinstance(operation, migrations.AddConstraint | migrations.AddIndex) else 1
