from collections.abc import Iterator
from typing import Final

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from psycopg import sql

from platform_site.http.errors import FieldError
from rows.migrate.planning.plan import Plan
from rows.query.tables import table_checks, table_models
from rows.rules.conditions import Condition
from rows.schema.model import Column, InvalidDocument, Table


def check(connection: BaseDatabaseWrapper, plan: Plan) -> None:
    with connection.cursor() as cursor:
        errors = [*_gaps(cursor, plan), *_violations(connection, cursor, plan)]
    if errors:
        raise InvalidDocument(errors)


def _gaps(cursor: CursorWrapper, plan: Plan) -> Iterator[FieldError]:
    """Columns that become not null without a value for existing rows."""
    for gap in plan.gaps:
        question = sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE {})").format(
            sql.Identifier(gap.table),
            sql.SQL("{} IS NULL").format(sql.Identifier(gap.column)) if gap.column else sql.SQL("true"),
        )
        cursor.execute(question)
        if cursor.fetchone()[0]:
            message = 'existing rows have no value here: add "backfill" or "default", or "null": true'
            yield FieldError(gap.path, "required", message)


def _violations(connection: BaseDatabaseWrapper, cursor: CursorWrapper, plan: Plan) -> Iterator[FieldError]:
    """New constraints that existing rows violate, with their number and first ids."""
    for check in plan.new_checks:
        condition = _condition_of(connection, plan.old.tables[check.table], check.check)
        cursor.execute(_VIOLATING.format(table=sql.Identifier(check.table), condition=condition))
        number, found = cursor.fetchone()
        if number:
            more = ", …" if number > len(found) else ""
            message = f"existing rows have values that this does not allow ({number}): {', '.join(found)}{more}"
            yield FieldError(check.path, "conflict", message)


def _condition_of(connection: BaseDatabaseWrapper, table: Table, check: Column | Condition) -> sql.SQL:
    if isinstance(check, Column):
        return sql.SQL(table_models.check_sql(check, connection))
    return sql.SQL(table_checks.text_of(table, check))


_VIOLATING: Final = sql.SQL(
    "WITH violating AS (SELECT id FROM {table} WHERE NOT ({condition}))"
    " SELECT (SELECT count(*) FROM violating), ARRAY(SELECT id FROM violating ORDER BY id LIMIT 20)"
)
