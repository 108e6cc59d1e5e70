"""A database that does not answer: one finds out, and everybody else is spared the wait.

A host that vanished or a cable that was cut refuses nothing and resets nothing. Opening a connection to it takes
`connect_timeout` to fail, a statement on an open one DATABASE_SILENCE_SECONDS, until the kernel gives the connection up
(settings). A server that stands still on a living host (its disk does not answer, or it is behind a proxy) would never
be given up: the kernel answers for it. A thread that waits is one of the few that serve every region. So each process
watches each of its databases:

* The first wait that ends in silence marks the database as away. From then on everybody is refused at once
  (psycopg's ConnectionTimeout, 503 `unavailable`), while one thread asks every PROBE_SECONDS whether it is back.
* Until then at most three quarters of a web process's threads wait for one database that makes no progress. No progress
  means that for a good deal longer than its statements usually take not one of them has ended: a database that is far
  away or slow fills its share as well, but goes on.
* Where nothing has ended for DATABASE_SILENCE_SECONDS, the database is asked by a connection of its own. If that is not
  answered either it is away, and the connections of those who wait are cut: they get their 503 as the others do.

A database that says no, or closes the connection, answers: what a restart or an administrator costs is in
docs/explanation/reliability.md. Who calls: `platform_site.postgres.base` for connections, cursors and commits,
`platform_site.postgres.prepared` for what it sends by libpq.
"""

import logging
import os
import select
import socket
import threading
import time
from contextlib import suppress
from typing import Any, Final

import psycopg
from django.conf import settings
from django.db.backends.base.base import BaseDatabaseWrapper

logger = logging.getLogger("platform.databases")

PROBE_SECONDS: Final = 0.5
SILENT_SECONDS: Final = 0.5
"""What failed sooner was an answer, if only of the network."""
LEAST_PATIENCE: Final = 0.05
"""Seconds without progress that are not unusual, however quick the database is. The lane lets a thread join every 10 ms
(`LANE_PATIENCE_MS`): six of eight are there after 60, and by then it must be known whether they wait in vain.
"""
USUAL_TIMES: Final = 8
"""So many times the usual length of a statement are not unusual either."""

ANSWER_SECONDS: Final = 2
"""How long it may take to open a connection, and then to answer an empty statement, for whoever asks whether it is
there."""

_most: float = float("inf")


class Watch:
    """What this process knows of one database. All methods may be called by any thread."""

    __slots__ = ("_alias", "_is_asked", "_lock", "_progress_at", "_usual", "_waiting", "is_away")

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[float, BaseDatabaseWrapper | None]] = {}
        """When each thread that waits for the database now began to (monotonic), and by which connection (None: it is
        opening one), by thread."""
        self._progress_at = 0.0
        self._usual = 0.0
        """Seconds that a statement takes of late, a moving average."""
        self._is_asked = False
        self.is_away = False

    def enter(self, by: BaseDatabaseWrapper | None = None, *, whatever: bool = False) -> bool:
        """Begin to wait for the database; whoever is told True says `leave` or `lost` when it is over.

        False: this thread is in already. Raises psycopg's ConnectionTimeout if it is away, or if so many wait without
        progress that one more would be too many; never with `whatever`.
        """
        me = threading.get_ident()
        waiting = self._waiting
        if me in waiting:
            return False
        if not whatever:
            if self.is_away:
                raise psycopg.errors.ConnectionTimeout(f"database {self._alias} does not answer")
            if len(waiting) >= _most and self._stands_still():
                raise psycopg.errors.ConnectionTimeout(f"enough threads wait for database {self._alias}")
        if not _guard_runs:
            _start_guard()
        waiting[me] = time.monotonic(), by
        return True

    def leave(self) -> None:
        """The database answered, with whatever it was."""
        with self._lock:  # whoever cuts connections must not do so behind our back
            waited = self._waiting.pop(threading.get_ident(), None)
        if waited is not None:
            self._progress_at = now = time.monotonic()
            self._usual += (now - waited[0] - self._usual) / 32

    def lost(self, parameters: dict[str, Any]) -> None:
        """The wait ended without an answer. `parameters` are those of the connection, to ask again with."""
        with self._lock:
            waited = self._waiting.pop(threading.get_ident(), None)
        if waited is not None and time.monotonic() - waited[0] >= SILENT_SECONDS:
            self._mark_away(parameters)

    def _mark_away(self, parameters: dict[str, Any]) -> None:
        with self._lock:
            if self.is_away:
                return
            self.is_away = True
        if self._in_background(self._probe, parameters):
            logger.warning("database %s does not answer; its requests are refused until it does", self._alias)
        else:
            self.is_away = False  # nobody would find out that it is back

    def _in_background(self, work: Any, parameters: dict[str, Any]) -> bool:
        try:
            threading.Thread(target=work, args=(parameters,), name=f"probe-{self._alias}", daemon=True).start()
        except RuntimeError:  # the system has no more threads
            logger.exception("nobody can look after database %s", self._alias)
            return False
        return True

    def _stands_still(self) -> bool:
        return self._nothing_ended_for() > max(LEAST_PATIENCE, USUAL_TIMES * self._usual)

    def _nothing_ended_for(self) -> float:
        """Seconds since a wait last ended, or since the first of those who wait now began; 0 if nobody does."""
        try:
            since = max(self._progress_at, min(began for began, _ in self._waiting.values()))
        except (ValueError, RuntimeError):  # somebody left just now
            return 0.0
        return time.monotonic() - since

    def look(self, patience: float) -> None:
        """Called every PROBE_SECONDS: nobody shall wait for a database that stands still. `patience` in seconds."""
        if self._nothing_ended_for() < patience:
            return
        if self.is_away:
            self._cut(patience)
        elif not self._is_asked:
            by = next((by for _, by in list(self._waiting.values()) if by is not None), None)
            if by is not None:
                self._is_asked = True
                self._is_asked = self._in_background(self._ask, by.get_connection_params())

    def _ask(self, parameters: dict[str, Any]) -> None:
        try:
            if _answers(parameters):
                self._progress_at = time.monotonic()
            elif self._nothing_ended_for():
                self._mark_away(parameters)
        except Exception:  # psycopg's wait for an answer takes a descriptor, and there may be none
            logger.exception("database %s could not be asked whether it is there", self._alias)
        finally:
            self._is_asked = False

    def _cut(self, patience: float) -> None:
        """Cut the connections of all who have waited for so long. Theirs is the error of a connection that broke."""
        for me, waited in list(self._waiting.items()):
            began, by = waited
            if by is None or time.monotonic() - began < patience:
                continue
            with self._lock, suppress(psycopg.Error, OSError):
                if self._waiting.get(me) is waited and (opened := by.connection) is not None:
                    _shut_down(opened.pgconn)
                    logger.warning("cut a connection to database %s, which stands still", self._alias)

    def _probe(self, parameters: dict[str, Any]) -> None:
        while self.is_away:
            time.sleep(PROBE_SECONDS)
            try:
                if not _answers(parameters):
                    continue
            except Exception:  # as in `_ask`
                logger.exception("database %s could not be asked whether it is back", self._alias)
                continue
            self.is_away = False
        logger.warning("database %s answers again", self._alias)


def _answers(parameters: dict[str, Any]) -> bool:
    """Whether the database says anything to a new connection. "Starting up" and "too many connections" are answers, and
    so is a refusal."""
    keep = {name: value for name, value in parameters.items() if name in _TO_PROBE and value}
    began = time.monotonic()
    try:
        opened = psycopg.connect(**keep, connect_timeout=ANSWER_SECONDS)
    except psycopg.Error as error:
        return error.sqlstate is not None or time.monotonic() - began < SILENT_SECONDS
    try:
        # A pooler opens connections by itself.
        opened.pgconn.send_query(b"")
        poll = select.poll()
        poll.register(opened.pgconn.socket, select.POLLIN)
        return bool(poll.poll(ANSWER_SECONDS * 1000))
    finally:
        opened.close()


def _shut_down(pgconn: Any) -> None:
    """End the conversation that another thread waits in. It closes the connection itself."""
    number = pgconn.socket
    with socket.socket(fileno=os.dup(number)) as ours:
        if pgconn.socket == number:  # still open, so what was duplicated is its own
            ours.shutdown(socket.SHUT_RDWR)


_TO_PROBE: Final = frozenset(
    {"dbname", "user", "password", "host", "port", "sslmode", "sslrootcert", "sslcert", "sslkey"}
)
_watches: Final[dict[str, Watch]] = {}


def watch(alias: str) -> Watch:
    found = _watches.get(alias)
    return found if found is not None else _watches.setdefault(alias, Watch(alias))


def serve_by(threads: int) -> None:
    """Say that `threads` serve all databases in this process; without it, any number may wait for one."""
    global _most
    _most = max(1, threads * 3 // 4)


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
                watched.look(settings.DATABASE_SILENCE_SECONDS)
            except Exception:
                logger.exception("a database could not be looked after")


def _after_fork() -> None:
    """The child has none of its parent's threads: nobody waits, and nobody would ask whether a database is back."""
    global _guard_runs, _guard_lock
    _guard_runs, _guard_lock = False, threading.Lock()
    _watches.clear()


os.register_at_fork(after_in_child=_after_fork)
