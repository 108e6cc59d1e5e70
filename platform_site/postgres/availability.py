"""Availability watch: when a database does not respond, waiting requests must not use up the threads of other regions.
Statements run under it by `run`. docs/explanation/reliability.md. A database is in one of two states:

- Available. At most three quarters of the threads wait for it without progress (`enter`). It becomes unavailable when a
  wait ends in silence (`lost`), or when there was no progress for DATABASE_SILENCE_SECONDS and a probe gets no response
  (`check`).
- Unavailable. New waits are refused at once (503 `unavailable`), and waiting connections are shut down (`check`). One
  thread probes it every PROBE_SECONDS; any response makes it available."""

import logging
import math
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

import psycopg
from django.conf import settings
from django.db.backends.base.base import BaseDatabaseWrapper
from greenlet import getcurrent, greenlet

logger = logging.getLogger("platform.databases")

Result = TypeVar("Result")

PROBE_SECONDS: Final = 0.5
SILENT_SECONDS: Final = 0.5
MIN_WAIT_SECONDS: Final = 0.05
"""So long without progress is normal."""
USUAL_LATENCY_FACTOR: Final = 8
ANSWER_SECONDS: Final = 2
"""To connect in a probe, and for an empty statement."""
LOG_EVERY_SECONDS: Final = 10
"""Many requests fail to connect for the same reason."""

_TO_PROBE: Final = frozenset(
    {"dbname", "user", "password", "host", "port", "sslmode", "sslrootcert", "sslcert", "sslkey"}
)
_max_waiting_threads: float = float("inf")


class AvailabilityWatch:
    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._lock = threading.Lock()
        self._waiting: dict[greenlet, tuple[float, BaseDatabaseWrapper | None, bool]] = {}
        """By thread or loop request: the start of the wait (monotonic), the connection (None: connecting), and whether
        the wait occupies a request thread."""
        self._progress_at = 0.0
        self._usual = 0.0
        """Moving average of a statement's seconds."""
        self._is_being_checked = False
        self._logged_at = -math.inf
        self.is_unavailable = False

    def enter(
        self,
        connection: BaseDatabaseWrapper | None = None,
        *,
        never_refuse: bool = False,
        connects_for_loop: bool = False,
    ) -> bool:
        """Register a wait of this thread or loop request for the database. After True, call `leave` at its end, and
        `lost` before that if no response came. False: it is registered already, by a caller further up. Raises
        psycopg's ConnectionTimeout if the database is unavailable or too many threads wait without progress."""
        waiter = getcurrent()
        waiting = self._waiting
        if waiter in waiting:
            return False
        holds_thread = type(waiter) is greenlet and not connects_for_loop  # that is done in a helper thread
        if not never_refuse:
            if self.is_unavailable:
                raise psycopg.errors.ConnectionTimeout(f"database {self._alias} does not answer")
            if holds_thread and len(waiting) >= _max_waiting_threads and self._too_many_wait():
                raise psycopg.errors.ConnectionTimeout(f"too many threads wait for database {self._alias}")
        if not _guard_runs:
            _start_guard()
        waiting[waiter] = time.monotonic(), connection, holds_thread
        return True

    def leave(self) -> None:
        with self._lock:  # so that `_shut_down_waiting` cannot close a connection whose wait has ended
            waited = self._waiting.pop(getcurrent(), None)
        if waited is not None:
            self._progress_at = now = time.monotonic()
            self._usual += (now - waited[0] - self._usual) / 32

    def lost(self, parameters: dict[str, Any]) -> None:
        """`parameters` are for probes."""
        with self._lock:
            waited = self._waiting.pop(getcurrent(), None)
        if waited is not None and time.monotonic() - waited[0] >= SILENT_SECONDS:
            self._mark_unavailable(parameters)

    def log_failure(self, error: psycopg.Error) -> None:
        """`error` is of connecting, so its text has names and addresses, but no password and no tenant's data."""
        if (now := time.monotonic()) - self._logged_at >= LOG_EVERY_SECONDS:
            self._logged_at = now
            logger.warning("cannot connect to database %s: %s", self._alias, " ".join(str(error).split())[:500])

    def check(self, timeout: float) -> None:
        if self._seconds_without_progress() < timeout:
            return
        if self.is_unavailable:
            self._shut_down_waiting(timeout)
        elif not self._is_being_checked:
            connections = [connection for _, connection, _ in list(self._waiting.values()) if connection is not None]
            if connections:
                self._is_being_checked = True
                if not self._start_thread(self._probe_once, connections[0].get_connection_params()):
                    self._is_being_checked = False

    def _too_many_wait(self) -> bool:
        if sum(holds_thread for _, _, holds_thread in list(self._waiting.values())) < _max_waiting_threads:
            return False
        return self._seconds_without_progress() > max(MIN_WAIT_SECONDS, USUAL_LATENCY_FACTOR * self._usual)

    def _seconds_without_progress(self) -> float:
        """Since a wait ended, or since the oldest one began; 0 without one."""
        try:
            since = max(self._progress_at, min(began for began, _, _ in self._waiting.values()))
        except (ValueError, RuntimeError):  # a thread has just left
            return 0.0
        return time.monotonic() - since

    def _shut_down_waiting(self, timeout: float) -> None:
        for waiter, waited in list(self._waiting.items()):
            began, connection, _ = waited
            if connection is None or time.monotonic() - began < timeout:
                continue
            with self._lock, suppress(psycopg.Error, OSError):
                if self._waiting.get(waiter) is waited and (opened := connection.connection) is not None:
                    _shut_down(opened.pgconn)
                    logger.warning("closed a stalled connection to database %s", self._alias)

    def _mark_unavailable(self, parameters: dict[str, Any]) -> None:
        with self._lock:
            if self.is_unavailable:
                return
            self.is_unavailable = True
        if self._start_thread(self._probe_until_response, parameters):
            logger.warning("database %s does not respond; requests for it are refused until it does", self._alias)
        else:
            self.is_unavailable = False  # otherwise its return would not be noticed

    def _start_thread(self, work: Callable[[dict[str, Any]], None], parameters: dict[str, Any]) -> bool:
        try:
            threading.Thread(target=work, args=(parameters,), name=f"probe-{self._alias}", daemon=True).start()
        except RuntimeError:  # the system has no more threads
            logger.exception("the watch of database %s failed", self._alias)
            return False
        return True

    def _probe_once(self, parameters: dict[str, Any]) -> None:
        try:
            responds = self._probe(parameters)
            if responds:
                self._progress_at = time.monotonic()
            elif responds is not None and self._seconds_without_progress():
                self._mark_unavailable(parameters)
        finally:
            self._is_being_checked = False

    def _probe_until_response(self, parameters: dict[str, Any]) -> None:
        time.sleep(PROBE_SECONDS)
        while not self._probe(parameters):
            time.sleep(PROBE_SECONDS)
        self.is_unavailable = False
        logger.warning("database %s responds again", self._alias)

    def _probe(self, parameters: dict[str, Any]) -> bool | None:
        """None if the probe itself failed."""
        try:
            return _responds(parameters)
        except Exception:  # psycopg's wait for an answer takes a descriptor, and there may be none
            logger.exception("the probe of database %s failed", self._alias)
            return None


def _responds(parameters: dict[str, Any]) -> bool:
    """Whether a new connection gets any response, errors included."""
    keep = {name: value for name, value in parameters.items() if name in _TO_PROBE and value}
    began = time.monotonic()
    try:
        opened = psycopg.connect(**keep, connect_timeout=ANSWER_SECONDS)
    except psycopg.Error as error:
        return error.sqlstate is not None or time.monotonic() - began < SILENT_SECONDS
    try:
        # A pooler opens connections without its server, so this has to reach the server.
        opened.pgconn.send_query(b"")
        poll = select.poll()
        poll.register(opened.pgconn.socket, select.POLLIN)
        return bool(poll.poll(ANSWER_SECONDS * 1000))
    finally:
        opened.close()


def _shut_down(pgconn: Any) -> None:
    """The waiting thread closes the connection itself."""
    number = pgconn.socket
    with socket.socket(fileno=os.dup(number)) as ours:
        if pgconn.socket == number:  # otherwise it was closed, and the number may be another file's
            ours.shutdown(socket.SHUT_RDWR)


_watches: Final[dict[str, AvailabilityWatch]] = {}


def watch(alias: str) -> AvailabilityWatch:
    found = _watches.get(alias)
    return found if found is not None else _watches.setdefault(alias, AvailabilityWatch(alias))


def run(
    wrapper: BaseDatabaseWrapper,
    work: Callable[..., Result],
    *arguments: Any,
    never_refuse: bool = False,
    reconnects: bool = True,
) -> Result:
    """Run `work(*arguments)`, which waits for the wrapper's database. If `reconnects`, a connection lost outside of a
    transaction is closed, so that the next statement opens another one. Raises Django's errors."""
    watched = watch(wrapper.alias)
    try:
        entered = watched.enter(wrapper, never_refuse=never_refuse)
        try:
            return work(*arguments)
        except Exception:
            if wrapper.connection is not None and wrapper.connection.closed:
                watched.lost(wrapper.get_connection_params())
                if reconnects and not wrapper.in_atomic_block:
                    wrapper.close()
            raise
        finally:
            if entered:
                watched.leave()
    except psycopg.Error:
        # Converts it to Django's error. Around every statement, this would cost two more calls.
        with wrapper.wrap_database_errors:
            raise


def limit_waiting_threads(threads: int) -> None:
    global _max_waiting_threads
    _max_waiting_threads = max(1, threads * 3 // 4)


_guard_runs = False
_guard_lock = threading.Lock()


def _start_guard() -> None:
    global _guard_runs
    with _guard_lock:
        if not _guard_runs:
            try:
                threading.Thread(target=_guard, name="databases", daemon=True).start()
            except RuntimeError:  # the system has no more threads: the next one tries
                return
            _guard_runs = True


def _guard() -> None:
    while True:
        time.sleep(PROBE_SECONDS)
        for watched in list(_watches.values()):
            try:
                watched.check(settings.DATABASE_SILENCE_SECONDS)
            except Exception:
                logger.exception("the availability check of a database failed")


def _after_fork() -> None:
    global _guard_runs, _guard_lock
    _guard_runs, _guard_lock = False, threading.Lock()
    _watches.clear()


os.register_at_fork(after_in_child=_after_fork)
