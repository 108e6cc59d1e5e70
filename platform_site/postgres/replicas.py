"""Read replicas (`REGION_*_REPLICA_URLS`). A replica serves a read only if it has replayed the primary's log up to both
the environment's mark (its last acknowledged write, in Redis; without it the primary is used) and the end of the log
REPLICA_LAG_LIMIT ago. The read's round trip asks for its position (`platform_site.postgres.prepared.run_on_replica`),
because earlier knowledge may concern another server. Positions need no clocks."""

import itertools
import logging
import os
import threading
import time
from copy import deepcopy
from dataclasses import dataclass
from math import inf
from typing import Any, Final, Literal

from django.conf import settings
from django.db import Error, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.connection import ConnectionDoesNotExist

from platform_site.observability.metrics import REPLICA_LAG, REPLICA_READS
from platform_site.postgres import loop_connections, statements
from platform_site.redis import client as redis_client

logger = logging.getLogger("platform.databases")

REACHED: Final = "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() - '0/0' END"
"""The replayed position; null if it is no replica."""
_WRITTEN: Final = "SELECT pg_current_wal_insert_lsn() - '0/0'"
"""Written position, beyond every acknowledged commit."""
_IDENTITY: Final = "SELECT system_identifier || '/' || current_database() FROM pg_control_system()"
_REPLICA_STATE: Final = f"SELECT ({_IDENTITY}), ({REACHED})"
_PRIMARY_STATE: Final = f"SELECT ({_IDENTITY}), ({_WRITTEN})"
_CHECKS_PER_LAG_LIMIT: Final = 4
_SAMPLE_SECONDS: Final = 60.0
_MARK_SECONDS: Final = 3600

State = Literal["ok", "lagging", "down", "primary", "foreign"]
"""`foreign`: of another cluster or database."""


@dataclass(slots=True)
class Freshness:
    position: int
    answered_by: str | None = None


class Replica:
    def __init__(self, name: str, region: "Region") -> None:
        self.name = name
        self._region = region
        self._as_of = -inf
        """By then it had replayed everything (monotonic)."""
        self._answered_at = -inf
        self.is_out = False
        self._fault: State | None = None
        self.reported: State | None = None
        self._reads: dict[str, Any] = {}

    @property
    def connection(self) -> BaseDatabaseWrapper:
        """This thread's connection, hidden from loops over all databases."""
        try:
            wrapper: BaseDatabaseWrapper = connections[self.name]
        except ConnectionDoesNotExist:
            primary = connections[self._region.alias]
            own = {**deepcopy(primary.settings_dict), **settings.REPLICAS[self._region.alias][self.name]}
            wrapper = loop_connections.create_or_borrow(self.name, lambda: type(primary)(own, self.name))
            connections[self.name] = wrapper
        return wrapper

    def is_fit(self, now: float) -> bool:
        return not self.is_out and self._fault is None and now - self._as_of <= settings.REPLICA_LAG_LIMIT

    def is_silent(self) -> bool:
        return time.monotonic() - self._answered_at > settings.REPLICA_LAG_LIMIT

    def count(self, outcome: Literal["answered", "behind", "empty", "failed"]) -> None:
        counter = self._reads.get(outcome)
        if counter is None:
            counter = self._reads[outcome] = REPLICA_READS.labels(self.name, outcome)
        counter.inc()

    def lag(self) -> float:
        """Maximum seconds behind its primary; infinite if unknown."""
        return time.monotonic() - self._as_of

    def state(self) -> State:
        if self.is_out or self.is_silent():
            return "down"
        return self._fault or ("ok" if self.lag() <= settings.REPLICA_LAG_LIMIT else "lagging")

    def check(self) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(_REPLICA_STATE)
            identity, reached = cursor.fetchone()
        if reached is None:
            self._fault = "primary"
        elif self._region.identity not in (None, identity):
            self._fault = "foreign"
        else:
            self._fault = None
            passed = [at for at, position in self._region.samples if position <= reached]
            self._as_of = max([self._as_of, *passed[-1:]])
        self._answered_at, self.is_out = time.monotonic(), False


class Region:
    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.identity: str | None = None
        self.samples: tuple[tuple[float, int], ...] = ()
        """(monotonic time, minimum written position), oldest first."""
        self.unmarked: dict[str, float] = {}
        """Unknown or unraised marks, and since when."""
        self.replicas = [Replica(name, self) for name in settings.REPLICAS[alias]]
        self._turns = itertools.count()
        self._began = time.monotonic()
        for watched in (self, *self.replicas):
            threading.Thread(target=_watch, args=(watched,), name="replicas", daemon=True).start()

    @property
    def connection(self) -> BaseDatabaseWrapper:
        return connections[self.alias]

    def choose(self, freshness: Freshness) -> tuple[Replica, int] | None:
        """A replica and the position that it needs; None for the primary."""
        now = time.monotonic()
        least = None
        for at, position in reversed(self.samples):
            if now - at > settings.REPLICA_LAG_LIMIT:
                break
            least = position
        fit = [replica for replica in self.replicas if replica.is_fit(now)]
        if least is None or not fit:
            return None
        return fit[next(self._turns) % len(fit)], max(least, freshness.position)

    def check(self) -> None:
        try:
            began = time.monotonic()
            with self.connection.cursor() as cursor:
                cursor.execute(_PRIMARY_STATE)
                self.identity, position = cursor.fetchone()
            kept = [sample for sample in self.samples if began - sample[0] < _SAMPLE_SECONDS]
            self.samples = (*kept, (began, int(position)))
            self._raise_marks(began, int(position))
        finally:
            self._report()

    def _raise_marks(self, began: float, position: int) -> None:
        due = [key for key, since in list(self.unmarked.items()) if since <= began]
        if due and redis_client.current().raise_to(dict.fromkeys(due, position), _MARK_SECONDS):
            for key in due:
                if self.unmarked[key] <= began:  # there was no write since
                    del self.unmarked[key]

    def _report(self) -> None:
        for replica in self.replicas:
            REPLICA_LAG.labels(replica.name).set(replica.lag())
            state = replica.state()
            if state != replica.reported and time.monotonic() - self._began > settings.REPLICA_LAG_LIMIT:
                level = logging.INFO if state == "ok" else logging.WARNING
                logger.log(level, "replica %s is %s", replica.name, _IN_WORDS[state])
                replica.reported = state


_IN_WORDS: Final[dict[State, str]] = {
    "ok": "up to date: it serves reads",
    "lagging": "behind by more than REPLICA_LAG_LIMIT_MS: it serves no reads until it has caught up",
    "down": "not responding",
    "primary": "a primary, not a replica: it serves no reads",
    "foreign": "a replica of another cluster or database: it serves no reads",
}


def _watch(watched: Region | Replica) -> None:
    while True:
        try:
            watched.check()
        except Exception as error:  # psycopg's wait for an answer takes a descriptor, and there may be none
            if not isinstance(error, Error):  # unavailable, restarting, full: the next check connects again
                logger.exception("a replica or its primary could not be checked")
            try:
                watched.connection.close()
            except Exception:  # the next check tries again
                logger.exception("the connection of a failed check could not be closed")
        time.sleep(settings.REPLICA_LAG_LIMIT / _CHECKS_PER_LAG_LIMIT)


_regions: dict[str, Region] = {}
_making = threading.Lock()


def region(alias: str) -> Region:
    """A region with replicas; watched from the first call."""
    found = _regions.get(alias)
    if found is None:
        with _making:
            found = _regions.get(alias)
            if found is None:
                found = _regions[alias] = Region(alias)
    return found


def _after_fork() -> None:
    global _making
    _making = threading.Lock()
    _regions.clear()


os.register_at_fork(after_in_child=_after_fork)


def states() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for alias in settings.REPLICAS:
        for replica in region(alias).replicas:
            lag = replica.lag()
            found[replica.name] = {"state": replica.state(), "lag_seconds": None if lag == inf else round(lag, 3)}
    return found


def mark_name(alias: str, environment_id: str) -> str | None:
    return f"pos:{alias}:{environment_id}" if alias in settings.REPLICAS else None


def freshness(alias: str, name: str, mark: int | None) -> Freshness | None:
    """What a request with this `mark` needs of a replica; None for the primary."""
    unmarked = region(alias).unmarked
    if mark is None:
        unmarked.setdefault(name, time.monotonic())
    return None if mark is None or name in unmarked else Freshness(mark)


def raise_mark_on_commit(alias: str, environment_id: str) -> None:
    """Raise the mark after the commit of a write, or after an autocommit. Two round trips. Never raises."""
    name = mark_name(alias, environment_id)
    if name is not None:
        raising = _MarkRaiser(alias, name)
        if not any(raising in hook for hook in connections[alias].run_on_commit):
            transaction.on_commit(raising, using=alias)


@dataclass(frozen=True, slots=True)
class _MarkRaiser:
    alias: str
    name: str

    def __call__(self) -> None:
        try:
            position = int(statements.value(self.alias, _WRITTEN))
            is_raised = redis_client.current().raise_to({self.name: position}, _MARK_SECONDS)
        except Error:  # the write is committed even if the connection was lost since
            is_raised = False
        if not is_raised:
            region(self.alias).unmarked[self.name] = time.monotonic()
