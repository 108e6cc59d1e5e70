"""Finds and removes rows that name a deleted environment, as after restores of databases to different points in time.
An environment counts as deleted if the control database does not know it, it is not being created, its id is older than
ORPHAN_GRACE_SECONDS, and its region has no schema (else: `projects.provisioning.schemas`)."""

from collections.abc import Iterator
from typing import Final, LiteralString

from django.db import DEFAULT_DB_ALIAS, models

from accounts import signal_handlers
from platform_site.background.skip_scan import skip_scan
from platform_site.identity import ids
from platform_site.postgres import statements
from projects.models import Environment
from projects.provisioning import schemas

AT_ONCE: Final = 200

_EVERY_ROW: Final = "TRUE"
_in_regions: Final[dict[type[models.Model], LiteralString]] = {}


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


def _statement(table: type[models.Model], only: LiteralString) -> str:
    where = f"environment_id > %(after)s AND {only}"
    reached = skip_scan("reached", f'"{table._meta.db_table}"', "environment_id", where=where)
    return f"WITH RECURSIVE {reached} SELECT environment_id FROM reached LIMIT %(limit)s"  # noqa: S608 - no text of tenants


def _gone(table: type[models.Model], using: str, only: LiteralString) -> Iterator[str]:
    statement, found = _statement(table, only), [""]
    while found := statements.column(using, statement, {"after": found[-1], "limit": AT_ONCE}):
        known = set(Environment.objects.filter(pk__in=found).values_list("pk", flat=True))
        for environment_id in found:
            if environment_id not in known and ids.matches("env", environment_id) and schemas.is_gone(environment_id):
                yield environment_id
