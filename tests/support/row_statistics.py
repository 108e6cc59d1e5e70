"""How many rows a piece of work looks at and changes, by PostgreSQL's own count: what it costs, on any machine.

PostgreSQL's counts of a table cover all sessions and arrive late: a session reports its own when it is idle, up to ten
seconds after its work. So what an earlier test's thread did a moment ago was counted in the next one. The counts of the
current transaction are of this session alone.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import connections, transaction

from rows.query import context

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
def count_touched_rows(using: str, table: str = "platform.webhooks_delivery") -> Iterator[Touched]:
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


@contextmanager
def counted_blocks() -> Iterator[list[int]]:
    """How many blocks each statement looks at, of requests that are refused: it is run twice."""
    seen: list[int] = []

    def counting(execute: Any) -> Any:
        def run(connection: Any, sql: bytes, values: Any) -> Any:
            [[told]] = execute(connection, b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + sql, values)
            plan = json.loads(told)[0]["Plan"]
            seen.append(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
            return execute(connection, sql, values)

        return run

    with pytest.MonkeyPatch.context() as patched:
        for name in ("run_on", "retry_if_lost"):
            patched.setattr(context, name, counting(getattr(context, name)))
        yield seen
