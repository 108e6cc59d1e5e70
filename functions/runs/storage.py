"""What is stored of a run, and its weight in the environment's history. Of an anonymous caller's run, which might fill
the disk, input, output and log have at most MAX_STORED_BYTES each (of a log its first lines). A queued run needs its
input until it has ended. For a run on an event this applies to the input only, which callers write."""

from typing import Final

import orjson

from functions.runtime.calls import LogLine

MAX_STORED_BYTES: Final = 16 * 1024
_ANONYMOUS: Final = "anonymous"
_ON_EVENTS: Final = "event"
SAMPLE_UNIT: Final = 2**20
"""Bytes."""
ROW_SIZE: Final = 1024
"""Bytes of a run without its texts, including its index entries."""


def stores_input(caller_kind: str, trigger: str, input_bytes: bytes) -> bool:
    return (caller_kind != _ANONYMOUS and trigger != _ON_EVENTS) or len(input_bytes) <= MAX_STORED_BYTES


def sampled_size(size: str, caller_kind: str) -> str:
    """The `weight` of a run that ends with texts of `size` bytes, as SQL: once in SAMPLE_UNIT / size times it is
    SAMPLE_UNIT. Summing up all sizes would read all runs, and a running total would serialise their ends; the sum of
    the sample is exact within some 5 % for 2 GB. The number of anonymous callers' runs is limited instead."""
    whole = f"({ROW_SIZE} + {size})"
    is_sampled = f"{caller_kind} <> '{_ANONYMOUS}' AND random() * {SAMPLE_UNIT} < {whole}"
    return f"CASE WHEN {is_sampled} THEN greatest({whole}, {SAMPLE_UNIT}) END"


def end_without_outcome_sql(when: str = "true") -> str:
    """Three SQL assignments for an UPDATE that ends runs `r` without an outcome, on the SQL condition `when`."""
    is_anonymous_input = f"(r.caller_kind = '{_ANONYMOUS}' OR r.trigger = '{_ON_EVENTS}')"
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
    if caller_kind != _ANONYMOUS:
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
