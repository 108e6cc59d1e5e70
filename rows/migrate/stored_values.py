"""Finds stored values that PostgreSQL accepts and the API does not allow. Tables are named without a schema: call it in
`rows.migrate.apply.use_schema`."""

import sys
from collections.abc import Iterable
from typing import Final

from django.db.migrations import operations as migrations
from psycopg import sql

from platform_site.http.errors import FieldError
from platform_site.postgres import statements
from rows.migrate.planning.plan import Plan, Step
from rows.migrate.schema_editor import RowSchemaEditor
from rows.schema import column_values
from rows.schema.model import ID, Column, InvalidDocument, Table
from rows.schema.values import MAX_JSON_DEPTH

_UNREADABLE: Final = {
    "date": sql.SQL("{column} NOT BETWEEN '0001-01-01' AND '9999-12-31'"),
    "timestamp": sql.SQL("{column} NOT BETWEEN '0001-01-01' AND '9999-12-31 23:59:59.999999+00'"),
    "float": sql.SQL("{column} IN ('NaN', 'Infinity', '-Infinity')"),
    # JSON's own null would be shown as null and met by no `$null`. Numbers and depth as in `values` and in bodies.
    "json": sql.SQL("jsonb_typeof({column}) = 'null' OR {column} @? {huge} OR {column} @? {deep}"),
}
_UNREACHABLE: Final = sql.SQL("id !~ {} OR id = ANY({})").format(
    sql.Literal(f"^{column_values.ROW_ID.pattern}$"), sql.Literal(sorted(column_values.RESERVED_IDS))
)
_PATHS: Final = {
    "huge": sql.Literal(
        f'strict $.** ? (@.type() == "number" && (@.abs() > {sys.float_info.max!r} || @ != 0 && @.abs() < 4.9e-324))'
    ),
    "deep": sql.Literal(f'strict $.**{{{MAX_JSON_DEPTH}}} ? (@.type() == "array" || @.type() == "object")'),
}


def _unreadable(column: Column) -> sql.Composed:
    return _UNREADABLE[column.type].format(column=sql.Identifier(column.name), **_PATHS)


def unreadable_cell(alias: str, table: Table) -> tuple[str, str] | None:
    """The id of a row and a column with such a value; None if there is none. One query."""
    tests = {ID.name: _UNREACHABLE}
    tests |= {name: _unreadable(column) for name, column in table.all_columns.items() if column.type in _UNREADABLE}
    query = sql.SQL("SELECT id, ARRAY[{}] FROM {} WHERE {} LIMIT 1").format(
        sql.SQL(", ").join(tests.values()), sql.Identifier(table.name), sql.SQL(" OR ").join(tests.values())
    )
    for row_id, is_met in statements.rows(alias, query):
        return row_id, list(tests)[is_met.index(True)]
    return None


def _holds_any(editor: RowSchemaEditor, table: str, test: sql.Composable) -> bool:
    query = sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE {})").format(sql.Identifier(table), test)
    return bool(statements.value(editor.connection.alias, query))


def _converted(plan: Plan, step: Step) -> tuple[str, Column] | None:
    """The table and the column that gets another type by this step, if any."""
    if not isinstance(step.django, migrations.AlterField) or step.column is None:
        return None
    table: str = step.django.model_name
    old = plan.renamed.schema.tables[table].columns[step.column.name]
    return None if old.type == step.column.type else (table, step.column)


def refuse_unreadable(editor: RowSchemaEditor, plan: Plan, step: Step) -> None:
    """Raise InvalidDocument if the step made values that the API cannot show."""
    if converted := _converted(plan, step):
        table, column = converted
        if column.type in _UNREADABLE and _holds_any(editor, table, _unreadable(column)):
            raise InvalidDocument([FieldError(step.path, "invalid", f"existing values cannot become {column.type}")])


def refuse_large_rows(editor: RowSchemaEditor, plan: Plan) -> None:
    """Raise InvalidDocument if text that became JSON makes a row too large (numbers lose exponents)."""
    for step in plan.steps:
        if converted := _converted(plan, step):
            table, column = converted
            columns = plan.new.tables[table].columns.values()
            if column.type == "json" and _holds_any(editor, table, is_row_too_large(columns)):
                message = f"existing rows would hold more than {column_values.MAX_ROW_BYTES >> 20} MB as json"
                raise InvalidDocument([FieldError(step.path, "conflict", message)])


def is_row_too_large(columns: Iterable[Column]) -> sql.Composable:
    sizes = [
        sql.SQL("coalesce(octet_length({}::text), 0)").format(sql.Identifier(column.name))
        for column in columns
        if column.type in column_values.LONG_TYPES
    ]
    return sql.SQL("{} > {}").format(sql.SQL(" + ").join(sizes), sql.Literal(column_values.MAX_ROW_BYTES))
