"""How many rows a piece of work looks at and changes, by PostgreSQL's own count: what it costs, on any machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from django.db import connections

_COUNTS = """
SELECT seq_tup_read + coalesce(idx_tup_fetch, 0), n_tup_upd FROM pg_stat_user_tables
 WHERE relid = %s::regclass
"""


@dataclass(slots=True)
class Touched:
    """Rows of one table."""

    read: int = 0
    """Versions that were looked at, by an index or by reading the table."""
    changed: int = 0


@contextmanager
def touched(using: str, table: str = "platform.webhooks_delivery") -> Iterator[Touched]:
    """What this thread does until the end; filled in then."""
    found = Touched()
    read, changed = _counts(using, table)
    yield found
    after = _counts(using, table)
    found.read, found.changed = after[0] - read, after[1] - changed


def _counts(using: str, table: str) -> tuple[int, int]:
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(_COUNTS, [table])
        read, changed = cursor.fetchone()
        return read, changed
