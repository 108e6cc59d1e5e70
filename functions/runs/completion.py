from typing import Final

import orjson
from django.db import InterfaceError, OperationalError, connections

from functions.runs.start import CreatedRun
from functions.runs.statement_batching import StatementBatcher
from functions.runs.storage import end_without_outcome_sql, sampled_size, stored_values
from functions.runtime.calls import Outcome
from platform_site.concurrency import loop_requests
from platform_site.http.errors import Unavailable
from platform_site.http.requests import current_request_id
from platform_site.identity import signals
from platform_site.postgres import prepared, sql_files, statements
from platform_site.postgres.sql_files import PreparedStatement, Value

_SIZE_OF_OUTCOME: Final = "coalesce(octet_length(%(output)s::text), 0) + pg_column_size(%(logs)s::jsonb)"
_SQL: Final = sql_files.load(
    __file__,
    weight_of_end=sampled_size(
        f"CASE WHEN 'input' = ANY (%(not_stored)s::text[]) THEN 0 ELSE octet_length(input) END + {_SIZE_OF_OUTCOME}",
        "caller_kind",
    ),
    weight_of_whole=sampled_size(f"octet_length(%(input)s::text) + {_SIZE_OF_OUTCOME}", "%(caller_kind)s::text"),
    end_without_outcome=end_without_outcome_sql("r.phase = 'queued'"),
)
EVENT_OF_RUN: Final = _SQL["event_of_run"]
_INSERT_ENDED: Final = PreparedStatement(_SQL["insert_ended"])
_end_batcher: Final = StatementBatcher(PreparedStatement(_SQL["end"]), is_durable=True)


def record_end(started: CreatedRun, outcome: Outcome) -> bool:
    """Returns whether the outcome counts, which it does only while the run belongs to this attempt. Raises
    DatabaseError if the outcome cannot be recorded; Unavailable for a synchronous run."""
    output, logs, not_stored = stored_values(
        started.caller_kind, started.trigger, started.input_text, outcome.output, outcome.logs
    )
    error = None if outcome.reason is None else {"reason": outcome.reason, **(outcome.error or {})}
    ended: dict[str, Value] = {
        "run_id": started.run_id,
        "attempt": started.attempt,
        "status": outcome.status,
        "output": output,
        "error": None if error is None else orjson.dumps(error),
        "logs": orjson.dumps(logs),
        "sandbox_layers": f"{{{','.join(outcome.sandbox_layers)}}}",
        "duration_ms": outcome.duration_ms,
        "not_stored": f"{{{','.join(not_stored)}}}" if not_stored else None,
    }
    for pause in (0.1, 0.5, 2.0, None):
        try:
            [(counted, has_event, _)] = _end_batcher.run(started.cluster, ended)
            if counted != b"t" and not started.is_async:
                whole = ended | _facts_of_start(started, stores_input="input" not in not_stored)
                [(counted, has_event)] = prepared.run(started.cluster, *_INSERT_ENDED.bind(whole))
            break
        except (OperationalError, InterfaceError) as failure:
            # The connection was lost, maybe after the commit: `attempts` and `phase` make the statement idempotent.
            if connections[started.cluster].in_atomic_block or (pause is None and started.is_async):
                raise
            if pause is None:
                # Not a database error: the request, and so the function, would be repeated.
                raise Unavailable from failure
            connections[started.cluster].close()
            loop_requests.sleep(pause)
    if has_event == b"t":
        signals.run_finished.send(sender=None, using=started.cluster)
    return counted == b"t"


def _facts_of_start(started: CreatedRun, *, stores_input: bool) -> dict[str, Value]:
    return {
        "function_id": started.function_id,
        "version": started.version,
        "input": started.input_text if stores_input else "",
        "caller_kind": started.caller_kind,
        "caller_id": started.caller_id,
        "request_id": current_request_id(),
        "depth": started.depth,
        "trigger": started.trigger,
        "endpoint_id": started.endpoint_id,
    }


def request_cancel(using: str, run_id: str) -> bool:
    """False if it had ended or was cancelled before."""
    is_new, has_event = statements.row(using, _SQL["cancel"], {"run_id": run_id})
    if has_event:
        signals.run_finished.send(sender=None, using=using)
    return bool(is_new)
