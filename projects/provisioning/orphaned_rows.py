"""Finds and removes rows that name a deleted environment, as after restores of databases to different points in time.
An environment counts as deleted if the control database does not know it, it is not being created, its id is older than
ORPHAN_GRACE_SECONDS, and its region has no schema (else: `projects.provisioning.schemas`)."""

from collections.abc import Iterator
from typing import Final, LiteralString

from django.db import DEFAULT_DB_ALIAS, models
from psycopg import sql

from accounts import signal_handlers
from platform_site.identity import ids
from platform_site.postgres import statements
from projects.models import Environment
from projects.provisioning import schemas

AT_ONCE: Final = 200

_EVERY_ROW: Final = "TRUE"
_in_regions: Final[dict[type[models.Model], LiteralString]] = {}

_SKIP_SCAN: Final = sql.SQL("""
WITH RECURSIVE reached AS (
    (SELECT environment_id FROM {table} WHERE environment_id > %(after)s AND {only} ORDER BY environment_id LIMIT 1)
    UNION ALL
    SELECT (SELECT environment_id FROM {table} WHERE environment_id > reached.environment_id AND {only}
             ORDER BY environment_id LIMIT 1)
      FROM reached WHERE reached.environment_id IS NOT NULL
)
SELECT environment_id FROM reached WHERE environment_id IS NOT NULL LIMIT %(limit)s
""")


def register(*tables: type[models.Model], only: LiteralString = _EVERY_ROW) -> None:
    """Register tables of the regions: small, or indexed by `environment_id` over the rows of `only` (SQL)."""
    _in_regions.update(dict.fromkeys(tables, only))


def find(cluster: str) -> Iterator[str]:
    """Raises DatabaseError."""
    for table, only in _in_regions.items():
        for environment_id in _gone(table, cluster, only):
            if not schemas.has_schema(environment_id, cluster):
                yield environment_id


def find_in_control() -> Iterator[str]:
    for table in signal_handlers.OF_ENVIRONMENTS:
        yield from _gone(table, DEFAULT_DB_ALIAS, _EVERY_ROW)


def _gone(table: type[models.Model], using: str, only: LiteralString) -> Iterator[str]:
    statement = _SKIP_SCAN.format(table=sql.Identifier(table._meta.db_table), only=sql.SQL(only)).as_string(None)
    found = [""]
    while found := statements.column(using, statement, {"after": found[-1], "limit": AT_ONCE}):
        known = set(Environment.objects.filter(pk__in=found).values_list("pk", flat=True))
        for environment_id in found:
            if environment_id not in known and ids.matches("env", environment_id) and schemas.is_gone(environment_id):
                yield environment_id
