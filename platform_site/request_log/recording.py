"""Records entries in memory, in microseconds, without waiting or raising. Queues are bounded; beyond READS_PER_SECOND
successful reads or OTHERS_PER_SECOND others of an environment, requests are only counted, approximately."""

import re
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from django.db import DEFAULT_DB_ALIAS
from django.http import HttpRequest

from platform_site.http.errors import ApiError
from platform_site.http.requests import current_request_id
from platform_site.identity.callers import Caller, EnvironmentRef
from platform_site.request_log.models import ERROR

READS_PER_SECOND: Final = 20
OTHERS_PER_SECOND: Final = 200
MAX_WAITING: Final = 10_000
"""Entries of one database in one process: about 5 MB."""
MAX_TALLIES: Final = 10_000
MAX_FIELD_CODES: Final = 20

_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}", re.ASCII)
_CODE: Final = re.compile(r"[a-z0-9_]{1,60}", re.ASCII)
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class Entry(NamedTuple):
    """`table` and `function` are from the path: the writer checks them."""

    at: float
    environment: EnvironmentRef | None
    request_id: str
    method: str
    route: str
    table: str | None
    function: str | None
    status: int
    code: str | None
    field_codes: tuple[str, ...]
    duration_ms: float
    caller_kind: str | None
    caller_id: str | None


@dataclass(slots=True)
class Tally:
    reads: int = 0
    others: int = 0
    omitted: int = 0


class Queue:
    def __init__(self) -> None:
        self.waiting: deque[Entry] = deque()
        self.tallies: dict[str | None, Tally] = {}

    def admit(self, environment_id: str | None, *, is_read: bool) -> bool:
        tally = self.tallies.get(environment_id)
        if tally is None:
            if len(self.tallies) >= MAX_TALLIES:
                return False
            tally = self.tallies.setdefault(environment_id, Tally())
        if is_read:
            tally.reads += 1
            admitted = tally.reads <= READS_PER_SECOND
        else:
            tally.others += 1
            admitted = tally.others <= OTHERS_PER_SECOND
        if admitted and len(self.waiting) < MAX_WAITING:
            return True
        tally.omitted += 1
        return False


queues: Final[dict[str, Queue]] = {}
"""By database alias; only in processes with writers."""


def record(request: HttpRequest, method: str, status: int, seconds: float, error: ApiError | None) -> None:
    caller: Caller | None = request.__dict__.get("caller")
    environment = None if caller is None else caller.environment
    queue = queues.get(DEFAULT_DB_ALIAS if environment is None else environment.cluster)
    if queue is None:
        return
    is_read = status < ERROR and method in _READS
    if not queue.admit(None if environment is None else environment.environment_id, is_read=is_read):
        return
    match = request.resolver_match
    route, words = ("", {}) if match is None else (match.route, match.kwargs)
    queue.waiting.append(
        Entry(
            time.time() - seconds,
            environment,
            current_request_id() or "",
            method,
            route,
            name_in(words, "table"),
            name_in(words, "name") if route.startswith("v1/functions/") else None,
            status,
            None if error is None else error.code,
            () if error is None else field_codes_of(error),
            round(seconds * 1000, 2),
            None if caller is None else caller.kind,
            None if caller is None else caller.id,
        )
    )


def name_in(words: dict[str, Any], variable: str) -> str | None:
    text = words.get(variable)
    return text if isinstance(text, str) and _NAME.fullmatch(text) else None


def field_codes_of(error: ApiError) -> tuple[str, ...]:
    codes = dict.fromkeys(field.code for field in error.fields[:100])
    return tuple(code for code in codes if _CODE.fullmatch(code))[:MAX_FIELD_CODES]
