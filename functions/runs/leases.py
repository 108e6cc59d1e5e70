from collections.abc import Collection
from datetime import timedelta
from typing import Final

from django.conf import settings

from functions.runs.completion import EVENT_OF_RUN
from functions.runs.start import CreatedRun
from functions.runs.storage import end_without_outcome_sql
from platform_site.identity import signals
from platform_site.postgres import sql_files, statements

LOST_ATTEMPTS: Final = 3
_MAX_LEASE: Final = timedelta(hours=2)
"""Longer than any FUNCTION_LEASE_SECONDS and any wait for the next attempt."""

_SQL: Final = sql_files.load(__file__, end_without_outcome=end_without_outcome_sql(), event_of_run=EVENT_OF_RUN)


def renew(using: str, executing: Collection[CreatedRun]) -> set[str]:
    """Returns the ids of those that are still ours: also of one that PostgreSQL lost in a crash (`start_run`)."""
    parameters = {
        "lease": settings.FUNCTION_LEASE,
        "ids": [started.run_id for started in executing],
        "attempts": [started.attempt for started in executing],
        "functions": [started.function_id for started in executing],
    }
    return set(statements.column(using, _SQL["renew"], parameters))


def cancelled_among(using: str, run_ids: list[str]) -> list[str]:
    return statements.column(using, _SQL["cancelled"], [run_ids])


def settle_lost(using: str) -> tuple[int, int]:
    """Returns how many runs whose lease ran out were queued again, and how many failed."""
    again, failed, events = statements.row(using, _SQL["lost"], {"most": LOST_ATTEMPTS})
    if events:
        signals.run_finished.send(sender=None, using=using)
    return int(again), int(failed)


def repair_future_times(using: str) -> int:
    """Leases last as long as a new one, since their workers may be alive. Returns how many."""
    parameters = {"lease": settings.FUNCTION_LEASE, "longest": _MAX_LEASE}
    return statements.execute(using, _SQL["repair_future_times"], parameters)
