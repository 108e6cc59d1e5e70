"""How many rows a piece of work looks at and changes, by PostgreSQL's own count: what it costs, on any machine.

The counts of a table are of all who work with it, and come late: a session hands its own in when it is idle, up to ten
seconds after its work. So what an earlier test's thread did a moment ago was counted in the next one. Those of a
transaction at hand are of this session alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from django.db import connections, transaction

_COUNTS = """
SELECT seq_tup_read + coalesce(idx_tup_fetch, 0), n_tup_upd FROM pg_stat_xact_user_tables
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
    """What this thread does until the end, in one transaction: while it lasts the session hands nothing in. Filled in
    then."""
    found = Touched()
    with transaction.atomic(using=using):
        read, changed = _counts(using, table)
        yield found
        after = _counts(using, table)
    found.read, found.changed = after[0] - read, after[1] - changed


def _counts(using: str, table: str) -> tuple[int, int]:
    with connections[using].cursor() as cursor:
        cursor.execute(_COUNTS, [table])
        read, changed = cursor.fetchone()
        return read, changed
