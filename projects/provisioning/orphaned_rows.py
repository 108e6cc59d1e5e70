"""Orphaned rows: rows that name a deleted environment. No request can write such a row (`projects.directory.locks`),
but databases restored to different points in time may have some. Each app registers its tables whose rows depend only
on an environment; `find` scans their environments with a skip scan, and `remove` makes every app delete the
environment's data, as a deletion does. Nothing is removed without proof. An environment counts as deleted if the
control database does not know it now, it is not being created, it is older than ORPHAN_GRACE_SECONDS by its id, and in
a region also has no schema: an environment with a schema is left to `projects.provisioning.schemas`. If the control
database is unavailable, nothing happens."""

from collections.abc import Iterator
from typing import Final, LiteralString

from django.db import DEFAULT_DB_ALIAS, connections, models
from psycopg import sql

from accounts import signal_handlers
from platform_site.identity import ids, signals
from projects.models import Environment
from projects.provisioning import schemas

AT_ONCE: Final = 200

_EVERY_ROW: Final = "TRUE"
_in_regions: Final[dict[type[models.Model], LiteralString]] = {}
"""The tables, and which of their rows are looked at."""

_LEAP: Final = sql.SQL("""
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
    """Called at start by the app that has these tables in the regions. Each is small, or has an index of those rows
    that are meant by `only` (a condition in SQL) which begins with `environment_id`."""
    _in_regions.update(dict.fromkeys(tables, only))


def find(cluster: str) -> Iterator[str]:
    """The ids of environments that are gone and of which the region has rows. Raises DatabaseError."""
    for table, only in _in_regions.items():
        for environment_id in _gone(table, cluster, only):
            if not schemas.has_schema(environment_id, cluster):
                yield environment_id


def remove(environment_id: str, cluster: str) -> None:
    """Let every app forget what it keeps in the region of an environment that `find` found, in batches."""
    signals.environment_deleted.send(sender=Environment, environment_id=environment_id, cluster=cluster)


def find_in_control() -> Iterator[str]:
    """The ids of environments that are gone and that rows of `accounts` name. Raises DatabaseError."""
    for table in signal_handlers.OF_ENVIRONMENTS:
        yield from _gone(table, DEFAULT_DB_ALIAS, _EVERY_ROW)


def remove_from_control(environment_id: str) -> None:
    """Delete the users, keys, providers and so on of an environment that `find_in_control` found, in batches."""
    signal_handlers.delete_pool(environment_id=environment_id)


def _gone(table: type[models.Model], using: str, only: LiteralString) -> Iterator[str]:
    for found in _named_by(table, using, only):
        known = set(Environment.objects.filter(pk__in=found).values_list("pk", flat=True))
        for environment_id in found:
            if environment_id not in known and ids.matches("env", environment_id) and schemas.is_gone(environment_id):
                yield environment_id


def _named_by(table: type[models.Model], using: str, only: LiteralString) -> Iterator[list[str]]:
    """The environments that the table's rows name, AT_ONCE at a time: one entry of the index for each."""
    leap = _LEAP.format(table=sql.Identifier(table._meta.db_table), only=sql.SQL(only)).as_string(None)
    found = [""]
    while found:
        with connections[using].cursor() as cursor:
            cursor.execute(leap, {"after": found[-1], "limit": AT_ONCE})
            found = [environment_id for (environment_id,) in cursor.fetchall()]
        yield found
