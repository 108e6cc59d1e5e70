"""`manage.py migrate`: the control database and every region, unless `--database` names one.

Several hosts may start at once: the first to come migrates, the others wait for it (an advisory lock in each database).
"""

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import CommandParser, OutputWrapper
from django.core.management.commands import migrate
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.recorder import MigrationRecorder

from platform_site.postgres import direct

_LOCK: Final = 0x6D69_6772_6174_65  # "migrate", the key of the advisory lock


class Command(migrate.Command):
    help = "Migrates the control database and every region database (or only the one that --database names)."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.set_defaults(database=None)

    def get_check_kwargs(self, options: dict[str, Any]) -> Any:  # django-stubs' own type excludes what Django passes on
        """Django checks the one database that it would migrate; here none named means all of them."""
        named = options["database"]
        return {**super().get_check_kwargs(options), "databases": [named] if named else list(settings.DATABASES)}

    def handle(self, *args: Any, **options: Any) -> None:
        named = options.pop("database")
        for alias in [named] if named else [DEFAULT_DB_ALIAS, *settings.REGION_DATABASES]:
            if options["verbosity"] >= 1:
                self.stdout.write(self.style.MIGRATE_HEADING(f"Database {alias}:"))
            direct.go_direct(alias)
            with _alone(alias):
                if alias in settings.REGION_DATABASES:
                    with connections[alias].cursor() as cursor:
                        cursor.execute("CREATE SCHEMA IF NOT EXISTS platform")
                super().handle(*args, database=alias, **options)


def bring_up_to_date(stdout: OutputWrapper) -> None:
    """Migrate the databases that are behind this release; for one that is not, the cost is one query.

    Regions are alike, and most of the time of a migration goes into Django's working out what to say. So what was said
    to the first new one is said again to every other new one.
    """
    said: list[_Said] = []
    for alias in [DEFAULT_DB_ALIAS, *settings.REGION_DATABASES]:
        if said and _is_new(alias):
            stdout.write(f"Bringing the database {alias} up to date")
            _say_again(alias, said)
            continue
        executor = MigrationExecutor(connections[alias])
        if not executor.migration_plan(executor.loader.graph.leaf_nodes()):
            continue
        stdout.write(f"Bringing the database {alias} up to date")
        is_new = _is_new(alias)
        if not is_new:
            gc.enable()  # `manage.py serve` begins without, which does for an empty database; this may be a full one
        is_new_region = alias in settings.REGION_DATABASES and is_new
        with _overheard(alias, said if is_new_region else []):
            call_command("migrate", database=alias, verbosity=0, interactive=False, skip_checks=True)


def _is_new(alias: str) -> bool:
    """Whether nothing was ever migrated there."""
    return not MigrationRecorder(connections[alias]).has_table()


_Said = tuple[Any, Any, bool]
"""A statement, its parameters, and whether they are many."""
_BESIDE_THE_TRAFFIC: Final = re.compile(r"^\s*((?:CREATE|DROP)(?: UNIQUE)? INDEX) CONCURRENTLY\b", re.IGNORECASE)
_OF_THE_SESSION: Final = ("SELECT", "SET ", "RESET ", "SAVEPOINT ", "RELEASE ")


@contextmanager
def _overheard(alias: str, said: list[_Said]) -> Iterator[None]:
    """Write down what the block does to the database. Asking, locking and settings belong to its session alone."""

    def write_down(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        if not str(sql).lstrip().upper().startswith(_OF_THE_SESSION):
            # In a new database there is no traffic to stay beside, and all of this is said again in one transaction.
            said.append((_BESIDE_THE_TRAFFIC.sub(r"\1", str(sql)), params, many))
        return execute(sql, params, many, context)

    with connections[alias].execute_wrapper(write_down):
        yield


def _say_again(alias: str, said: list[_Said]) -> None:
    """All of it or, if it is cut off, nothing: then the next start begins anew."""
    with _alone(alias):
        if not _is_new(alias):  # another host was faster
            return
        with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
            for sql, params, many in said:
                (cursor.executemany if many else cursor.execute)(sql, params)


@contextmanager
def _alone(alias: str) -> Iterator[None]:
    """Hold the database's migration lock, for as long as it takes."""
    with connections[alias].cursor() as cursor:
        # Without the limits of a request: another host may need long, and so may our own statements. Waiting for a
        # table stays limited, or everybody else would queue behind us.
        cursor.execute("SET statement_timeout = 0")
        cursor.execute("SET lock_timeout = 0")
        # Each migration is a commit, and need not wait for the disk: a crash forgets the last ones, record and change
        # alike, and the next start makes them again. What is written afterwards stands behind them in the same log.
        cursor.execute("SET synchronous_commit = off")
        cursor.execute("SELECT pg_advisory_lock(%s)", [_LOCK])
        cursor.execute("RESET lock_timeout")
    try:
        yield
    finally:
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [_LOCK])
        connections[alias].close()  # and with it the settings of this session
