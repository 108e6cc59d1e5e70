"""Ends a run: records the outcome of the current attempt or cancels it, records the event of its end, and notifies the
relay of it. `functions.runs.start` describes all transitions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
from django.db import InterfaceError, OperationalError, connections

from functions.runs.anonymous_retention import StoredRun, end_without_outcome_sql, stored_values
from functions.runs.sampled_sizes import sampled_size
from functions.runs.start import CreatedRun
from functions.runs.statement_batching import StatementBatcher
from platform_site.concurrency import loop_requests
from platform_site.http.errors import Unavailable
from platform_site.http.requests import current_request_id
from platform_site.identity import ids, signals
from platform_site.postgres import prepared, sql_files, statements

_SIZE_OF_OUTCOME: Final = "coalesce(octet_length($4::text), 0) + pg_column_size($6::jsonb)"
_SQL: Final = sql_files.load(
    __file__,
    weight_of_end=sampled_size(
        f"CASE WHEN 'input' = ANY ($11::text[]) THEN 0 ELSE octet_length(input) END + {_SIZE_OF_OUTCOME}", "caller_kind"
    ),
    weight_of_whole=sampled_size(f"octet_length($14::text) + {_SIZE_OF_OUTCOME}", "$15::text"),
    end_without_outcome=end_without_outcome_sql("r.phase = 'queued'"),
)
EVENT_OF_RUN: Final = _SQL["event_of_run"]
_INSERT_ENDED: Final = _SQL["insert_ended"].encode()
_end_batcher: Final = StatementBatcher(_SQL["end"].encode(), is_durable=True)


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended; `output` is JSON text."""

    status: str
    duration_ms: int
    output: str | None = None
    error: Mapping[str, Any] | None = None
    logs: tuple[Mapping[str, Any], ...] = ()
    sandbox_layers: tuple[str, ...] = ()

    @property
    def is_timeout(self) -> bool:
        return (self.error or {}).get("reason") == "timeout"


def record_end(started: CreatedRun, result: RunResult) -> bool:
    """Record the outcome, and its event if that has subscribers. Returns whether the outcome counts, which it does only
    while the run belongs to this attempt. One statement; one more if PostgreSQL crashed and lost a synchronous run
    (`start_run`). Raises DatabaseError if the outcome cannot be recorded; Unavailable for a synchronous run."""
    stored = stored_values(started.caller_kind, started.trigger, started.input_text, result.output, result.logs)
    values = [
        started.run_id.encode(),
        b"%d" % started.attempt,
        result.status.encode(),
        None if stored.output is None else stored.output.encode(),
        None if result.error is None else orjson.dumps(result.error),
        orjson.dumps(stored.logs),
        b"{%b}" % ",".join(result.sandbox_layers).encode(),
        b"%d" % result.duration_ms,
        ids.new("evt").encode(),
        started.function_name.encode(),
        b"{%b}" % ",".join(stored.not_stored).encode() if stored.not_stored else None,
    ]
    for pause in (0.1, 0.5, 2.0, None):
        try:
            [(counted, has_event, _)] = _end_batcher.run(started.cluster, values)
            if counted != b"t" and not started.is_async:
                [(counted, has_event)] = prepared.run(
                    started.cluster, _INSERT_ENDED, [*values, *_insert_values(started, stored)]
                )
            break
        except (OperationalError, InterfaceError) as error:
            # The connection was lost, maybe after the commit: `attempts` and `phase` make the statement idempotent.
            if connections[started.cluster].in_atomic_block or (pause is None and started.is_async):
                raise
            if pause is None:
                # Not a database error: the request, and so the function, would be repeated.
                raise Unavailable from error
            connections[started.cluster].close()
            loop_requests.sleep(pause)
    if has_event == b"t":
        signals.run_finished.send(sender=None, using=started.cluster)
    return counted == b"t"


def _insert_values(started: CreatedRun, stored: StoredRun) -> list[bytes | None]:
    """The values of `insert_ended` beyond the outcome."""
    request_id = current_request_id()
    return [
        started.function_id.encode(),
        b"%d" % started.version,
        b"" if "input" in stored.not_stored else started.input_text.encode(),
        started.caller_kind.encode(),
        started.caller_id.encode(),
        None if request_id is None else request_id.encode(),
        b"%d" % started.depth,
        started.trigger.encode(),
        None if started.address_id is None else started.address_id.encode(),
    ]


def request_cancel(using: str, run_id: str) -> bool:
    """Cancel a run: a queued one ends at once, an executing one as soon as its process is notified.
    False if it had ended or was cancelled before."""
    is_new, has_event = statements.row(using, _SQL["cancel"], {"run_id": run_id})
    if has_event:
        signals.run_finished.send(sender=None, using=using)
    return bool(is_new)
