"""What PostgreSQL's catalog says of the tables of environments."""

from collections.abc import Collection
from typing import Final

from platform_site.postgres import statements

_EXISTING: Final = """
SELECT n.nspname, c.relname
  FROM unnest(%s::text[], %s::text[]) AS wanted (environment_id, name)
  JOIN pg_namespace n ON n.nspname = wanted.environment_id
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name AND c.relkind = 'r'
"""
_SIZES: Final = """
SELECT c.relname, greatest(0, c.reltuples, pg_catalog.pg_stat_get_live_tuples(c.oid))::bigint,
       (c.relpages + coalesce(t.relpages, 0)) * pg_catalog.current_setting('block_size')::bigint
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_catalog.pg_class t ON t.oid = c.reltoastrelid
 WHERE n.nspname = %s AND c.relkind = 'r'
"""


def existing_tables(using: str, pairs: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
    return set(statements.rows(using, _EXISTING, [[pair[0] for pair in pairs], [pair[1] for pair in pairs]]))


def estimated_sizes(using: str, environment_id: str) -> dict[str, tuple[int, int]]:
    """Each table's rows and bytes, by PostgreSQL's statistics: exact numbers would need locks or read all rows."""
    return {name: (rows, size) for name, rows, size in statements.rows(using, _SIZES, [environment_id])}
