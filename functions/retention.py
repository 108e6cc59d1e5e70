"""Runs go 7 days after their end, in bounded batches, found by the time in their ids."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db import connections

from platform_site.api import ids

KEPT: Final = timedelta(days=7)
BATCH: Final = 1000

_PURGE = """
DELETE FROM platform.functions_run
 WHERE id IN (SELECT id FROM platform.functions_run
               WHERE id < %(oldest)s AND phase = 'ended' AND ended_at < now() - %(age)s
               ORDER BY id LIMIT %(batch)s FOR UPDATE SKIP LOCKED)
"""


def purge(using: str, *, older_than: timedelta = KEPT) -> int:
    """Forget ended runs that are older. Returns how many."""
    oldest = ids.earliest("run", datetime.now(UTC) - older_than)
    parameters: dict[str, Any] = {"oldest": oldest, "age": older_than, "batch": BATCH}
    gone = 0
    while True:
        with connections[using].cursor() as cursor:
            cursor.execute(_PURGE, parameters)
            gone += int(cursor.rowcount)
            if cursor.rowcount < BATCH:
                return gone
