from collections.abc import Iterator
from typing import Final

from django.db import connections
from psycopg import sql

from platform_site.http.errors import FieldError
from platform_site.postgres import statements
from rows.migrate.planning.plan import Plan
from rows.query.tables import table_checks, table_models
from rows.schema.model import Column, InvalidDocument


def check(alias: str, plan: Plan) -> None:
    if errors := [*_gaps(alias, plan), *_violations(alias, plan)]:
        raise InvalidDocument(errors)


def _gaps(alias: str, plan: Plan) -> Iterator[FieldError]:
    """Columns that become not null without a value for existing rows."""
    for gap in plan.gaps:
        question = sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE {})").format(
            sql.Identifier(gap.table),
            sql.SQL("{} IS NULL").format(sql.Identifier(gap.column)) if gap.column else sql.SQL("true"),
        )
        if statements.value(alias, question):
            message = 'existing rows have no value here: add "backfill" or "default", or "null": true'
            yield FieldError(gap.path, "required", message)


def _violations(alias: str, plan: Plan) -> Iterator[FieldError]:
    """New constraints that existing rows violate, with their number and first ids."""
    for check in plan.new_checks:
        text = (
            table_models.check_sql(check.check, connections[alias])
            if isinstance(check.check, Column)
            else table_checks.text_of(plan.old.tables[check.table], check.check)
        )
        violating = _VIOLATING.format(table=sql.Identifier(check.table), condition=sql.SQL(text))
        number, found = statements.row(alias, violating)
        if number:
            more = ", …" if number > len(found) else ""
            message = f"existing rows have values that this does not allow ({number}): {', '.join(found)}{more}"
            yield FieldError(check.path, "conflict", message)


_VIOLATING: Final = sql.SQL(
    "WITH violating AS (SELECT id FROM {table} WHERE NOT ({condition}))"
    " SELECT (SELECT count(*) FROM violating), ARRAY(SELECT id FROM violating ORDER BY id LIMIT 20)"
)
