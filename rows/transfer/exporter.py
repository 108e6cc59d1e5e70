"""Exports a table as CSV or NDJSON in one COPY statement, with cells as in the API (`rows.query.sql.row_json`),
for `rows.transfer.importer`. No rules are applied."""

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from django.db import transaction
from psycopg import sql

from platform_site.identity.callers import EnvironmentRef
from platform_site.postgres import statements, transaction_settings
from platform_site.postgres.row_access import row_access
from rows.migrate import versions as schema_versions
from rows.query.sql.row_json import json_format
from rows.schema.model import Column, Table
from rows.transfer.file_formats import Format
from rows.transfer.import_report import NoSuchTable

_AS_JSON: Final = frozenset({"json", "text[]"})

_OPTIONS: Final[dict[Format, sql.SQL]] = {
    "csv": sql.SQL("(FORMAT csv, HEADER)"),
    # Writes each line of JSON unchanged: JSON escapes these two control characters, so nothing is ever quoted.
    "ndjson": sql.SQL("(FORMAT csv, QUOTE E'\\x01', DELIMITER E'\\x02')"),
}


class NoSuchColumn(Exception):
    pass


def table_of(environment: EnvironmentRef, name: str) -> Table:
    known = schema_versions.current(environment).schema.tables
    if name not in known:
        raise NoSuchTable(name, known)
    return known[name]


def export_rows(
    environment: EnvironmentRef, table: Table, form: Format, columns: Collection[str] | None = None
) -> Iterator[tuple[bytes, int]]:
    """Pieces of the file, with their numbers of rows. `columns`: names or keys. Raises NoSuchColumn."""
    chosen = list(table.all_columns.values()) if columns is None else [_column(table, name) for name in columns]
    select = _csv(chosen) if form == "csv" else _ndjson(chosen)
    copy = sql.SQL("COPY (SELECT {} FROM {} r ORDER BY r.id) TO STDOUT {}").format(
        select, sql.Identifier(environment.environment_id, table.name), _OPTIONS[form]
    )
    with transaction.atomic(using=environment.cluster), row_access():
        transaction_settings.lift_limits(environment.cluster)
        with statements.copy(environment.cluster, copy) as reading:
            header = form == "csv"
            for piece in reading:
                yield bytes(piece), 0 if header else 1
                header = False


def _column(table: Table, name: str) -> Column:
    column = table.column(name)
    if column is None:
        raise NoSuchColumn(name)
    return column


def _rendered(column: Column, alias: str = "r") -> sql.Composed:
    before, after = json_format(column)
    return sql.SQL("{}{}{}").format(sql.SQL(before), sql.Identifier(alias, column.name), sql.SQL(after))


def json_cells(columns: Iterable[Column], alias: str = "r") -> sql.Composed:
    return sql.SQL(", ").join(
        sql.SQL("{} AS {}").format(_rendered(column, alias), sql.Identifier(column.name)) for column in columns
    )


def _csv(columns: Collection[Column]) -> sql.Composed:
    return sql.SQL(", ").join(
        sql.SQL("to_json({})::text AS {}" if column.type in _AS_JSON else "{} AS {}").format(
            _rendered(column), sql.Identifier(column.name)
        )
        for column in columns
    )


def _ndjson(columns: Collection[Column]) -> sql.Composed:
    return sql.SQL("(SELECT row_to_json(_q) FROM (SELECT {}) _q)").format(json_cells(columns))
