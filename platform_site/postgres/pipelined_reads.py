"""Sends the reads that requests make in the same iteration of the event loop through one connection, in one pipeline.
Each is its own transaction, so it sees everything committed before and fails alone. Only reads with the same statement
share a pipeline, so that none waits behind a slower read, or one that waits for a lock on another table."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from django.db import DatabaseError, Error
from django.db.backends.base.base import BaseDatabaseWrapper

from platform_site.concurrency import loop_requests
from platform_site.concurrency.loop_requests import LoopRequest
from platform_site.postgres import prepared
from platform_site.postgres.libpq import Row

_MOST: Final = 16
"""In one pipeline: the results of all are in memory together."""


@dataclass(eq=False)
class _Read:
    request: LoopRequest
    values: Sequence[bytes | None]
    outcome: list[Row] | DatabaseError | None = None
    """None: it is repeated on its own connection."""


_gathering: Final[dict[tuple[str, bytes], list[_Read]]] = {}
"""By database and statement; changed on the loop only."""


def run(connection: BaseDatabaseWrapper, sql: bytes, values: Sequence[bytes | None]) -> list[Row]:
    """As `prepared.retry_if_lost`. Raises Django's errors."""
    request = loop_requests.current()
    if request is None or connection.in_atomic_block:
        return prepared.retry_if_lost(connection, sql, values)
    key, mine = (connection.alias, sql), _Read(request, values)
    others = _gathering.get(key)
    if others is not None and len(others) < _MOST:
        others.append(mine)
        request.wait()
    else:
        reads = _gathering[key] = [mine]
        request.pause(0)
        if _gathering.get(key) is reads:
            del _gathering[key]
        if len(reads) > 1:
            _read_all(connection, sql, reads)
    if mine.outcome is None:
        return prepared.retry_if_lost(connection, sql, values)
    if isinstance(mine.outcome, DatabaseError):
        raise mine.outcome
    return mine.outcome


def _read_all(connection: BaseDatabaseWrapper, sql: bytes, reads: list[_Read]) -> None:
    try:
        outcomes = prepared.run_each(connection, [(sql, each.values) for each in reads])
        for each, outcome in zip(reads, outcomes, strict=True):
            each.outcome = outcome
    except Error:
        pass  # the connection failed: each request repeats its read
    finally:
        for each in reads[1:]:
            each.request.call_soon(each.request.switch)
