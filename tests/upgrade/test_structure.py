"""A new database that hears what was recorded (`platform_site.postgres.snapshot.schema_snapshot`) is what migrating one
makes."""

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import OutputWrapper
from django.db import connections
from django.db.migrations.loader import MigrationLoader
from django.db.models.signals import post_migrate
from psycopg import sql

from platform_site.embedded import postgres as embedded_postgres
from platform_site.management.commands.migrate import apply_migrations
from platform_site.postgres.snapshot import schema_snapshot

pytestmark = pytest.mark.exhaustive

ALIASES = ["default", *settings.REGION_DATABASES]
FIRST = settings.REGION_DATABASES[0]


@pytest.fixture
def _unblocked(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock():
        yield


class PowerFailure(Exception):
    pass


@contextmanager
def new_databases() -> Iterator[None]:
    """Four empty databases under our aliases, for all threads."""
    ours = {alias: connections[alias].settings_dict["NAME"] for alias in ALIASES}
    new = {alias: f"structure-{alias}" for alias in ALIASES}
    with embedded_postgres.connect(settings.LAYOUT) as server:
        for name in new.values():
            server.execute(sql.SQL("CREATE DATABASE {} OWNER platform").format(sql.Identifier(name)))
    try:
        _point_to(new)
        yield
    finally:
        _point_to(ours)
        with embedded_postgres.connect(settings.LAYOUT) as server:
            for name in new.values():
                server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _point_to(names: dict[str, str]) -> None:
    for alias, name in names.items():
        connections[alias].close()
        connections[alias].settings_dict["NAME"] = name


def start() -> None:
    apply_migrations(OutputWrapper(StringIO()))


def asked(alias: str, statement: str) -> list[tuple[Any, ...]]:
    with connections[alias].cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def was_told(alias: str) -> bool:
    """Whether all migrations were applied in one transaction; migrating has one for each."""
    return asked(alias, "SELECT count(DISTINCT applied), count(*) > 10 FROM django_migrations") == [(1, True)]


OF_RECEIVERS = {
    "django_content_type": "SELECT app_label, model FROM django_content_type",
    "auth_permission": "SELECT app_label, model, codename, name FROM auth_permission"
    " JOIN django_content_type t ON t.id = content_type_id",
    "auth_group": "SELECT name FROM auth_group",
    "auth_group_permissions": "SELECT g.name, app_label, codename FROM auth_group_permissions"
    " JOIN auth_group g ON g.id = group_id JOIN auth_permission p ON p.id = permission_id"
    " JOIN django_content_type t ON t.id = content_type_id",
}
"""Their ids are given out in whatever order Django comes upon the models."""


def made_of(alias: str) -> tuple[list[str], dict[str, list[tuple[Any, ...]]]]:
    """All definitions of a database, as pg_dump says them, and all of its rows but for when they were written."""
    url = settings.LAYOUT.postgres_url(connections[alias].settings_dict["NAME"])
    command = [embedded_postgres.binaries() / "pg_dump", "--schema-only", "--restrict-key=x", url]
    definitions = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    tables = asked(
        alias,
        "SELECT tablename, format('SELECT to_jsonb(t) - %L FROM %I.%I t', 'applied', schemaname, tablename)"
        " FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')",
    )
    rows = {table: sorted(asked(alias, OF_RECEIVERS.get(table, everything)), key=str) for table, everything in tables}
    return definitions, rows


@pytest.mark.usefixtures("_unblocked")
def test_what_was_recorded_is_what_the_migrations_say() -> None:
    with new_databases():
        for alias in ("default", FIRST):
            file = schema_snapshot.file_of(alias)
            assert schema_snapshot.record(connections[alias]) == file.read_text(), (
                f"{file.name} is behind the migrations: run `python manage.py record_migrations` and commit what it writes"
            )


@pytest.mark.usefixtures("_unblocked")
def test_a_new_database_is_as_if_it_had_been_migrated() -> None:
    with new_databases():
        call_command("migrate", verbosity=0, interactive=False)
        assert not any(map(was_told, ALIASES))
        migrated = {alias: made_of(alias) for alias in ALIASES}
    with new_databases():
        start()
        assert all(map(was_told, ALIASES))
        told = {alias: made_of(alias) for alias in ALIASES}
        call_command("migrate", verbosity=0, interactive=False)
        assert {alias: made_of(alias) for alias in ALIASES} == told, "nothing is left to do"
    definitions, rows = migrated["default"]
    kinds = ("CREATE TABLE", "CREATE INDEX", "ADD CONSTRAINT", "ADD GENERATED")
    assert all(any(kind in line for line in definitions) for kind in kinds)
    filled = {"django_content_type", "auth_permission", "auth_group", "auth_group_permissions", "django_migrations"}
    assert {table for table, found in rows.items() if found} == filled
    assert "CREATE TRIGGER" in "".join(migrated[FIRST][0])
    for alias in ALIASES:
        assert told[alias] == migrated[alias], alias


def test_other_migrations_or_another_postgresql_are_not_what_was_recorded() -> None:
    here = SimpleNamespace(alias="default", pg_version=18_00_04)
    assert schema_snapshot.recorded(here, MigrationLoader(None))
    assert (
        schema_snapshot.recorded(SimpleNamespace(alias="default", pg_version=17_00_04), MigrationLoader(None)) is None
    )
    one_is_missing, one_is_different = MigrationLoader(None), MigrationLoader(None)
    del one_is_missing.disk_migrations["webhooks", "0001_initial"]
    assert schema_snapshot.recorded(here, one_is_missing) is None
    other = one_is_different.disk_migrations["auth", "0001_initial"]
    one_is_different.disk_migrations["webhooks", "0001_initial"] = other
    assert schema_snapshot.recorded(here, one_is_different) is None


@pytest.mark.usefixtures("_unblocked")
def test_check_and_plan_write_nothing() -> None:
    ours = "SELECT relname FROM pg_class WHERE oid >= 16384 UNION SELECT nspname FROM pg_namespace WHERE oid >= 16384"
    with new_databases():
        for alias in ("default", FIRST):
            with pytest.raises(SystemExit):
                call_command("migrate", "--check", database=alias, verbosity=0)
            call_command("migrate", "--plan", database=alias, verbosity=0)
            assert asked(alias, ours) == []


@pytest.mark.usefixtures("_unblocked")
def test_one_that_was_cut_off_begins_anew() -> None:
    def fail(*, using: str, **_: Any) -> None:
        raise PowerFailure(using)

    with new_databases():
        post_migrate.connect(fail)
        try:
            with pytest.raises(PowerFailure, match="default"):
                start()
        finally:
            post_migrate.disconnect(fail)
        assert asked("default", "SELECT tablename FROM pg_tables WHERE schemaname = 'public'") == []
        start()
        assert all(map(was_told, ALIASES))


@pytest.mark.usefixtures("_unblocked")
def test_migration_interrupted_after_its_last_step_is_completed_on_start() -> None:
    """What receivers of `post_migrate` write comes after the last commit of a migration, in commits of its own."""

    def fail(*, using: str, **_: Any) -> None:
        raise PowerFailure(using)

    rights = "SELECT count(*) FROM auth_permission"
    with new_databases():
        start()
        [(whole,)] = asked("default", rights)
        asked("default", "WITH gone AS (DELETE FROM auth_group_permissions RETURNING 1) SELECT count(*) FROM gone")
        asked("default", "WITH gone AS (DELETE FROM auth_permission RETURNING 1) SELECT count(*) FROM gone")
        start()
        assert asked("default", rights) == [(0,)], "a start looks at the migrations alone"
        post_migrate.connect(fail)
        try:
            with pytest.raises(PowerFailure, match="default"):
                call_command("migrate", verbosity=0, interactive=False)
        finally:
            post_migrate.disconnect(fail)
        call_command("migrate", "--plan", verbosity=0)
        start()
        assert asked("default", rights) == [(whole,)]
        assert asked("default", "SELECT obj_description('django_migrations'::regclass)") == [(None,)]


@pytest.mark.usefixtures("_unblocked")
def test_hosts_that_start_at_once_wait_for_each_other() -> None:
    failures: list[BaseException] = []

    def host() -> None:
        try:
            start()
        except BaseException as error:
            failures.append(error)
        finally:
            connections.close_all()

    with new_databases():
        hosts = [threading.Thread(target=host) for _ in range(3)]
        for each in hosts:
            each.start()
        for each in hosts:
            each.join()
        assert failures == []
        assert all(map(was_told, ALIASES))
