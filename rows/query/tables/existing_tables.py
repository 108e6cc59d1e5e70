from collections.abc import Collection
from typing import Final

from django.db import connections

_EXISTING: Final = """
SELECT n.nspname, c.relname
  FROM unnest(%s::text[], %s::text[]) AS asked (environment_id, name)
  JOIN pg_namespace n ON n.nspname = asked.environment_id
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = asked.name AND c.relkind = 'r'
"""


def existing_tables(using: str, pairs: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
    with connections[using].cursor() as cursor:
        cursor.execute(_EXISTING, [[pair[0] for pair in pairs], [pair[1] for pair in pairs]])
        return set(cursor.fetchall())
