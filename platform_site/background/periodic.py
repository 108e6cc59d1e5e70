"""Sweeps: functions that find all due work in PostgreSQL, however it came to be left there.

    @sweep(every=5)
    def finish_deletions() -> None: …

in an app's `tasks.py` is all it takes; `sweep_of_each_region` is for what a region can do by itself. Two clocks call
it. Celery's beat sends a nudge each `every` seconds to whatever worker is free; and each worker process has a clock of
its own, which runs a sweep that this process has not seen for three periods: beat or Redis is away then, or another
worker got every nudge, and then it costs one more look. The nudge for a region's frequent sweep is handed to that
clock, too, when it is free: its thread keeps its connection, where a task of Celery's opens and closes one. One process
at a time runs a sweep (an advisory lock of its database), so two beats do no double work (fault F24). A process that
stands still keeps its lock; when its session has been silent for three periods, the others go past it.

What belongs to a region must not depend on another database, nor wait for one: its sweep has its lock in the region,
and each database has a thread of its own for the second clock.

A sweep must be safe to run at any moment, twice, and cut off anywhere; it pages past its batch until nothing is due.
"""

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import psycopg
from celery import shared_task
from celery.schedules import schedule
from django.conf import settings
from django.db import (
    DEFAULT_DB_ALIAS,
    Error,
    InterfaceError,
    OperationalError,
    close_old_connections,
    connections,
    transaction,
)

from platform_site.fastpath.libpq import session

logger = logging.getLogger(__name__)

_LATE: Final = 3
"""Periods without a run until a process stops waiting for beat, or without a word from another that is at it."""
_PATIENCE: Final = 5.0
"""Seconds, the least that one that is at it gets: a sweep may take longer than its period."""
_FREQUENT: Final = 15.0
"""Seconds; a sweep with no longer a period is frequent: what its connection costs is then most of what it costs."""
_STALE: Final = 3600.0
"""Seconds after which a nudge that no worker took is dropped. Celery compares beat's clock with the worker's, so this
is also by how much they may differ: a worker that is fast by more drops every nudge, and waits for its own clock."""


@dataclass(slots=True)
class Sweep:
    """One registered sweep; `every` is its period in seconds."""

    name: str
    every: float
    function: Callable[[], object]
    using: str = DEFAULT_DB_ALIAS
    """The database that has its lock."""
    seen_at: float = field(default_factory=time.monotonic)
    """When this process last ran it, or found another running it; or when it was registered."""
    ran_at: float = -math.inf
    """The same, never before the first time."""

    def run(self) -> bool:
        """Run it, unless another process is at it now. What it raises, we raise."""
        with _alone(self.name, self.using, patience=max(_PATIENCE, self.every * _LATE)) as ours:
            self.seen_at = self.ran_at = time.monotonic()
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
        _sweeps[name] = Sweep(name, every, function, seen_at=seen_at)
        return function

    return register


def sweep_of_each_region(*, every: float) -> Callable[[Callable[[str], object]], Callable[[str], object]]:
    """As `sweep`, for a function of a region's alias that connects to no database but that one; what it must know from
    elsewhere, plans say, it asks aside and briefly. Each region has its own, which goes on whatever becomes of the
    others and of the control database."""

    def register(function: Callable[[str], object]) -> Callable[[str], object]:
        for using in settings.REGION_DATABASES:
            name = f"{function.__module__}.{function.__qualname__}@{using}"
            _sweeps[name] = Sweep(name, every, partial(function, using), using)
        return function

    return register


@contextmanager
def apart(what: str, *expected: type[Exception], using: str | None = None) -> Iterator[None]:
    """One part of a sweep, most often a region's: whatever happens in it, the sweep goes on with the next part.

    What a database says (psycopg's InterfaceError is no DatabaseError, nor is Django's) and what is `expected` is a
    warning that names `what`; anything else a fault of ours, logged in full. The thread's connection to `using` is not
    used again then.
    """
    warned: tuple[type[Exception], ...] = (Error, psycopg.Error, *expected)
    try:
        yield
    except warned as error:
        logger.warning("%s: left to the next sweep: %s", what, type(error).__name__)
    except Exception:
        logger.exception("%s: left to the next sweep", what)
    else:
        return
    if using is not None:
        connections[using].close()


def after_commit(
    what: str, do: Callable[..., object], *args: Any, using: str, committed: str = DEFAULT_DB_ALIAS
) -> None:
    """Call `do(*args)`, which asks the database `using`, once the transaction at hand of `committed` has committed; as
    a part of its own (`apart`), since what is committed is answered so whatever becomes of what follows it.

    Django's own robust hooks look for the name of one that failed, which a `partial` has not: they end in 500 then.
    """

    def hook() -> None:
        with apart(what, using=using):
            do(*args)

    transaction.on_commit(hook, using=committed)


def all_sweeps() -> list[Sweep]:
    """Every sweep of the modules imported so far."""
    return list(_sweeps.values())


_STARTED_AT: Final = datetime.now(UTC) - timedelta(seconds=time.monotonic())


def _steady_now() -> datetime:
    """Beat asks this what time it is. By the host's clock it would stand still when that is set back, for as long as it
    was ahead."""
    return _STARTED_AT + timedelta(seconds=time.monotonic())


def beat_schedule() -> dict[str, dict[str, Any]]:
    """The entries for Celery's beat. Nudges that nobody takes pile up for an hour at most, some four a second with
    three regions."""
    return {
        found.name: {
            "task": run_sweep.name,
            "schedule": schedule(found.every, nowfun=_steady_now),
            "args": (found.name,),
            "options": {"expires": _STALE, "queue": "default"},
        }
        for found in _sweeps.values()
    }


@shared_task(name="platform.run_sweep")
def run_sweep(name: str) -> None:
    """One nudge of beat. A name that this release does not know is another release's, and ignored; and so is one of a
    pile, when this process has just seen to that sweep."""
    found = _sweeps.get(name)
    if found is not None and time.monotonic() - found.ran_at >= found.every / 2:
        clock = _clocks.get(found.using) if found.every <= _FREQUENT and found.using != DEFAULT_DB_ALIAS else None
        if clock is not None and clock.take(found):
            return
        try:
            found.run()
        except (OperationalError, InterfaceError) as error:
            close_old_connections()
            logger.warning("a sweep waits for PostgreSQL", extra={"sweep": name, "why": type(error).__name__})


_clocks: Final[dict[str, "Clock"]] = {}
"""Those that run in this process, by the database whose locks their sweeps take."""


class Clock(threading.Thread):
    """The second clock, one in each worker process for each database whose locks the sweeps take. Started and stopped
    with the worker, by `platform_site.celery`."""

    def __init__(self, using: str = DEFAULT_DB_ALIAS, tick: float = 1.0) -> None:
        super().__init__(name=f"sweeps-{using}", daemon=True)
        self._using, self._tick = using, tick
        self._turn = threading.Condition()
        self._is_stopped = self._is_waiting = False
        self._taken: Sweep | None = None

    def take(self, found: Sweep) -> bool:
        """Run it now, in this clock's thread; False if that is at another, which may take long, or has ended."""
        with self._turn:
            if not self._is_waiting or self._is_stopped or self._taken is not None:
                return False
            self._taken = found
            self._turn.notify()
            return True

    def start(self) -> None:
        _clocks[self._using] = self
        super().start()

    def run(self) -> None:
        try:
            while not self._is_stopped:
                taken = self._wait()
                if taken is not None:
                    self._run(taken)
                now = time.monotonic()
                for found in all_sweeps():
                    is_late = found.using == self._using and now - found.seen_at >= found.every * _LATE
                    if is_late and not self._is_stopped:
                        self._run(found)
        finally:
            _clocks.pop(self._using, None)

    def _wait(self) -> Sweep | None:
        """Until the next look, or until there is one to take. Workers that start together must not look together."""
        with self._turn:
            self._is_waiting = True
            self._turn.wait_for(lambda: self._is_stopped or self._taken, self._tick * random.uniform(0.75, 1.25))  # noqa: S311
            self._is_waiting = False
            taken, self._taken = self._taken, None
            return None if self._is_stopped else taken

    def _run(self, found: Sweep) -> None:
        try:
            close_old_connections()
            found.run()
        except (OperationalError, InterfaceError) as error:
            found.seen_at = time.monotonic()
            logger.warning("a sweep waits for PostgreSQL", extra={"sweep": found.name, "why": type(error).__name__})
            close_old_connections()
        except Exception:
            found.seen_at = time.monotonic()  # tried: not again before its time
            logger.exception("a sweep failed", extra={"sweep": found.name})
            close_old_connections()

    def stop(self) -> None:
        with self._turn:
            self._is_stopped = True
            self._turn.notify()


def stop_clocks(seconds: float) -> None:
    """Stop all of this process, and wait so long for each. A sweep that is at it may be cut off anywhere; none begins
    any more."""
    stopped = list(_clocks.values())
    for clock in stopped:
        clock.stop()
    for clock in stopped:
        clock.join(seconds)


_STANDS_STILL: Final = """
SELECT EXISTS (
    SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
     WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND a.datname = current_database()
       AND l.database = a.datid AND (l.classid::bigint << 32 | l.objid::bigint) = hashtextextended(%s, 0)
       AND a.state_change < clock_timestamp() - %s * interval '1 second')
"""


@contextmanager
def _alone(name: str, using: str, patience: float) -> Iterator[bool]:
    """Whether this sweep is ours to run until the end of the block: nobody is at it, or in a session that has said
    nothing for `patience` seconds."""
    key = f"sweep:{name}"
    with session(using) as connection:
        with connection.cursor() as cursor:
            # The session's lock, not a transaction's: a sweep is many transactions, and a lost connection releases it.
            cursor.execute("SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", [key])
            locked = may_run = bool(cursor.fetchone()[0])
            if not locked:
                cursor.execute(_STANDS_STILL, [key, patience])
                may_run = bool(cursor.fetchone()[0])
        try:
            yield may_run
        finally:
            if locked:
                # A connection that broke meanwhile has released it already.
                with suppress(Error), connection.cursor() as cursor:
                    cursor.execute("SELECT pg_advisory_unlock(hashtextextended(%s, 0))", [key])
