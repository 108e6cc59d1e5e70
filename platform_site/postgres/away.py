"""A database that does not answer: one finds out, and everybody else is spared the wait.

A host that vanished or a cable that was cut refuses nothing and resets nothing. Opening a connection to it takes
`connect_timeout` to fail, a statement on an open one DATABASE_SILENCE_SECONDS, until the kernel gives the connection up
(settings). A request that waits holds one of the few threads that serve every region. So each process watches each of
its databases:

* The first wait that ends in silence marks the database as away. From then on everybody is refused at once
  (psycopg's ConnectionTimeout, 503 `unavailable`), while one thread asks every PROBE_SECONDS whether it is back.
* Until then at most three quarters of a web process's threads wait for one region that makes no progress. No progress
  means that for a good deal longer than its statements usually take not one of them has ended: a database that is far
  away or slow fills its share as well, but goes on.

A database that says no, or closes the connection, answers: what a restart or an administrator costs is in
docs/deployment.md. Who calls: `platform_site.postgres.base` for connections, `rows.execution` for statements.
"""

import logging
import os
import threading
import time
from typing import Any, Final

import psycopg

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

_most: float = float("inf")


class Watch:
    """What this process knows of one database. All methods may be called by any thread."""

    __slots__ = ("_alias", "_lock", "_progress_at", "_usual", "_waiting", "is_away")

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._lock = threading.Lock()
        self._waiting: dict[int, float] = {}
        """When each thread that waits for the database now began to (monotonic), by thread."""
        self._progress_at = 0.0
        self._usual = 0.0
        """Seconds that a statement takes of late, a moving average."""
        self.is_away = False

    def enter(self) -> bool:
        """Begin to wait for the database; whoever is told True says `leave` or `lost` when it is over.

        False: this thread is in already. Raises psycopg's ConnectionTimeout if it is away, or if so many wait without
        progress that one more would be too many.
        """
        me = threading.get_ident()
        waiting = self._waiting
        if me in waiting:
            return False
        if self.is_away:
            raise psycopg.errors.ConnectionTimeout(f"database {self._alias} does not answer")
        if len(waiting) >= _most and self._stands_still():
            raise psycopg.errors.ConnectionTimeout(f"enough threads wait for database {self._alias}")
        waiting[me] = time.monotonic()
        return True

    def leave(self) -> None:
        """The database answered, with whatever it was."""
        began = self._waiting.pop(threading.get_ident(), None)
        if began is not None:
            self._progress_at = now = time.monotonic()
            self._usual += (now - began - self._usual) / 32

    def lost(self, parameters: dict[str, Any]) -> None:
        """The wait ended without an answer. `parameters` are those of the connection, to ask again with."""
        began = self._waiting.pop(threading.get_ident(), None)
        if began is None or time.monotonic() - began < SILENT_SECONDS:
            return
        with self._lock:
            if self.is_away:
                return
            self.is_away = True
        try:
            threading.Thread(target=self._probe, args=(parameters,), name=f"probe-{self._alias}", daemon=True).start()
        except RuntimeError:  # the system has no more threads: nobody would find out that it is back
            self.is_away = False
            logger.exception("nobody can look after database %s", self._alias)
        else:
            logger.warning("database %s does not answer; its requests are refused until it does", self._alias)

    def _stands_still(self) -> bool:
        try:
            since = max(self._progress_at, min(self._waiting.values()))
        except (ValueError, RuntimeError):  # somebody left just now
            return False
        return time.monotonic() - since > max(LEAST_PATIENCE, USUAL_TIMES * self._usual)

    def _probe(self, parameters: dict[str, Any]) -> None:
        keep = {name: value for name, value in parameters.items() if name in _TO_PROBE and value}
        while self.is_away:
            time.sleep(PROBE_SECONDS)
            began = time.monotonic()
            try:
                psycopg.connect(**keep, connect_timeout=2).close()
            except psycopg.Error as error:
                # "Starting up" and "too many connections" are answers, and so is a refusal.
                if error.sqlstate is None and time.monotonic() - began >= SILENT_SECONDS:
                    continue
            except Exception:  # psycopg's wait for an answer takes a descriptor, and there may be none
                logger.exception("database %s could not be asked whether it is back", self._alias)
                continue
            self.is_away = False
        logger.warning("database %s answers again", self._alias)


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


def _after_fork() -> None:
    """The child has none of its parent's threads: nobody waits, and nobody would ask whether a database is back."""
    _watches.clear()


os.register_at_fork(after_in_child=_after_fork)
