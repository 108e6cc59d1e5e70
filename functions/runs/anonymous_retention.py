"""What is stored of an anonymous caller's run, so that callers with a publishable key cannot fill the disk. Input,
output and log of such a run are stored if they have at most MAX_STORED_BYTES each (of a log its first lines);
`not_stored` of the run names the missing ones. A queued run needs its input until it has ended; the plan limits how
many wait (`functions.runs.start`). `functions.runs.retention` limits the ended runs. For a run on an event this applies
to the input only: callers write it, and it is stored once per function. The output and log are the deployer's. Pure
computation, called when a run is recorded."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from functions.runs.sampled_sizes import sampled_size

MAX_STORED_BYTES: Final = 16 * 1024
KIND: Final = "anonymous"
_ON_EVENTS: Final = "event"


@dataclass(frozen=True, slots=True)
class StoredRun:
    """The stored values of a run that ends."""

    output: str | None
    logs: tuple[Mapping[str, Any], ...]
    not_stored: tuple[str, ...]
    """The missing ones of `input`, `output`, `logs`."""


def stores_input(caller_kind: str, trigger: str, input_bytes: bytes) -> bool:
    return (caller_kind != KIND and trigger != _ON_EVENTS) or len(input_bytes) <= MAX_STORED_BYTES


def end_without_outcome_sql(when: str = "true") -> str:
    """Three SQL assignments for an UPDATE that ends runs `r` without an outcome: an input that is too large is removed,
    and the size of the rest is sampled. `when` is an SQL condition."""
    is_anonymous_input = f"(r.caller_kind = '{KIND}' OR r.trigger = '{_ON_EVENTS}')"
    is_too_large = f"{when} AND {is_anonymous_input} AND octet_length(r.input) > {MAX_STORED_BYTES}"
    weight = sampled_size(f"CASE WHEN {is_too_large} THEN 0 ELSE octet_length(r.input) END", "r.caller_kind")
    return f"""input = CASE WHEN {is_too_large} THEN '' ELSE r.input END,
           not_stored = CASE WHEN {is_too_large} THEN '{{input}}' ELSE r.not_stored END,
           weight = CASE WHEN {when} THEN {weight} END"""


def stored_values(
    caller_kind: str, trigger: str, input_text: str, output: str | None, logs: tuple[Mapping[str, Any], ...]
) -> StoredRun:
    """All values, or for an anonymous caller's run those that are small enough."""
    not_stored = [] if stores_input(caller_kind, trigger, input_text.encode()) else ["input"]
    if caller_kind != KIND:
        return StoredRun(output, logs, tuple(not_stored))
    if output is not None and len(output.encode()) > MAX_STORED_BYTES:
        output = None
        not_stored.append("output")
    first = _first(logs)
    if len(first) < len(logs):
        not_stored.append("logs")
    return StoredRun(output, first, tuple(not_stored))


def _first(logs: tuple[Mapping[str, Any], ...]) -> tuple[Mapping[str, Any], ...]:
    """The first lines, up to MAX_STORED_BYTES."""
    size = 0
    for count, line in enumerate(logs):
        size += len(orjson.dumps(line))
        if size > MAX_STORED_BYTES:
            return logs[:count]
    return logs
