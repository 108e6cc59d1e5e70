"""Ended runs are removed after 7 days. Earlier: anonymous callers' runs beyond MAX_ANONYMOUS_RUNS of an environment;
and the oldest runs, if an environment's history exceeds the plan's `run_history_bytes`. Then the largest histories
shrink to a common level, so that a burst of one function only removes its own history."""

import logging
from datetime import UTC, datetime, timedelta
from typing import Final

from functions.models import Function
from platform_site.background.skip_scan import skip_scan
from platform_site.identity import ids
from platform_site.identity.plans import PLANS, plan_limits
from platform_site.postgres import sql_files, statements
from platform_site.postgres.statements import execute_in_batches
from platform_site.postgres.transaction_settings import by_index
from projects.provisioning.suspension import plans_of_active

logger = logging.getLogger("platform.functions")

RETENTION: Final = timedelta(days=7)
MAX_ANONYMOUS_RUNS: Final = 10_000
"""Per environment. With `storage.MAX_STORED_BYTES` it bounds the disk space of anonymous callers."""
BATCH: Final = 1000
_RUNS: Final = "platform.functions_run"
_SQL: Final = sql_files.load(
    __file__,
    of_anonymous=skip_scan("reached", _RUNS, "environment_id", where="caller_kind = 'anonymous'"),
    in_sample=skip_scan("reached", _RUNS, "environment_id", "function_id", "id", where="weight IS NOT NULL"),
)


def purge(using: str, *, older_than: timedelta = RETENTION) -> int:
    oldest = ids.earliest("run", datetime.now(UTC) - older_than)
    return execute_in_batches(using, _SQL["purge"], {"oldest": oldest, "age": older_than}, batch=BATCH)


def purge_anonymous_runs(using: str, *, keep: int = MAX_ANONYMOUS_RUNS) -> int:
    with by_index(using):
        over_limit = statements.rows(using, _SQL["over_limit"], [keep])
    return sum(
        execute_in_batches(
            using, _SQL["purge_anonymous"], {"environment_id": environment_id, "newest": newest}, batch=BATCH
        )
        for environment_id, newest in over_limit
    )


def shorten_histories(using: str) -> int:
    """Returns how many runs were deleted. Raises OperationalError while the control database is unavailable."""
    with by_index(using):
        found = statements.rows(using, _SQL["weighed"], [min(plan.run_history_bytes for plan in PLANS.values())])
    large = {environment_id: dict(zip(*weights, strict=True)) for environment_id, *weights in found}
    deleted = 0
    for environment_id, plan in (plans_of_active(large) if large else {}).items():
        weights = large[environment_id]
        limit = common_limit(list(weights.values()), plan_limits(plan).run_history_bytes)
        for function_id in [each for each, weight in weights.items() if weight > limit]:
            deleted += _shorten(using, environment_id, function_id, limit)
    return deleted


def common_limit(weights: list[int], budget: int) -> int:
    """The common maximum of each history so that their sum fits the budget."""
    left = budget
    for position, weight in enumerate(sorted(weights)):
        share = left // (len(weights) - position)
        if weight > share:
            return share
        left -= weight
    return budget


def _shorten(using: str, environment_id: str, function_id: str, most: int) -> int:
    with by_index(using):
        found = statements.column(using, _SQL["beyond"], [environment_id, function_id, most])
    if not found:
        return 0
    # Recorded first: after an interruption, the next check may find that enough was deleted.
    Function.objects.using(using).filter(pk=function_id).update(runs_since=found[0])
    facts = {"function_id": function_id, "until": found[0]}
    deleted = execute_in_batches(using, _SQL["shorten"], facts, batch=BATCH)
    logger.warning(
        "the history of a function was shortened: it takes more than the plan allows",
        extra={"environment": environment_id, "function_id": function_id, "runs": deleted},
    )
    return deleted
