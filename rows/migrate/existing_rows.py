"""Existing rows that a change does not allow: found by its plan, and again before it begins."""

from collections.abc import Collection, Iterator
from typing import Any, Final

from django.db import Error as DatabaseError
from django.db import connections, transaction
from psycopg import sql

from platform_site.http.errors import FieldError
from platform_site.postgres import sqlstates, statements
from platform_site.postgres.transaction_settings import limited
from rows.migrate.planning.plan import AddedUnique, Plan
from rows.query.tables import table_models
from rows.schema.model import Column, InvalidDocument

DUPLICATES_MS: Final = 10_000
"""Duplicates are found by a sort: of a very large table, they are left for the index to find."""


def check(alias: str, plan: Plan, *, proven: Collection[str] = ()) -> None:
    """`proven`: names of steps whose uniques have an index already. In a transaction. Raises InvalidDocument."""
    if errors := [*_gaps(alias, plan), *_violations(alias, plan), *_duplicates(alias, plan, proven)]:
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
        condition = check.condition
        if isinstance(condition, Column):
            condition = sql.SQL(table_models.check_sql(condition, connections[alias]))
        query = _VIOLATING.format(table=sql.Identifier(check.table), condition=condition)
        number, found = statements.row(alias, query)
        if number:
            more = ", …" if number > len(found) else ""
            yield FieldError(check.path, "conflict", f"{check.message} ({number}): {', '.join(found)}{more}")


_VIOLATING: Final = sql.SQL(
    "WITH violating AS (SELECT id FROM {table} WHERE NOT ({condition}))"
    " SELECT (SELECT count(*) FROM violating), ARRAY(SELECT id FROM violating ORDER BY id LIMIT 20)"
)


def _duplicates(alias: str, plan: Plan, proven: Collection[str]) -> Iterator[FieldError]:
    for unique in plan.added_uniques:
        if unique.step.name in proven:
            continue
        try:
            with limited(alias, DUPLICATES_MS), connections[alias].cursor() as cursor:
                found = duplicates(cursor, unique)
                transaction.set_rollback(True, using=alias)  # so that the limit ends here
        except DatabaseError as error:
            if sqlstates.sqlstate(error) != sqlstates.CANCELLED:
                raise
            continue
        if found:
            yield found


def duplicates(cursor: Any, unique: AddedUnique) -> FieldError | None:
    """An error with the number of rows and ten pairs of ids, or None."""
    columns = list(map(sql.Identifier, unique.columns))
    cursor.execute(
        _DUPLICATES.format(
            table=sql.Identifier(unique.table),
            columns=sql.SQL(", ").join(columns),
            present=sql.SQL(" AND ").join(sql.SQL("{} IS NOT NULL").format(column) for column in columns),
        )
    )
    number, groups, found = cursor.fetchone()
    if not groups:
        return None
    more = ", …" if groups > len(found) else ""
    message = f"existing rows are not unique in {', '.join(unique.step.columns)} ({number}): {', '.join(found)}{more}"
    return FieldError(unique.step.path, "conflict", message)


_DUPLICATES: Final = sql.SQL(
    "WITH duplicates AS (SELECT min(id) AS first, max(id) AS last, count(*) AS rows FROM {table} WHERE {present}"
    " GROUP BY {columns} HAVING count(*) > 1)"
    " SELECT (SELECT sum(rows)::bigint FROM duplicates), (SELECT count(*) FROM duplicates),"
    " ARRAY(SELECT first || ' and ' || last FROM duplicates ORDER BY first LIMIT 10)"
)
