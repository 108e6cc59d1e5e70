"""Drops deliveries held for too long, and deletes old deliveries, events and webhooks, in batches."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from platform_site.identity import ids
from platform_site.postgres import sql_files, statements
from platform_site.postgres.statements import execute_in_batches
from platform_site.postgres.transaction_settings import by_index
from projects.provisioning.suspension import suspended_or_recently_resumed
from webhooks.delivery.queue import HOLDING, UNCLAIMED

BATCH: Final = 1000

_SQL: Final = sql_files.load(__file__, unclaimed=UNCLAIMED, holding=HOLDING)


def expire_held(using: str, *, older_than: timedelta) -> int:
    """Returns how many deliveries were dropped. The time of a suspension does not count."""
    parameters = {"age": older_than, "spared": suspended_or_recently_resumed(using, older_than)}
    return execute_in_batches(using, _SQL["expire"], parameters, batch=BATCH)


def purge(using: str, *, older_than: timedelta) -> int:
    # Ids begin with their time, so the primary key finds the oldest deliveries. The database's clock decides whether
    # they are old, since the clocks of processes may be wrong.
    oldest = ids.earliest("dlv", datetime.now(UTC) - older_than)
    total, after, is_more = 0, "", True
    while is_more:
        parameters: dict[str, Any] = {"oldest": oldest, "age": older_than, "batch": BATCH, "after": after}
        with by_index(using):
            after, is_more, deleted = statements.row(using, _SQL["purge_deliveries"], parameters)
        total += int(deleted)
    return total + execute_in_batches(using, _SQL["purge_events"], {"age": older_than}, batch=BATCH)


def remove_deleted(using: str) -> int:
    execute_in_batches(using, _SQL["empty_deleted"], {}, batch=BATCH)
    return statements.execute(using, _SQL["remove_deleted"])
