"""`manage.py migrate`: control database and regions, unless `--database` names one; one host at a time."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import CommandParser, OutputWrapper
from django.core.management.commands import migrate
from django.core.management.sql import emit_post_migrate_signal
from django.db import DEFAULT_DB_ALIAS, OperationalError, connections, transaction
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from platform_site.postgres import direct, sqlstates, statements
from platform_site.postgres.snapshot import schema_snapshot

_LOCK: Final = 0x6D69_6772_6174_65  # "migrate", the key of the advisory lock
_BEGUN: Final = "COMMENT ON TABLE django_migrations IS 'migrate has begun, and not come to its end'"
_DONE: Final = "COMMENT ON TABLE django_migrations IS NULL"
_TRIES: Final = 20
_PAUSE_SECONDS: Final = 1.0


class Command(migrate.Command):
    help = "Migrate the control database and every region database (or only the one that --database names)."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.set_defaults(database=None)

    def get_check_kwargs(self, options: dict[str, Any]) -> Any:  # django-stubs' own type excludes what Django passes on
        """Without a name, Django's checks cover all databases."""
        named = options["database"]
        return {**super().get_check_kwargs(options), "databases": [named] if named else list(settings.DATABASES)}

    def handle(self, *args: Any, **options: Any) -> None:
        named = options.pop("database")
        for alias in [named] if named else [DEFAULT_DB_ALIAS, *settings.REGION_DATABASES]:
            if options["verbosity"] >= 1:
                self.stdout.write(self.style.MIGRATE_HEADING(f"Database {alias}:"))
            direct.go_direct(alias)
            with _locked(alias):
                changes = not (options["plan"] or options["check_unapplied"])
                if changes:
                    schema_snapshot.make_schema(connections[alias])
                    _mark(alias, _BEGUN)
                self._migrate(*args, database=alias, **options)
                if changes:
                    _mark(alias, _DONE)

    def _migrate(self, *args: Any, **options: Any) -> None:
        """Django's `migrate`, repeated after `lock_timeout` or a deadlock, up to 20 times."""
        for tries_left in reversed(range(_TRIES)):
            try:
                super().handle(*args, **options)
            except OperationalError as error:
                if not tries_left or sqlstates.sqlstate(error) not in sqlstates.INTERFERED:
                    raise
                reason = str(error).partition("\n")[0]
            else:
                return
            self.stderr.write(f"Other transactions lock what it changes ({reason}). {tries_left} more tries follow.")
            time.sleep(_PAUSE_SECONDS)


def apply_migrations(stdout: OutputWrapper) -> None:
    """Two queries for a current database. A new one runs the recorded SQL if it fits (`postgres.snapshot`)."""
    for alias in [DEFAULT_DB_ALIAS, *settings.REGION_DATABASES]:
        executor = MigrationExecutor(connections[alias])
        if not executor.migration_plan(executor.loader.graph.leaf_nodes()) and not _was_interrupted(alias):
            continue
        stdout.write(f"Bringing the database {alias} up to date")
        if make_new(alias, executor.loader):
            continue
        if not _is_new(alias):
            gc.enable()  # `manage.py serve` begins without, which does for an empty database; this may be a full one
        call_command("migrate", database=alias, verbosity=0, interactive=False, skip_checks=True)


def make_new(alias: str, loader: MigrationLoader | None = None) -> bool:
    """Fill a new database from the record. False if it is not new or does not fit."""
    if not _is_new(alias):
        return False
    connection = connections[alias]
    recorded = schema_snapshot.recorded(connection, loader or MigrationLoader(connection))
    return recorded is not None and _execute_recorded(alias, recorded)


def _mark(alias: str, statement: str) -> None:
    """Marks that receivers of `post_migrate`, which write after the last commit, have not finished."""
    MigrationRecorder(connections[alias]).ensure_schema()
    statements.execute(alias, statement)


def _was_interrupted(alias: str) -> bool:
    found = statements.value(alias, "SELECT obj_description('django_migrations'::regclass, 'pg_class') IS NOT NULL")
    return bool(found)


def _is_new(alias: str) -> bool:
    return not MigrationRecorder(connections[alias]).has_table()


def _execute_recorded(alias: str, recorded: str) -> bool:
    """Run all statements on a new database, or none. False if another host was faster."""
    direct.go_direct(alias)
    with _locked(alias):
        if not _is_new(alias):
            return False
        with transaction.atomic(using=alias):
            statements.execute(alias, recorded)
            emit_post_migrate_signal(verbosity=0, interactive=False, db=alias)
    return True


@contextmanager
def _locked(alias: str) -> Iterator[None]:
    with connections[alias].cursor() as cursor:
        # Without the limits of a request, because another host or this one's statements may need long. Waiting for a
        # table stays limited, or all other statements would queue behind it.
        cursor.execute("SET statement_timeout = 0")
        cursor.execute("SET lock_timeout = 0")
        # Each migration commits asynchronously: a crash loses the last ones, record and change alike, and the next
        # start applies them again. Later writes follow them in the same log.
        cursor.execute("SET synchronous_commit = off")
        cursor.execute("SELECT pg_advisory_lock(%s)", [_LOCK])
        cursor.execute("RESET lock_timeout")
    try:
        yield
    finally:
        statements.execute(alias, "SELECT pg_advisory_unlock(%s)", [_LOCK])
        connections[alias].close()  # and with it the settings of this session
