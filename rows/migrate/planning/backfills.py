from dataclasses import replace
from typing import Any

from django.db import migrations, models
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from rows.query.tables import table_models
from rows.schema.model import Column


class _Backfill:
    """Sets the backfill as the default, then restores it, while the table is locked."""

    plain: type[migrations.AddField | migrations.AlterField]
    backfilled: "models.Field[Any, Any]"
    model_name: str
    name: str
    field: "models.Field[Any, Any]"

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        between = from_state.clone()
        first = self.plain(self.model_name, self.name, self.backfilled)
        first.state_forwards(app_label, between)
        first.database_forwards(app_label, schema_editor, from_state, between)
        then = migrations.AlterField(self.model_name, self.name, self.field)
        then.database_forwards(app_label, schema_editor, between, to_state)


class _Add(_Backfill, migrations.AddField):
    plain = migrations.AddField


class _Alter(_Backfill, migrations.AlterField):
    plain = migrations.AlterField


def with_backfill(operation: migrations.AddField | migrations.AlterField, column: Column) -> Operation:
    kind = _Add if isinstance(operation, migrations.AddField) else _Alter
    made = kind(operation.model_name, operation.name, operation.field)
    made.backfilled = table_models.field_for(replace(column, default=column.backfill))
    return made
