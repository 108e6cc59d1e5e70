"""Connections of loop requests, from a pool: `django.db.connections` finds them in the request."""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from operator import countOf
from typing import Any, Final, TypeVar

from django.conf import settings
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import pq

from platform_site.concurrency import loop_requests
from platform_site.concurrency.loop_requests import Gate, LoopRequest
from platform_site.http.errors import Unavailable
from platform_site.postgres import libpq_connection

Result = TypeVar("Result")

_IDLE: Final = pq.TransactionStatus.IDLE


class _Connections:
    """The storage of `django.db.connections`, by alias: of the current request on the loop, else of this thread."""

    def __init__(self) -> None:
        self.__dict__["_of_threads"] = threading.local()

    def _here(self) -> dict[str, Any]:
        request = loop_requests.current()
        found: dict[str, Any] = self.__dict__["_of_threads"].__dict__ if request is None else request.connections
        return found

    def __getattr__(self, alias: str) -> Any:
        try:
            return self._here()[alias]
        except KeyError:
            raise AttributeError(alias) from None

    def __setattr__(self, alias: str, connection: Any) -> None:
        self._here()[alias] = connection

    def __delattr__(self, alias: str) -> None:
        try:
            del self._here()[alias]
        except KeyError:
            raise AttributeError(alias) from None


def _is_open_and_idle(connection: Any) -> bool:
    readiness = libpq_connection.of(connection).readiness
    return readiness is not None and readiness.is_open


@dataclass(slots=True, eq=False)
class _Waiter:
    project_id: str
    gate: Gate = field(default_factory=Gate)
    given: BaseDatabaseWrapper | None = None


class _Pool:
    """One project can hold three quarters of the connections, so that its slow statements do not keep all others out. A
    free connection goes to the project that holds the fewest."""

    def __init__(self, create: Callable[[], BaseDatabaseWrapper], capacity: int, timeout: float) -> None:
        self._create, self._capacity, self._timeout = create, capacity, timeout
        self._per_project = max(1, capacity * 3 // 4)
        self._idle: list[BaseDatabaseWrapper] = []
        self._made = 0
        self._waiting: deque[_Waiter] = deque()
        self._borrowed: dict[BaseDatabaseWrapper, str] = {}
        """By requests of a known project."""

    def borrow(self, project_id: str) -> BaseDatabaseWrapper:
        """A connection of the pool, which may not be open yet. `project_id` is "" if unknown. Raises Unavailable."""
        is_exhausted = not self._idle and self._made >= self._capacity
        if is_exhausted or countOf(self._borrowed.values(), project_id) >= self._per_project:
            wrapper = self._await_one(project_id)
        else:
            if self._idle:
                wrapper = self._idle.pop()
            else:
                self._made += 1
                wrapper = self._create()
                wrapper.inc_thread_sharing()  # opened in a helper thread
            if project_id:
                self._borrowed[wrapper] = project_id
        if wrapper.connection is not None and not _is_open_and_idle(wrapper.connection) and not wrapper.is_usable():
            wrapper.close()
        wrapper.health_check_done = True  # type: ignore[attr-defined]
        return wrapper

    def _await_one(self, project_id: str) -> BaseDatabaseWrapper:
        waiter = _Waiter(project_id)
        self._waiting.append(waiter)
        waiter.gate.wait(self._timeout)
        if waiter.given is None:
            self._waiting.remove(waiter)
            raise Unavailable
        return waiter.given

    def give_back(self, wrapper: BaseDatabaseWrapper) -> None:
        """Return a connection to the pool. One in an uncertain state is closed first."""
        connection: Any = wrapper.connection
        if connection is not None and (
            wrapper.errors_occurred
            or wrapper.in_atomic_block
            or connection.pgconn.transaction_status != _IDLE
            or (wrapper.close_at is not None and time.monotonic() >= wrapper.close_at)
        ):
            wrapper.in_atomic_block = False
            wrapper.close()
        self._borrowed.pop(wrapper, None)
        waiter = self._next_waiter() if self._waiting else None
        if waiter is None:
            self._idle.append(wrapper)
            return
        self._waiting.remove(waiter)
        if waiter.project_id:
            self._borrowed[wrapper] = waiter.project_id
        waiter.given = wrapper
        waiter.gate.open()

    def _next_waiter(self) -> _Waiter | None:
        """Of the project that holds the fewest, the one that waits longest."""
        held = Counter(self._borrowed.values())
        chosen = min(self._waiting, key=lambda waiter: held[waiter.project_id])
        return chosen if held[chosen.project_id] < self._per_project else None

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


_create: Final = connections.create_connection
_pools: Final[dict[str, _Pool]] = {}


def install() -> None:
    """Call before any connection is opened."""
    connections._connections = _Connections()  # type: ignore[attr-defined]
    connections.create_connection = _create_connection  # type: ignore[method-assign]


def _create_connection(alias: str) -> Any:
    return create_or_borrow(alias, lambda: _create(alias))


def connection(alias: str, project_id: str) -> Any:
    """`connections[alias]` for a project, without the exceptions by which Django learns that a request has none yet."""
    request = loop_requests.current()
    if request is None:
        return connections[alias]
    request.project_id = project_id
    found = request.connections.get(alias)
    if found is None:
        found = request.connections[alias] = _create_connection(alias)
    return found


def create_or_borrow(alias: str, create: Callable[[], BaseDatabaseWrapper]) -> BaseDatabaseWrapper:
    """In a thread a new connection, made by `create`; for a request on the loop one of the pool. Raises Unavailable."""
    request = loop_requests.current()
    if request is None:
        return create()
    pool = _pools.get(alias)
    if pool is None:
        pool = _pools[alias] = _Pool(create, settings.WEB_THREADS, settings.WEB_QUEUE_TIMEOUT)
    return pool.borrow(request.project_id)


def release() -> None:
    """Call before a wait without the database. A thread keeps its connections; they are checked before their next
    use."""
    request = loop_requests.current()
    if request is not None:
        give_back(request)
    else:
        for opened in connections.all(initialized_only=True):
            if not opened.in_atomic_block:
                opened.close_if_unusable_or_obsolete()


def in_thread(call: Callable[[], Result]) -> Result:
    """Run `call()`, which uses the ORM: directly in a thread; for a request on the loop in a helper thread."""
    return call() if loop_requests.current() is None else loop_requests.in_thread(partial(call_and_release, call))


def call_and_release(call: Callable[[], Result]) -> Result:
    try:
        return call()
    finally:
        release()


def give_back(request: LoopRequest) -> None:
    while request.connections:
        alias, wrapper = request.connections.popitem()
        _pools[alias].give_back(wrapper)


def close_all() -> None:
    for pool in _pools.values():
        pool.close()
