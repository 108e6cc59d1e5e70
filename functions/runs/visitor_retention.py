"""What is kept of a stranger's run: whoever shows a publishable key fills no disk by calling, nor by what they write.

Input, output and log of such a run are kept up to KEPT_BYTES each, its text and not a part of it (of a log its first
lines), and `not_kept` of the run names what is missing. A queued one needs its input until it has ended; how much of
that waits is bounded by the plan (`functions.runs.start`). How many ended runs are kept at all is
`functions.runs.retention`'s.

Of a run on an event that holds for the input alone: it is what was written, by whomever, and once for each function
that runs on it. Output and log are of the deployer's making.

Pure computation, called by `runs` and `endings` as they write a run down.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from functions.runs.sampled_sizes import weighed

KEPT_BYTES: Final = 16 * 1024
KIND: Final = "anonymous"
_ON_EVENTS: Final = "event"


@dataclass(frozen=True, slots=True)
class Kept:
    """What is written down of a run that ends."""

    output: str | None
    logs: tuple[Mapping[str, Any], ...]
    not_kept: tuple[str, ...]
    """Of `input`, `output`, `logs`."""


def is_input_kept(caller_kind: str, trigger: str, input_text: bytes) -> bool:
    return (caller_kind != KIND and trigger != _ON_EVENTS) or len(input_text) <= KEPT_BYTES


def end_without_outcome(when: str = "true") -> str:
    """Three assignments of an UPDATE that ends runs `r`: what becomes of the input, and what is left is weighed. `when`
    is SQL."""
    is_strangers = f"(r.caller_kind = '{KIND}' OR r.trigger = '{_ON_EVENTS}')"
    is_too_large = f"{when} AND {is_strangers} AND octet_length(r.input) > {KEPT_BYTES}"
    weight = weighed(f"CASE WHEN {is_too_large} THEN 0 ELSE octet_length(r.input) END", "r.caller_kind")
    return f"""input = CASE WHEN {is_too_large} THEN '' ELSE r.input END,
           not_kept = CASE WHEN {is_too_large} THEN '{{input}}' ELSE r.not_kept END,
           weight = CASE WHEN {when} THEN {weight} END"""


def kept(
    caller_kind: str, trigger: str, input_text: str, output: str | None, logs: tuple[Mapping[str, Any], ...]
) -> Kept:
    """All of it, but for a stranger's run what is larger."""
    not_kept = [] if is_input_kept(caller_kind, trigger, input_text.encode()) else ["input"]
    if caller_kind != KIND:
        return Kept(output, logs, tuple(not_kept))
    if output is not None and len(output.encode()) > KEPT_BYTES:
        output = None
        not_kept.append("output")
    first = _first(logs)
    if len(first) < len(logs):
        not_kept.append("logs")
    return Kept(output, first, tuple(not_kept))


def _first(logs: tuple[Mapping[str, Any], ...]) -> tuple[Mapping[str, Any], ...]:
    """As many of the first lines as are kept."""
    size = 0
    for count, line in enumerate(logs):
        size += len(orjson.dumps(line))
        if size > KEPT_BYTES:
            return logs[:count]
    return logs
