"""Redis client: one pipelined round trip per request, with a time budget, and optional.

Redis only has data that may be lost: cached callers and rate limit counters. A request collects its commands in a
`RoundTrip` and runs it once:

    trip = store.trip()
    record = trip.get("who:ses_…")
    count = trip.count("rl:…", ttl=65)
    if trip.run(): …                     # record.value: bytes or None; count.value: int

If Redis is unavailable, `run` returns False, every `value` is None, and the caller continues without (records come from
PostgreSQL, limits are not enforced). One round trip waits at most `settings.REDIS_TIMEOUT` (0.2 s), including
connecting. The first failure opens a circuit breaker for a second, in which this process only retries marks; then one
round trip tries again while the others still skip Redis. A Redis that serves reads but no writes (full, a replica)
counts as unavailable, because nothing can be marked there.

Cached records stay current because `fill` only writes absent keys (NX) and `mark` overwrites. A change marks the record
*inside* its transaction, before the commit: from then on no reader of the old state can store it, and a process that
dies between mark and commit leaves no stale record. A mark that could not be written is written by a background thread
as soon as Redis is back; until then another process could use an old record, for at most its lifetime (`RECORD_TTL`).

redis-py makes the connections (URL, TLS, authentication); the round trip itself uses hiredis: 22 µs of CPU, where
redis-py's pipeline takes 60.
"""

import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from queue import Empty, SimpleQueue
from typing import Any, Final

import hiredis
import redis
from django.conf import settings
from django.core.signals import setting_changed
from redis.connection import parse_url

from platform_site.observability.metrics import BREAKER_OPEN, BREAKER_TRIPS

logger = logging.getLogger(__name__)

RECORD_TTL: Final = 60
"""Seconds that a filled record lives, which bounds every failure to mark it."""
MARKER_TTL: Final = 120
"""Seconds that a marker stays: longer than any reader that read the old state could still be on its way to `fill`."""
BREAKER_SECONDS: Final = 1.0
_CONNECT_SECONDS: Final = 2.0
_MAX_CONNECTIONS: Final = 8
"""One carries about 15,000 trips a second; more would only be more to make when many threads begin at once."""
_RETRY_SECONDS: Final = 0.25
_MOST_PENDING_MARKS: Final = 100_000
_HIGHEST: Final = "highest"
_TAKES_NO_WRITES: Final = ("OOM ", "READONLY ", "MISCONF ", "NOREPLICAS ", "MASTERDOWN ", "LOADING ")
"""How the refusals begin that are no matter of the command or its key."""

Command = tuple[str | bytes | int, ...]
_pack: Final[Callable[[Command], bytes]] = hiredis.pack_command  # type: ignore[assignment]  # its stub: one word only


class Fetched:
    """The result of a `get`: None before the run, for an absent key, and while Redis is unavailable."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: bytes | None = None


class Counted:
    """The result of a `count`: the count including this one (1 for the first), or None while Redis is unavailable."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: int | None = None


class Unavailable(Exception):
    """Redis did not do it: refused, silent for too long, takes no writes, or the breaker is open."""


@dataclass(frozen=True, slots=True)
class _NoConnection:
    """What came of connecting instead of a line."""

    error: Exception
    at: float


class _Connection:
    """One connection on which a trip goes and comes back."""

    def __init__(self, url: str) -> None:
        options: dict[str, Any] = dict(parse_url(url))  # type: ignore[no-untyped-call]
        kind = options.pop("connection_class", redis.Connection)
        self._connection = kind(
            **options,
            socket_timeout=_CONNECT_SECONDS,
            socket_connect_timeout=_CONNECT_SECONDS,
            protocol=2,  # nothing comes that was not asked for
            driver_info=None,  # saves two round trips when connecting
        )
        self._connection.connect()
        self._socket: socket.socket = self._connection._sock  # connected and signed in; from here on it is ours
        self._reader = hiredis.Reader()
        # Python's timeouts make three system calls of each, the kernel's one. TLS knows Python's alone.
        self._kernel_waits = type(self._socket) is socket.socket
        self._patience = 0.0
        """Seconds that a call on the socket may take, as it is set now."""
        if self._kernel_waits:
            self._socket.settimeout(None)
        self.is_new = True
        """Whether nothing was asked on it yet."""

    def exchange(self, packed: bytes, expected: int, deadline: float) -> list[Any]:
        """Send, and read `expected` replies (errors among them as hiredis.ReplyError). Raises OSError, or ReadOnlyError
        where no writes are taken; then the line is of no more use."""
        line, reader = self._socket, self._reader
        replies: list[Any] = []
        try:
            self._wait_until(deadline)
            line.sendall(packed)
            while True:
                self._wait_until(deadline)
                read = line.recv(65536)
                if not read:
                    raise ConnectionResetError("Redis closed the connection")
                reader.feed(read)
                while (reply := reader.gets()) is not False:
                    if isinstance(reply, hiredis.ReplyError) and str(reply).startswith(_TAKES_NO_WRITES):
                        raise redis.ReadOnlyError(str(reply))
                    replies.append(reply)
                    if len(replies) == expected:
                        return replies
        except BlockingIOError:  # how the kernel says that it waited long enough
            raise TimeoutError("Redis is late") from None

    def _wait_until(self, deadline: float) -> None:
        """Set the timeout of the next socket call, unless the last value differs by less than a twentieth of the usual
        budget, since a round trip is two calls and setting it would be two more."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("Redis is late")
        if abs(left - self._patience) < 0.01:
            return
        self._patience = left
        if self._kernel_waits:
            limit = struct.pack("ll", int(left), max(1, int(left % 1 * 1_000_000)))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        else:
            self._socket.settimeout(left)

    def close(self) -> None:
        self._connection.disconnect()


class Store:
    """One Redis as this process sees it: idle connections, the breaker, marks that wait. Threads may share it."""

    def __init__(self, url: str, budget: float) -> None:
        self._url = url
        self._budget = budget
        self._forget()

    def _forget(self) -> None:
        """Begin anew; after a fork, too: the parent's connections are not ours, nor do its threads run here."""
        self._idle: SimpleQueue[_Connection | _NoConnection] = SimpleQueue()
        self._lines = 0
        """How many there are: idle, in use or being made."""
        self._lock = threading.Lock()
        self._open_until = 0.0
        """Until then the breaker is open; 0 while Redis is believed to be there."""
        self._pending: dict[str, tuple[float, bytes]] = {}
        """Commands of marks that could not be written, by key, and when they stop to matter."""
        self._writer: threading.Thread | None = None
        self._in_vain_until = 0.0

    @property
    def is_away(self) -> bool:
        """Whether the breaker is open: the last attempt failed and none has succeeded since."""
        return self._open_until != 0.0

    def trip(self) -> "RoundTrip":
        """An empty round trip."""
        return RoundTrip(self)

    def fill(self, key: str, value: bytes, ttl: int = RECORD_TTL) -> None:
        """Store `value` for `ttl` seconds unless something is there already (a record, or a marker). Never raises."""
        self._try(_pack(("SET", key, value, "EX", ttl, "NX")), 1)

    def put(self, values: Mapping[str, bytes], ttl: int) -> bool:
        """Store each value for `ttl` seconds, whatever is there. False if Redis did not do it. Never raises."""
        return not values or self._try(_puts(values, ttl), len(values))

    def mark(self, marks: Mapping[str, bytes], ttl: int = MARKER_TTL) -> bool:
        """Overwrite each key with its mark for `ttl` seconds, inside the transaction that makes the records outdated.

        Returns False if Redis is unavailable: the marks are then written in the background until RECORD_TTL has passed,
        when the records they should have covered have expired. A later mark of the same key replaces a waiting one.
        Never raises.
        """
        # Breaker or not: one trip of this process that came late says nothing of the others, who believe the records.
        if not marks or self._try(_puts(marks, ttl), len(marks), although_away=True):
            return True
        until = time.monotonic() + RECORD_TTL
        with self._lock:
            for key, mark in marks.items():
                if len(self._pending) < _MOST_PENDING_MARKS or key in self._pending:
                    self._pending[key] = (until, _pack(("SET", key, mark, "EX", ttl)))
            if self._writer is None:
                self._writer = threading.Thread(target=self._write_pending, name="store-marks", daemon=True)
                self._writer.start()
        return False

    def raise_to(self, values: Mapping[str, int], ttl: int) -> bool:
        """Store each number for `ttl` seconds unless a higher one is there. False if Redis did not do it. Never raises.

        Numbers up to 2**53, for `Trip.highest`: Redis compares nothing but the scores of sorted sets.
        """
        commands: list[bytes] = []
        for key, value in values.items():
            commands += [_pack(("ZADD", key, "GT", value, _HIGHEST)), _pack(("EXPIRE", key, ttl))]
        return self._try(b"".join(commands), len(commands))

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
            if self._try(b"".join(command for _, command in due.values()), len(due), although_away=True):
                with self._lock:
                    # Marks that came meanwhile stay; one of the same key is a newer entry.
                    self._pending = {key: entry for key, entry in self._pending.items() if due.get(key) is not entry}

    def _try(self, packed: bytes, expected: int, *, although_away: bool = False) -> bool:
        """`although_away`: the breaker does not count, but that the last such try failed a moment ago."""
        although_away = although_away and time.monotonic() >= self._in_vain_until
        try:
            replies = (self._exchange if although_away else self.exchange)(packed, expected)
        except Unavailable:
            if although_away:
                self._in_vain_until = time.monotonic() + BREAKER_SECONDS
            return False
        return not any(isinstance(reply, hiredis.ReplyError) for reply in replies)

    def exchange(self, packed: bytes, expected: int) -> list[Any]:
        """Send packed commands, return the replies within the budget. Raises Away, at once if the breaker is open."""
        if self._open_until and not self._may_probe():
            raise Unavailable("the breaker is open")
        return self._exchange(packed, expected)

    def _may_probe(self) -> bool:
        """After the pause one thread tries, and the others wait for what it finds out."""
        now = time.monotonic()
        with self._lock:
            if now < self._open_until:
                return False
            self._open_until = now + BREAKER_SECONDS
            return True

    def _exchange(self, packed: bytes, expected: int) -> list[Any]:
        deadline = time.monotonic() + self._budget
        line: _Connection | None = None
        try:
            line = self._line(deadline)
            try:
                replies = line.exchange(packed, expected, deadline)
            except TimeoutError:
                raise
            except OSError:
                # Cut while it lay idle: Redis was restarted, which cuts all lines and is no failure. Commands that had
                # arrived are then run twice, which costs a counter one too many and nothing else.
                if line.is_new:
                    raise
                self._drop(line)
                self._drop_idle()
                line = None
                line = self._line(deadline)
                replies = line.exchange(packed, expected, deadline)
        except (OSError, redis.RedisError, hiredis.HiredisError) as error:
            if line is not None:
                self._drop(line)
            self._open(error)
            raise Unavailable(str(error)) from error
        line.is_new = False
        self._idle.put(line)
        if self._open_until:
            self._close_breaker()
        return replies

    def _line(self, deadline: float) -> _Connection:
        """An idle line; if there is none, the next one that another thread puts back or that is made meanwhile.

        Raises what connecting raised, or TimeoutError.
        """
        try:
            found = self._idle.get_nowait()
            if isinstance(found, _Connection):
                return found
        except Empty:
            pass
        began = time.monotonic()
        self._make_one_more()
        while True:
            try:
                found = self._idle.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                raise TimeoutError("connecting to Redis took too long") from None
            if isinstance(found, _Connection):
                return found
            if found.at >= began:  # else it was meant for one that waits no longer
                raise found.error

    def _make_one_more(self) -> None:
        """Connect in another thread, since a resolver or a handshake does not respect our deadline."""
        with self._lock:
            if self._lines >= _MAX_CONNECTIONS:
                return
            self._lines += 1
        idle = self._idle

        def connect() -> None:
            try:
                idle.put(_Connection(self._url))
            except Exception as error:  # passed to the waiting thread
                self._uncount()
                idle.put(_NoConnection(error, time.monotonic()))

        threading.Thread(target=connect, name="store-connect", daemon=True).start()

    def _drop(self, line: _Connection) -> None:
        line.close()
        self._uncount()

    def _uncount(self) -> None:
        with self._lock:
            self._lines -= 1

    def _drop_idle(self) -> None:
        while True:
            try:
                found = self._idle.get_nowait()
            except Empty:
                return
            if isinstance(found, _Connection):
                self._drop(found)

    def _open(self, error: Exception) -> None:
        with self._lock:
            was_open = self._open_until != 0.0
            self._open_until = time.monotonic() + BREAKER_SECONDS
            if was_open:
                return
        self._drop_idle()
        BREAKER_TRIPS.inc()
        BREAKER_OPEN.set(1)
        logger.warning("Redis is unavailable: records come from PostgreSQL, rate limits are open (%s)", error)

    def _close_breaker(self) -> None:
        with self._lock:
            if not self._open_until:
                return
            self._open_until = 0.0
        BREAKER_OPEN.set(0)
        logger.warning("Redis is available again")


def _puts(values: Mapping[str, bytes], ttl: int) -> bytes:
    return b"".join([_pack(("SET", key, value, "EX", ttl)) for key, value in values.items()])


@lru_cache(maxsize=4096)
def _get(key: str) -> bytes:
    return _pack(("GET", key))


@lru_cache(maxsize=4096)
def _count(key: str, ttl: int, amount: int = 1) -> bytes:
    return _pack(("INCRBY", key, amount)) + _pack(("EXPIRE", key, ttl))


class RoundTrip:
    """The questions of one request to Redis, asked together. Not for several threads; runs once."""

    __slots__ = ("_packed", "_replies", "_store")

    def __init__(self, store: Store) -> None:
        self._store = store
        self._packed: list[bytes] = []
        self._replies: list[Fetched | Counted | None] = []

    def get(self, key: str) -> Fetched:
        """Ask for the value of `key`."""
        self._packed.append(_get(key))
        fetched = Fetched()
        self._replies.append(fetched)
        return fetched

    def highest(self, key: str) -> Fetched:
        """Ask for the number that `Store.raise_to` keeps under `key`, as text."""
        self._packed.append(_pack(("ZSCORE", key, _HIGHEST)))
        fetched = Fetched()
        self._replies.append(fetched)
        return fetched

    def count(self, key: str, ttl: int, into: Counted | None = None, amount: int = 1) -> Counted:
        """Add `amount` to the counter `key`, which expires `ttl` seconds after the last count. Returns `into`, or a new
        one."""
        self._packed.append(_count(key, ttl, amount))
        counted = into or Counted()
        self._replies.append(counted)
        self._replies.append(None)
        return counted

    def fill(self, key: str, value: bytes, ttl: int = RECORD_TTL) -> None:
        """As `Store.fill`, on this trip."""
        self._packed.append(_pack(("SET", key, value, "EX", ttl, "NX")))
        self._replies.append(None)

    def run(self) -> bool:
        """Send the commands. Returns False if Redis is unavailable; every value is None then. Never raises."""
        waiting = self._replies
        if not waiting:
            return True
        try:
            replies = self._store.exchange(b"".join(self._packed), len(waiting))
        except Unavailable:
            return False
        for reply, asked in zip(replies, waiting, strict=True):
            if asked is not None:
                if isinstance(reply, hiredis.ReplyError):  # a key of another type
                    logger.warning("Redis refused a command: %s", reply)
                else:
                    asked.value = reply
        return True


_stores: Final[dict[tuple[str, float], Store]] = {}
_current: Store | None = None
_making = threading.Lock()


def current() -> Store:
    """The store of `settings.REDIS_URL`, made on first use."""
    return _current or _find_current()


def _find_current() -> Store:
    global _current
    address = (settings.REDIS_URL, settings.REDIS_TIMEOUT)
    with _making:
        _current = _stores.get(address) or _stores.setdefault(address, Store(*address))
    return _current


def _retry_soon(*, setting: str, **_: Any) -> None:
    global _current
    if setting in ("REDIS_URL", "REDIS_TIMEOUT"):
        _current = None


setting_changed.connect(_retry_soon)


def _after_fork() -> None:
    global _making
    _making = threading.Lock()
    for one in _stores.values():
        one._forget()


os.register_at_fork(after_in_child=_after_fork)


def round_trip() -> RoundTrip:
    """An empty round trip to the platform's Redis."""
    return RoundTrip(current())


def fill(key: str, value: bytes, ttl: int = RECORD_TTL) -> None:
    """`Store.fill` on the platform's Redis."""
    current().fill(key, value, ttl)


def put(values: Mapping[str, bytes], ttl: int) -> bool:
    """`Store.put` on the platform's Redis."""
    return current().put(values, ttl)


def mark(marks: Mapping[str, bytes], ttl: int = MARKER_TTL) -> bool:
    """`Store.mark` on the platform's Redis."""
    return current().mark(marks, ttl)
