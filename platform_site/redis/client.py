"""Redis client: one pipelined `RoundTrip` per request, within `settings.REDIS_TIMEOUT`. Redis only has cached callers
and counters: if it is unavailable (or read-only), `run` returns False and the caller continues. Records stay current
because `fill` only writes absent keys and `mark` overwrites *inside* the changing transaction; an unwritten mark is
written later, so a stale record lives for at most RECORD_TTL. hiredis takes 22 µs of CPU, redis-py's pipeline 60."""

import asyncio
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import hiredis
import redis
from django.conf import settings

from platform_site.concurrency import loop_requests
from platform_site.redis import circuit_breaker
from platform_site.redis.connection import Connection, ConnectionPool
from platform_site.redis.loop_connection import LoopConnection
from platform_site.redis.round_trip import HIGHEST, RECORD_TTL, RoundTrip, Unavailable, pack

logger = logging.getLogger(__name__)
MARKER_TTL: Final = 120
"""Longer than a reader of the old state needs to `fill`."""
_RETRY_SECONDS: Final = 0.25
_MAX_PENDING_MARKS: Final = 100_000


class Store:
    def __init__(self, url: str, budget: float) -> None:
        self._url = url
        self._budget = budget
        self._connections = ConnectionPool(self._url)
        self._lock = threading.Lock()
        self.breaker = circuit_breaker.CircuitBreaker()
        self._pending: dict[str, tuple[float, bytes]] = {}
        """Unwritten marks by key, with their expiry."""
        self._writer: threading.Thread | None = None
        self._marks_failed_slowly_at = -math.inf
        self.lost_at = 0.0
        """When a connection was last found lost (monotonic): Redis may have forgotten what was marked before."""
        self._loop_connection: LoopConnection | None = None
        self._loop_connecting: asyncio.Task[None] | None = None

    def trip(self) -> RoundTrip:
        return RoundTrip(self.exchange)

    def fill(self, key: str, value: bytes) -> None:
        trip = self.trip()
        trip.fill(key, value)
        trip.run()

    def put(self, values: Mapping[str, bytes], ttl: int) -> bool:
        """False on failure. Never raises."""
        return not values or _try(self.exchange, _pack_sets(values, ttl), len(values))

    def mark(self, marks: Mapping[str, bytes]) -> bool:
        """Overwrite keys with marks for MARKER_TTL, inside the transaction that makes the records outdated. False if
        Redis is unavailable: then written in the background until RECORD_TTL has passed. Never raises."""
        if not marks or self._write_marks(_pack_sets(marks, MARKER_TTL), len(marks)):
            return True
        until = time.monotonic() + RECORD_TTL
        with self._lock:
            for key, mark in marks.items():
                if len(self._pending) < _MAX_PENDING_MARKS or key in self._pending:
                    self._pending[key] = (until, pack(("SET", key, mark, "EX", MARKER_TTL)))
            if self._writer is None:
                self._writer = threading.Thread(target=self._write_pending, name="store-marks", daemon=True)
                self._writer.start()
        return False

    def raise_to(self, values: Mapping[str, int], ttl: int) -> bool:
        """Store each number, up to 2**53, for `ttl` seconds unless a higher one is there (in sorted sets), for
        `RoundTrip.highest`. False on failure. Never raises."""
        commands: list[bytes] = []
        for key, value in values.items():
            commands += [pack(("ZADD", key, "GT", value, HIGHEST)), pack(("EXPIRE", key, ttl))]
        return _try(self.exchange, b"".join(commands), len(commands))

    def _write_marks(self, packed: bytes, expected: int) -> bool:
        """Even with the circuit breaker open, since other processes still read the records. Not for a second after a
        slow failure."""
        began = time.monotonic()
        if began < self._marks_failed_slowly_at + circuit_breaker.SECONDS:
            return _try(self.exchange, packed, expected)
        is_written = _try(self._exchange, packed, expected)
        now = time.monotonic()
        if not is_written and now - began >= self._budget / 2:
            self._marks_failed_slowly_at = now
        return is_written

    def _write_pending(self) -> None:
        while True:
            time.sleep(_RETRY_SECONDS)
            now = time.monotonic()
            with self._lock:
                due = {key: entry for key, entry in self._pending.items() if entry[0] > now}
                self._pending = dict(due)
                if not due:
                    self._writer = None
                    return
            if self._write_marks(b"".join(command for _, command in due.values()), len(due)):
                with self._lock:
                    # Keep marks that were added meanwhile, also newer ones of the same key.
                    self._pending = {key: entry for key, entry in self._pending.items() if due.get(key) is not entry}

    def exchange(self, packed: bytes, expected: int, fills: Sequence[bytes] = ()) -> list[Any]:
        """Send packed commands and return the replies within the budget. `fills` are sent before, without replies, but
        not over a new connection after a lost one. Raises Unavailable."""
        if self.breaker.is_open and not self.breaker.may_probe():
            raise Unavailable("the breaker is open")
        return self._exchange(packed, expected, fills)

    def _exchange(self, packed: bytes, expected: int, fills: Sequence[bytes] = ()) -> list[Any]:
        request = loop_requests.current()
        if request is None:
            return self._exchange_in_thread(packed, expected, fills)
        request.has_used_redis = True
        shared = self._loop_connection
        if shared is not None and not shared.is_closed:
            try:
                replies = shared.exchange(
                    request, b"".join([*fills, packed]), len(fills) + expected, time.monotonic() + self._budget
                )
            except (OSError, redis.RedisError, hiredis.HiredisError) as error:
                was_cut = isinstance(error, OSError) and not isinstance(error, TimeoutError)
                if shared.is_new or not was_cut:  # else Redis was restarted, as in a thread
                    raise self._failed(error) from error
            else:
                if self.breaker.is_open:
                    self.breaker.close()
                return replies[len(fills) :]
        if shared is not None:
            self.lost_at, fills = time.monotonic(), ()
        # Connect for all loop requests. Until then, and always with TLS, they use threads.
        if (self._loop_connecting is None or self._loop_connecting.done()) and not self._url.startswith("rediss:"):
            self._loop_connecting = request.loop.create_task(self._connect_on_loop(request.loop))
        return request.in_thread(lambda: self._exchange_in_thread(packed, expected, fills))

    async def _connect_on_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            connection = await loop.run_in_executor(None, Connection, self._url)
            _, self._loop_connection = await loop.create_connection(
                lambda: LoopConnection(loop, connection), sock=connection.detach()
            )
        except (OSError, redis.RedisError):
            logger.debug("no connection to Redis for the event loop", exc_info=True)  # the circuit breaker logs it

    def _exchange_in_thread(self, packed: bytes, expected: int, fills: Sequence[bytes] = ()) -> list[Any]:
        deadline = time.monotonic() + self._budget
        connection: Connection | None = None
        try:
            connection = self._connections.take(deadline)
            try:
                replies = connection.exchange(b"".join([*fills, packed]), len(fills) + expected, deadline)[len(fills) :]
            except OSError as error:
                if connection.is_new or isinstance(error, TimeoutError):
                    raise
                # Redis was restarted, which is no failure. At worst, a command is run twice: a counter is too high.
                self._connections.close(connection)
                connection = None
                self._drop_idle()
                connection = self._connections.take(deadline)
                replies = connection.exchange(packed, expected, deadline)
        except (OSError, redis.RedisError, hiredis.HiredisError) as error:
            if connection is not None:
                self._connections.close(connection)
            raise self._failed(error) from error
        self._connections.give_back(connection)
        if self.breaker.is_open:
            self.breaker.close()
        return replies

    def _failed(self, error: Exception) -> Unavailable:
        if self.breaker.open(error):
            self._drop_idle()
        return Unavailable(str(error))

    def _drop_idle(self) -> None:
        self.lost_at = time.monotonic()
        self._connections.close_idle()


def _try(exchange: Callable[[bytes, int], list[Any]], packed: bytes, expected: int) -> bool:
    try:
        replies = exchange(packed, expected)
    except Unavailable:
        return False
    return not any(isinstance(reply, hiredis.ReplyError) for reply in replies)


def _pack_sets(values: Mapping[str, bytes], ttl: int) -> bytes:
    return b"".join([pack(("SET", key, value, "EX", ttl)) for key, value in values.items()])


_stores: Final[dict[tuple[str, float], Store]] = {}


def current() -> Store:
    key = (settings.REDIS_URL, settings.REDIS_TIMEOUT)
    return _stores.get(key) or _stores.setdefault(key, Store(*key))


os.register_at_fork(after_in_child=_stores.clear)


def round_trip() -> RoundTrip:
    return RoundTrip(current().exchange)
