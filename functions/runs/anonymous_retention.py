"""What is stored of an anonymous caller's run, so that callers with a publishable key cannot fill the disk: input,
output and log of at most MAX_STORED_BYTES each (of a log its first lines). A queued run needs its input until it has
ended. For a run on an event this applies to the input only, which callers write."""

from typing import Final

import orjson

from functions.runs.sampled_sizes import sampled_size
from functions.runtime.calls import LogLine

MAX_STORED_BYTES: Final = 16 * 1024
KIND: Final = "anonymous"
_ON_EVENTS: Final = "event"


def stores_input(caller_kind: str, trigger: str, input_bytes: bytes) -> bool:
    return (caller_kind != KIND and trigger != _ON_EVENTS) or len(input_bytes) <= MAX_STORED_BYTES


def end_without_outcome_sql(when: str = "true") -> str:
    """Three SQL assignments for an UPDATE that ends runs `r` without an outcome, on the SQL condition `when`."""
    is_anonymous_input = f"(r.caller_kind = '{KIND}' OR r.trigger = '{_ON_EVENTS}')"
    is_too_large = f"{when} AND {is_anonymous_input} AND octet_length(r.input) > {MAX_STORED_BYTES}"
    weight = sampled_size(f"CASE WHEN {is_too_large} THEN 0 ELSE octet_length(r.input) END", "r.caller_kind")
    return f"""input = CASE WHEN {is_too_large} THEN '' ELSE r.input END,
           not_stored = CASE WHEN {is_too_large} THEN '{{input}}' ELSE r.not_stored END,
           weight = CASE WHEN {when} THEN {weight} END"""


def stored_values(
    caller_kind: str, trigger: str, input_text: str, output: str | None, logs: list[LogLine]
) -> tuple[str | None, list[LogLine], list[str]]:
    """Output and log of a run that ends, as they are stored, and the missing ones of `input`, `output`, `logs`."""
    not_stored = [] if stores_input(caller_kind, trigger, input_text.encode()) else ["input"]
    if caller_kind != KIND:
        return output, logs, not_stored
    if output is not None and len(output.encode()) > MAX_STORED_BYTES:
        output = None
        not_stored.append("output")
    size = 0
    for count, line in enumerate(logs):
        size += len(orjson.dumps(line))
        if size > MAX_STORED_BYTES:
            return output, logs[:count], [*not_stored, "logs"]
    return output, logs, not_stored
