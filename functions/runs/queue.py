import threading
from contextlib import suppress
from datetime import timedelta
from typing import Final

from django.db import IntegrityError

from functions.runs import start
from functions.runs.start import CreatedRun, number_of, text_of
from platform_site.background.skip_scan import skip_scan
from platform_site.postgres import prepared, sql_files, statements
from platform_site.postgres.libpq import Row
from platform_site.postgres.sql_files import PreparedStatement
from projects.provisioning.suspension import suspended_in

_SQL: Final = sql_files.load(
    __file__,
    reached=skip_scan("reached", "platform.functions_run", "environment_id", where="phase = 'queued'"),
    secrets=start.SECRETS,
)
WAITING: Final = _SQL["waiting"]
"""A recursive common table expression: the environments with queued runs, except those in the parameter `suspended`."""
_CLAIM: Final = PreparedStatement(_SQL["claim"])
SHORT_MS: Final = 10_000
_claiming: Final[dict[str, threading.Lock]] = {}
"""By region. Concurrent claims usually try the same slot: the second would wait for the first's commit, and fail."""


def claim(using: str, *, is_reserved: bool = False) -> tuple[CreatedRun, bool] | None:
    """Claim a queued run of the region that may execute now, and whether it was the last; None if there is none. First
    come environments with few executing runs, in them the oldest run; those of anonymous callers and events come last.
    `is_reserved`: only runs of functions with a timeout of at most SHORT_MS, of environments that execute none.
    The claim is on disk when this returns: after a crash of PostgreSQL the run would otherwise be claimed again with
    the same attempt number."""
    parameters = start.lease_parameters() | {
        "suspended": f"{{{','.join(suspended_in(using))}}}",
        "is_reserved": "t" if is_reserved else "f",
        "short_ms": SHORT_MS,
    }
    found: list[Row] = []
    for _ in range(start.SLOT_ATTEMPTS):
        with suppress(IntegrityError), _claiming.setdefault(using, threading.Lock()):
            found = prepared.run(using, *_CLAIM.bind(parameters))
            break
    if not found:
        return None
    [row] = found
    run_id, attempt, environment_id = row[:3]
    input_text, depth, caller_kind, caller_id, trigger, is_last = row[10:]
    started = CreatedRun(
        **start.function_facts(row[3:10]),
        run_id=text_of(run_id),
        attempt=number_of(attempt),
        environment_id=text_of(environment_id),
        input_text=text_of(input_text),
        depth=number_of(depth),
        is_async=True,
        caller_kind=text_of(caller_kind),
        caller_id=text_of(caller_id),
        cluster=using,
        trigger=text_of(trigger),
    )
    return started, is_last == b"t"


def is_due(using: str) -> bool:
    """Whether any run is due, whether or not a slot is free."""
    return bool(statements.value(using, _SQL["is_due"], {"suspended": suspended_in(using)}))


def retry_later(started: CreatedRun, wait: timedelta) -> bool:
    """Put a failed async run back into the queue if its function's policy has attempts left."""
    parameters = {"run_id": started.run_id, "attempt": started.attempt, "wait": wait}
    return bool(statements.rows(started.cluster, _SQL["retry"], parameters))


def release(started: CreatedRun, wait: timedelta) -> None:
    """For an attempt that never began. Call it once: the next attempt has the same number."""
    parameters = {"run_id": started.run_id, "attempt": started.attempt, "wait": wait}
    statements.execute(started.cluster, _SQL["release"], parameters)
