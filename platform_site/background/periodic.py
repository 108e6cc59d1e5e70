"""Periodic jobs: functions in `tasks.py` with `@periodic_job(every=5)` or `periodic_job_per_region`, safe to run at any
time, twice, and interrupted. Beat sends them as tasks; each worker's scheduler threads run frequent and overdue ones.
An advisory lock makes one process run a job, unless it stalls for three periods."""

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

from platform_site.background import advisory_locks
from platform_site.background.advisory_locks import LockSpace
from platform_site.postgres.direct import session

logger = logging.getLogger(__name__)

_LATE_PERIODS: Final = 3
"""Periods without a run until a scheduler thread runs the job, and the session that has its lock counts as stalled."""
_MIN_STALL_SECONDS: Final = 5.0
_FREQUENT: Final = 15.0
"""Seconds; jobs with at most this period share a task, and those of a region run in its scheduler thread."""
_STALE: Final = 3600.0
"""Seconds after which an unconsumed task is dropped, and so the maximum clock difference between beat and worker."""


@dataclass(slots=True)
class PeriodicJob:
    name: str
    every: float
    function: Callable[[], object]
    using: str = DEFAULT_DB_ALIAS
    seen_at: float = field(default_factory=time.monotonic)
    """When this process last ran it or saw it run."""
    ran_at: float = -math.inf
    """When `run` last got the lock or saw that another process has it. Unlike `seen_at`, a failure does not set it."""

    def run(self) -> bool:
        with _run_exclusively(
            self.name, self.using, timeout=max(_MIN_STALL_SECONDS, self.every * _LATE_PERIODS)
        ) as may_run:
            self.seen_at = self.ran_at = time.monotonic()
            if may_run:
                self.function()
            return may_run


_jobs: Final[dict[str, PeriodicJob]] = {}


def periodic_job(*, every: float, at_start: bool = False) -> Callable[[Callable[[], object]], Callable[[], object]]:
    """Every `every` seconds, on one process; with `at_start` also when a worker starts."""

    def register(function: Callable[[], object]) -> Callable[[], object]:
        name = f"{function.__module__}.{function.__qualname__}"
        seen_at = time.monotonic() - (every * _LATE_PERIODS if at_start else 0)
        _jobs[name] = PeriodicJob(name, every, function, seen_at=seen_at)
        return function

    return register


def periodic_job_per_region(
    *, every: float, with_control: bool = False
) -> Callable[[Callable[[str], object]], Callable[[str], object]]:
    """As `periodic_job`, per region or (`with_control`) database, to which alone the function may connect."""

    def register(function: Callable[[str], object]) -> Callable[[str], object]:
        for using in connections if with_control else settings.REGION_DATABASES:
            name = f"{function.__module__}.{function.__qualname__}@{using}"
            _jobs[name] = PeriodicJob(name, every, partial(function, using), using)
        return function

    return register


@contextmanager
def log_failures(what: str, *expected: type[Exception], using: str | None = None) -> Iterator[None]:
    """Log database errors and `expected` ones as warnings that name `what`, others in full; then close the connection
    to `using`. The next part of the job continues."""
    warned: tuple[type[Exception], ...] = (Error, psycopg.Error, *expected)
    try:
        yield
    except warned as error:
        logger.warning("%s: left to the next periodic run: %s", what, type(error).__name__)
    except Exception:
        logger.exception("%s: left to the next periodic run", what)
    else:
        return
    if using is not None:
        connections[using].close()


def after_commit(
    what: str, do: Callable[..., object], *args: Any, using: str, committed: str = DEFAULT_DB_ALIAS
) -> None:
    """After the commit of `committed`, logging errors: Django's robust hooks fail for a `partial`."""

    def hook() -> None:
        with log_failures(what, using=using):
            do(*args)

    transaction.on_commit(hook, using=committed)


def all_jobs() -> list[PeriodicJob]:
    return list(_jobs.values())


_STARTED_AT: Final = datetime.now(UTC) - timedelta(seconds=time.monotonic())


def _steady_now() -> datetime:
    """Beat's clock: the host's would stop it when set back."""
    return _STARTED_AT + timedelta(seconds=time.monotonic())


def beat_schedule() -> dict[str, dict[str, Any]]:
    """Frequent jobs of a database with one period share a task: most find nothing to do, and a task costs more CPU."""
    tasks: dict[tuple[str, float] | str, list[PeriodicJob]] = {}
    for job in _jobs.values():
        key = (job.using, job.every) if job.every <= _FREQUENT else job.name
        tasks.setdefault(key, []).append(job)
    return {
        jobs[0].name: {
            "task": run_jobs.name,
            "schedule": schedule(jobs[0].every, nowfun=_steady_now),
            "args": tuple(job.name for job in jobs),
            "options": {"expires": _STALE, "queue": "default"},
        }
        for jobs in tasks.values()
    }


# The task's name on the wire; other versions of the code send it, too.
@shared_task(name="platform.run_sweep")
def run_jobs(*names: str) -> None:
    """Run those that are due, of one database and period. Other versions may name jobs that are unknown."""
    now = time.monotonic()
    due = [job for name in names if (job := _jobs.get(name)) is not None and now - job.ran_at >= job.every / 2]
    if not due:
        return
    first = due[0]
    is_regional = first.every <= _FREQUENT and first.using != DEFAULT_DB_ALIAS
    scheduler = _schedulers.get(first.using) if is_regional else None
    if scheduler is not None and scheduler.take(due):
        return
    for job in due:
        _run(job)


def _run(job: PeriodicJob) -> None:
    try:
        close_old_connections()
        job.run()
    except (OperationalError, InterfaceError) as error:
        job.seen_at = time.monotonic()
        logger.warning("a periodic job waits for PostgreSQL", extra={"job": job.name, "why": type(error).__name__})
        close_old_connections()
    except Exception:
        job.seen_at = time.monotonic()  # tried: not again before its time
        logger.exception("a periodic job failed", extra={"job": job.name})
        close_old_connections()


_schedulers: Final[dict[str, "SchedulerThread"]] = {}


class SchedulerThread(threading.Thread):
    """Runs the jobs of a database: those that are overdue, and due ones that a task gives it (`take`)."""

    def __init__(self, using: str = DEFAULT_DB_ALIAS, tick: float = 1.0) -> None:
        super().__init__(name=f"jobs-{using}", daemon=True)
        self._using, self._tick = using, tick
        self._changed = threading.Condition()
        self._is_stopped = self._is_waiting = False
        self._taken: list[PeriodicJob] = []

    def take(self, due: list[PeriodicJob]) -> bool:
        with self._changed:
            if not self._is_waiting or self._is_stopped or self._taken:
                return False
            self._taken = due
            self._changed.notify()
            return True

    def start(self) -> None:
        _schedulers[self._using] = self
        super().start()

    def run(self) -> None:
        try:
            while not self._is_stopped:
                for job in self._wait():
                    _run(job)
                now = time.monotonic()
                for job in all_jobs():
                    is_late = job.using == self._using and now - job.seen_at >= job.every * _LATE_PERIODS
                    if is_late and not self._is_stopped:
                        _run(job)
        finally:
            _schedulers.pop(self._using, None)

    def _wait(self) -> list[PeriodicJob]:
        """About one tick, or until `take`. Random, so that workers that start together do not check together."""
        with self._changed:
            self._is_waiting = True
            self._changed.wait_for(lambda: self._is_stopped or self._taken, self._tick * random.uniform(0.75, 1.25))  # noqa: S311
            self._is_waiting = False
            taken, self._taken = self._taken, []
            return [] if self._is_stopped else taken

    def stop(self) -> None:
        with self._changed:
            self._is_stopped = True
            self._changed.notify()


def stop_schedulers(seconds: float) -> None:
    stopped = list(_schedulers.values())
    for scheduler in stopped:
        scheduler.stop()
    for scheduler in stopped:
        scheduler.join(seconds)


_STALLED: Final = """
SELECT EXISTS (
    SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
     WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND a.datname = current_database()
       AND l.database = a.datid AND (l.classid::bigint << 32 | l.objid::bigint) = hashtextextended(%s, 0)
       AND a.state_change < clock_timestamp() - %s * interval '1 second')
"""


@contextmanager
def _run_exclusively(name: str, using: str, timeout: float) -> Iterator[bool]:
    """Yields whether this process has the job's lock, or its owner has been inactive for `timeout` seconds."""
    key = f"job:{name}"
    with session(using) as connection:
        with connection.cursor() as cursor:
            # The session's lock: a job has many transactions, and a lost connection releases the lock.
            locked = may_run = advisory_locks.try_lock_session(cursor, LockSpace.NAMED, key)
            if not locked:
                cursor.execute(_STALLED, [key, timeout])
                may_run = bool(cursor.fetchone()[0])
        try:
            yield may_run
        finally:
            if locked:
                with suppress(Error), connection.cursor() as cursor:
                    advisory_locks.unlock_session(cursor, LockSpace.NAMED, key)
