"""Sweeps: functions that find all due work in PostgreSQL, however it came to be left there.

    @sweep(every=5)
    def finish_deletions() -> None: …

in an app's `tasks.py` is all it takes. Two clocks call it. Celery's beat sends a nudge each `every` seconds to whatever
worker is free; and each worker process has a clock of its own, which runs a sweep that this process has not seen for
three periods: beat or Redis is away then, or another worker got every nudge, and then it costs one more look. One
process at a time runs a sweep (an advisory lock of the control database), so two beats do no double work (fault F24).

A sweep must be safe to run at any moment, twice, and cut off anywhere; it pages past its batch until nothing is due.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from celery import shared_task
from django.db import DEFAULT_DB_ALIAS, DatabaseError, close_old_connections

from platform_site.postgres.direct import session

logger = logging.getLogger(__name__)

_LATE: Final = 3
"""Periods without a run until a process stops waiting for beat."""


@dataclass(slots=True)
class Sweep:
    """One registered sweep; `every` is its period in seconds."""

    name: str
    every: float
    function: Callable[[], object]
    seen_at: float = field(default_factory=time.monotonic)
    """When this process last ran it, or found another running it."""

    def run(self) -> bool:
        """Run it, unless another process is at it now. What it raises, we raise."""
        with _alone(self.name) as ours:
            self.seen_at = time.monotonic()
            if ours:
                self.function()
            return ours


_sweeps: Final[dict[str, Sweep]] = {}


def sweep(*, every: float, at_start: bool = False) -> Callable[[Callable[[], object]], Callable[[], object]]:
    """Register a function to be run each `every` seconds, somewhere; with `at_start` also as soon as a worker's own
    clock runs, beat or no beat. The function itself is returned unchanged."""

    def register(function: Callable[[], object]) -> Callable[[], object]:
        name = f"{function.__module__}.{function.__qualname__}"
        seen_at = time.monotonic() - (every * _LATE if at_start else 0)
        _sweeps[name] = Sweep(name, every, function, seen_at)
        return function

    return register


def all_sweeps() -> list[Sweep]:
    """Every sweep of the modules imported so far."""
    return list(_sweeps.values())


def beat_schedule() -> dict[str, dict[str, Any]]:
    """The entries for Celery's beat. A nudge that nobody took within its period is dropped: the next one is there."""
    return {
        found.name: {
            "task": run_sweep.name,
            "schedule": found.every,
            "args": (found.name,),
            "options": {"expires": found.every, "queue": "default"},
        }
        for found in _sweeps.values()
    }


@shared_task(name="platform.run_sweep")
def run_sweep(name: str) -> None:
    """One nudge of beat. A name that this release does not know is another release's, and ignored."""
    if (found := _sweeps.get(name)) is not None:
        found.run()


class Clock(threading.Thread):
    """The second clock, one in each worker process. Started by `platform_site.celery` when the worker is ready."""

    def __init__(self, tick: float = 1.0) -> None:
        super().__init__(name="sweeps", daemon=True)
        self._tick = tick
        self._stopped = threading.Event()

    def run(self) -> None:
        # Workers that start together must not look together.
        while not self._stopped.wait(self._tick * random.uniform(0.75, 1.25)):  # noqa: S311
            now = time.monotonic()
            for found in all_sweeps():
                if now - found.seen_at >= found.every * _LATE:
                    self._run(found)

    def _run(self, found: Sweep) -> None:
        try:
            close_old_connections()
            found.run()
        except Exception:
            found.seen_at = time.monotonic()  # tried: not again before its time
            logger.exception("a sweep failed", extra={"sweep": found.name})
            close_old_connections()

    def stop(self) -> None:
        self._stopped.set()


@contextmanager
def _alone(name: str) -> Iterator[bool]:
    """Whether we are the only one at this sweep, until the end of the block."""
    key = f"sweep:{name}"
    with session(DEFAULT_DB_ALIAS) as connection:
        with connection.cursor() as cursor:
            # The session's lock, not a transaction's: a sweep is many transactions, and a lost connection releases it.
            cursor.execute("SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", [key])
            ours = bool(cursor.fetchone()[0])
        try:
            yield ours
        finally:
            if ours:
                # A connection that broke meanwhile has released it already.
                with suppress(DatabaseError), connection.cursor() as cursor:
                    cursor.execute("SELECT pg_advisory_unlock(hashtextextended(%s, 0))", [key])
