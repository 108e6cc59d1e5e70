"""Ends a run: records the outcome of the current attempt or cancels it, records the event of its end, and notifies the
relay of it. `functions.runs.start` describes all transitions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
from django.db import InterfaceError, OperationalError, connections

from functions.runs.anonymous_retention import StoredRun, end_without_outcome, stored_values
from functions.runs.sampled_sizes import sampled_size
from functions.runs.start import CreatedRun
from functions.runs.statement_batching import StatementBatcher
from platform_site.concurrency import loop_requests
from platform_site.http.requests import current_request_id
from platform_site.identity import ids, signals
from platform_site.postgres import prepared, sql_files

_EVENT_OF_END: Final = b"""
    INSERT INTO platform.rows_outboxevent (event_id, environment_id, type, data, request_id, depth)
    SELECT $9::text, ended.environment_id, 'function.run.' || $3::text,
           jsonb_build_object('run_id', ended.id, 'function', $10::text, 'version', ended.version,
                              'duration_ms', $8::int, 'error', $5::jsonb)::text,
           ended.request_id, ended.depth
      FROM ended
     WHERE EXISTS (SELECT 1 FROM platform.rows_eventinterest i
                    WHERE i.environment_id = ended.environment_id
                      AND (i.table_name, i.action) IN (('*', '*'), ('function.run', '*')))
    RETURNING 1
"""
_SIZE_OF_OUTCOME: Final = "coalesce(octet_length($4::text), 0) + pg_column_size($6::jsonb)"
# $1 run, $2 attempt, $3 status, $4 output, $5 error, $6 log, $7 sandbox_layers, $8 milliseconds, $9 event, $10 the
# function's name, $11 the fields that are not stored (null: none); $12 and $13 are those of `StatementBatcher`.
# `_WRITE_WHOLE` has in their place $12 function, $13 version, $14 input, $15 kind of caller, $16 its id, $17 request,
# $18 depth, $19 trigger, $20 inbound endpoint.
#
# The phase is compared so that only an index on the id fits. The planner expects the index of executing runs to be the
# smallest, but it has an entry for every run since the last vacuum or the oldest snapshot.
_END: Final = b"""
WITH ended AS (
    UPDATE platform.functions_run
       SET status = $3::text, phase = 'ended', output = $4::text, error = $5::jsonb, logs = $6::jsonb,
           sandbox_layers = $7::text[], duration_ms = $8::int, ended_at = now(), claimed_until = NULL, slot = NULL,
           not_stored = $11::text[], input = CASE WHEN 'input' = ANY ($11::text[]) THEN '' ELSE input END,
           weight = %b
     WHERE id = $1::text AND attempts = $2::int AND phase || '' = 'executing'
 RETURNING id, environment_id, version, request_id, depth
), outbox_event AS (%b)
SELECT EXISTS (SELECT 1 FROM ended), EXISTS (SELECT 1 FROM outbox_event),
       CASE WHEN $12::boolean THEN set_config('synchronous_commit', 'off', true) END, $13::text
""" % (
    sampled_size(
        f"CASE WHEN 'input' = ANY ($11::text[]) THEN 0 ELSE octet_length(input) END + {_SIZE_OF_OUTCOME}",
        "caller_kind",
    ).encode(),
    _EVENT_OF_END,
)
_end_batcher: Final = StatementBatcher(_END, is_durable=True)
_WRITE_WHOLE: Final = b"""
WITH ended AS (
    INSERT INTO platform.functions_run
           (id, environment_id, function_id, version, status, phase, is_async, input, output, error, logs,
           sandbox_layers,
            not_stored, caller_kind, caller_id, request_id, depth, trigger, address_id, attempts, started_at, ended_at,
            duration_ms, weight)
    SELECT $1::text, f.environment_id, f.id, $13::int, $3::text, 'ended', false, $14::text, $4::text, $5::jsonb,
           $6::jsonb, $7::text[], $11::text[], $15::text, $16::text, $17::text, $18::smallint, $19::text, $20::text,
           $2::int, now() - $8::int * interval '1 ms', now(), $8::int, %b
      FROM platform.functions_function f WHERE f.id = $12::text AND f.environment_id IS NOT NULL
    ON CONFLICT (id) DO NOTHING
 RETURNING id, environment_id, version, request_id, depth
), outbox_event AS (%b)
SELECT EXISTS (SELECT 1 FROM ended), EXISTS (SELECT 1 FROM outbox_event)
""" % (sampled_size(f"octet_length($14::text) + {_SIZE_OF_OUTCOME}", "$15::text").encode(), _EVENT_OF_END)


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended; `output` is JSON text."""

    status: str
    duration_ms: int
    output: str | None = None
    error: Mapping[str, Any] | None = None
    logs: tuple[Mapping[str, Any], ...] = ()
    sandbox_layers: tuple[str, ...] = ()


def end(started: CreatedRun, result: RunResult) -> tuple[bool, bool]:
    """Record the outcome and its event. Returns (it counts, its event has subscribers): it counts only while the run
    belongs to this attempt. One statement; one more if PostgreSQL crashed and lost a synchronous run (`start_run`)."""
    what = stored_values(started.caller_kind, started.trigger, started.input_text, result.output, result.logs)
    values = [
        started.run_id.encode(),
        b"%d" % started.attempt,
        result.status.encode(),
        None if what.output is None else what.output.encode(),
        None if result.error is None else orjson.dumps(result.error),
        orjson.dumps(what.logs),
        b"{%b}" % ",".join(result.sandbox_layers).encode(),
        b"%d" % result.duration_ms,
        ids.new("evt").encode(),
        started.function_name.encode(),
        b"{%b}" % ",".join(what.not_stored).encode() if what.not_stored else None,
    ]
    for pause in (0.1, 0.5, 2.0, None):
        try:
            [(counted, has_event, _)] = _end_batcher.run(started.cluster, values)
            if counted != b"t" and not started.is_async:
                [(counted, has_event)] = prepared.run(started.cluster, _WRITE_WHOLE, [*values, *_whole(started, what)])
            if has_event == b"t":
                signals.run_finished.send(sender=None, using=started.cluster)
            return counted == b"t", has_event == b"t"
        except (OperationalError, InterfaceError):
            # The connection is gone, with or without our outcome: `attempts` and `phase` make a second try harmless.
            if pause is None or connections[started.cluster].in_atomic_block:
                raise
            connections[started.cluster].close()
            loop_requests.sleep(pause)
    raise AssertionError("unreachable")


def _whole(started: CreatedRun, what: StoredRun) -> list[bytes | None]:
    """The values of `_WRITE_WHOLE` beyond the outcome."""
    request_id = current_request_id()
    return [
        started.function_id.encode(),
        b"%d" % started.version,
        b"" if "input" in what.not_stored else started.input_text.encode(),
        started.caller_kind.encode(),
        started.caller_id.encode(),
        None if request_id is None else request_id.encode(),
        b"%d" % started.depth,
        started.trigger.encode(),
        None if started.address_id is None else started.address_id.encode(),
    ]


_SQL: Final = sql_files.load(__file__, end_without_outcome=end_without_outcome("r.phase = 'queued'"))
EVENT_OF_RUN: Final = _SQL["event_of_run"]
_CANCEL: Final = _SQL["cancel"]


def request_cancel(using: str, run_id: str) -> tuple[bool, bool]:
    """Cancel: a queued run ends at once, an executing one as soon as its process is notified. Returns whether this is
    new (the run had not ended and was not cancelled before), and whether its end has subscribers."""
    with connections[using].cursor() as cursor:
        cursor.execute(_CANCEL, {"run_id": run_id})
        is_new, has_event = cursor.fetchone()
    if has_event:
        signals.run_finished.send(sender=None, using=using)
    return bool(is_new), bool(has_event)
