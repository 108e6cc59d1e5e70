"""What databases hold, row by row, so that a test can say what has changed without knowing what it looks at."""

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any, Final, Self

import psycopg
from django.db import connections
from psycopg import sql

Contents = Counter[tuple[str, str]]
"""Of each row its table (`default.accounts_user`, `us-east-1.env.tasks`) and a digest."""
Changes = Mapping[str, tuple[int, int]]
"""For each table with changes, how many rows are new, and how many gone; a row that became another is both."""

_LEFT_OUT: Final = frozenset({
    "django_admin_log", "django_content_type", "django_session", "django_migrations",
    "auth_permission", "auth_group", "auth_group_permissions",
    # Metrics of the machine, written on a schedule.
    "platform_site_endpointmetric", "platform_site_ratelimitedcaller", "platform_site_regionmetric",
    "platform_site_functionmetric", "platform_site_sample",
})  # fmt: skip
_TABLES: Final = """
    SELECT schemaname, tablename FROM pg_tables
     WHERE schemaname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1, 2
"""
_ENVIRONMENTS: Final = "SELECT nspname FROM pg_namespace WHERE starts_with(nspname, 'env_')"


class Databases:
    """Some databases, by alias, seen over connections of our own that go where Django would go now."""

    def __init__(self, aliases: Iterable[str]) -> None:
        self._aliases = aliases
        self._connections: dict[str, psycopg.Connection[tuple[Any, ...]]] = {}
        self._open = ExitStack()

    def __enter__(self) -> Self:
        for alias in self._aliases:
            parts = connections[alias].settings_dict
            url = {"host": parts["HOST"], "user": parts["USER"], "password": parts["PASSWORD"], "dbname": parts["NAME"]}
            made = psycopg.connect(**{name: str(value) for name, value in url.items()}, autocommit=True)
            self._connections[alias] = self._open.enter_context(made)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def look(self) -> Contents:
        """Everything that is committed now: rows, tables and schemas of environments."""
        found: Contents = Counter()
        for alias, connection in self._connections.items():
            found.update((f"{alias}.schemas", name) for (name,) in connection.execute(_ENVIRONMENTS))
            every = []
            for schema, table in connection.execute(_TABLES).fetchall():
                if schema.startswith("env_"):
                    found[(f"{alias}.tables", f"{schema}.{table}")] += 1
                if table not in _LEFT_OUT:
                    name = f"{alias}.env.{table}" if schema.startswith("env_") else f"{alias}.{table}"
                    text = sql.SQL("SELECT {}, md5(it::text) FROM {} AS it")
                    every.append(text.format(name, sql.Identifier(schema, table)))
            found.update(
                (str(name), str(digest)) for name, digest in connection.execute(sql.SQL(" UNION ALL ").join(every))
            )
        return found


def changes(before: Contents, after: Contents) -> Changes:
    made, gone = Counter[str](), Counter[str]()
    for (table, _), count in (after - before).items():
        made[table] += count
    for (table, _), count in (before - after).items():
        gone[table] += count
    return {table: (made[table], gone[table]) for table in sorted(made | gone)}
