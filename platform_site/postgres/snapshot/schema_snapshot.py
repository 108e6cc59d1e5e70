"""The SQL of all migrations for an empty database, in `control.sql` and `region.sql`, since computing it is most of a
migration's time. The first line has a hash of migrations and PostgreSQL's version: if it differs, migrations run."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader

_SESSION_STATEMENTS: Final = ("SELECT", "SET ", "RESET ", "SAVEPOINT ", "RELEASE ")
_CONCURRENTLY: Final = re.compile(r"^\s*((?:CREATE|DROP)(?: UNIQUE)? INDEX) CONCURRENTLY\b", re.IGNORECASE)
_APPLIED: Final = re.compile(r"""^(INSERT INTO "django_migrations" .*)'[^']+'::timestamptz\) RETURNING .*$""")


def file_of(alias: str) -> Path:
    return Path(__file__).with_name("region.sql" if alias in settings.REGION_DATABASES else "control.sql")


def recorded(connection: Any, loader: MigrationLoader) -> str | None:
    """None if the recorded statements do not match."""
    first, _, statements = file_of(connection.alias).read_text().partition("\n")
    return statements if first == _first_line(connection, loader) else None


def record(connection: Any) -> str:
    statements: list[str] = []
    connection.ensure_connection()  # a new connection changes the list of wrappers, and this must be the last
    with _recording(connection, statements):
        make_schema(connection)
        executor = MigrationExecutor(connection)
        executor.migrate(executor.loader.graph.leaf_nodes())
    return "\n".join([_first_line(connection, executor.loader), *(f"{statement};" for statement in statements), ""])


def make_schema(connection: BaseDatabaseWrapper) -> None:
    if connection.alias in settings.REGION_DATABASES:
        with connection.cursor() as cursor:
            cursor.execute("CREATE SCHEMA IF NOT EXISTS platform")


def _first_line(connection: Any, loader: MigrationLoader) -> str:
    digest = sha256()
    for key, migration in sorted(loader.disk_migrations.items()):
        source = Path(str(sys.modules[type(migration).__module__].__file__)).read_bytes()
        digest.update(f"{key} {sha256(source).hexdigest()}\n".encode())
    return f"-- Made by manage.py record_migrations, PostgreSQL {connection.pg_version // 10000}, {digest.hexdigest()}"


@contextmanager
def _recording(connection: Any, statements: list[str]) -> Iterator[None]:
    def record_statement(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        if not str(sql).lstrip().upper().startswith(_SESSION_STATEMENTS):
            for values in params if many else [params]:
                text = connection.ops.compose_sql(str(sql), values).strip().rstrip(";")
                # All of this runs in one transaction, where CONCURRENTLY is not allowed.
                statements.append(_APPLIED.sub(r"\1now())", _CONCURRENTLY.sub(r"\1", text)))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(record_statement):
        yield
