"""Connections to Redis, made by redis-py and used by hiredis under a deadline; and those of threads, in a pool."""

import socket
import struct
import threading
import time
from queue import Empty, SimpleQueue
from typing import Any, Final

import hiredis
import redis
from redis.connection import parse_url

_CONNECT_SECONDS: Final = 2.0
_MAX_CONNECTIONS: Final = 8
_POLL_SECONDS: Final = 0.001
UNUSABLE: Final = ("OOM ", "READONLY ", "MISCONF ", "NOREPLICAS ", "MASTERDOWN ", "LOADING ")
"""Prefixes of errors that do not depend on the command: Redis cannot be used."""


class Connection:
    def __init__(self, url: str) -> None:
        options: dict[str, Any] = dict(parse_url(url))  # type: ignore[no-untyped-call]
        kind = options.pop("connection_class", redis.Connection)
        self._connection = kind(
            **options,
            socket_timeout=_CONNECT_SECONDS,
            socket_connect_timeout=_CONNECT_SECONDS,
            protocol=2,  # without push messages
            driver_info=None,  # saves two round trips when connecting
        )
        self._connection.connect()
        self._socket: socket.socket = self._connection._sock  # connected and authenticated
        self._reader = hiredis.Reader()
        # With Python's timeouts each call makes three system calls, with the kernel's one. TLS needs Python's.
        self._kernel_waits = type(self._socket) is socket.socket
        self._timeout = 0.0
        if self._kernel_waits:
            self._socket.settimeout(None)
        self.is_new = True

    def exchange(self, packed: bytes, expected: int, deadline: float) -> list[Any]:
        """Read `expected` replies (or ReplyErrors). Raises OSError, or ReadOnlyError: close the connection then."""
        sock, reader = self._socket, self._reader
        replies: list[Any] = []
        if not expected:
            return replies
        try:
            self._wait_until(deadline)
            sock.sendall(packed)
            while True:
                self._wait_until(deadline)
                read = sock.recv(65536)
                if not read:
                    raise ConnectionResetError("Redis closed the connection")
                reader.feed(read)
                while (reply := reader.gets()) is not False:
                    if isinstance(reply, hiredis.ReplyError) and str(reply).startswith(UNUSABLE):
                        raise redis.ReadOnlyError(str(reply))
                    replies.append(reply)
                    if len(replies) == expected:
                        return replies
        except BlockingIOError:  # the kernel's timeout
            raise TimeoutError("Redis is late") from None

    def _wait_until(self, deadline: float) -> None:
        """Not for less than 10 ms: setting the socket's timeout costs a system call."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("Redis is late")
        if abs(left - self._timeout) < 0.01:
            return
        self._timeout = left
        if self._kernel_waits:
            limit = struct.pack("ll", int(left), max(1, int(left % 1 * 1_000_000)))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        else:
            self._socket.settimeout(left)

    def detach(self) -> socket.socket:
        """The socket, open as long as this object. Not over TLS."""
        self._socket.setblocking(False)
        return self._socket

    def close(self) -> None:
        self._connection.disconnect()


class ConnectionPool:
    """Connections are opened in other threads, since resolvers and handshakes ignore deadlines."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._idle: SimpleQueue[Connection | tuple[Exception, float]] = SimpleQueue()
        """And failures to connect, with their times."""
        self._count = 0
        """Idle, in use or connecting."""
        self._lock = threading.Lock()

    def take(self, deadline: float) -> Connection:
        """An idle connection, or the next free or new one. Raises connection errors, or TimeoutError."""
        began: float | None = None
        while True:
            try:
                found = self._idle.get_nowait()
            except Empty:
                now = time.monotonic()
                if began is None:
                    began = now
                    self._open_another()
                elif now >= deadline:
                    raise TimeoutError("connecting to Redis took too long") from None
                else:
                    # Not `get` with a timeout: when several threads wait, that of CPython 3.11 can wait forever.
                    time.sleep(_POLL_SECONDS)
                continue
            if isinstance(found, Connection):
                return found
            error, failed_at = found
            if began is not None and failed_at >= began:  # an older one was for a thread that no longer waits
                raise error

    def give_back(self, connection: Connection) -> None:
        connection.is_new = False
        self._idle.put(connection)

    def close(self, connection: Connection) -> None:
        connection.close()
        self._decrement_count()

    def close_idle(self) -> None:
        while True:
            try:
                found = self._idle.get_nowait()
            except Empty:
                return
            if isinstance(found, Connection):
                self.close(found)

    def _open_another(self) -> None:
        with self._lock:
            if self._count >= _MAX_CONNECTIONS:
                return
            self._count += 1
        try:
            threading.Thread(target=self._open, name="store-connect", daemon=True).start()
        except RuntimeError as error:  # the system has no more threads
            self._decrement_count()
            raise ConnectionError("no thread can connect to Redis") from error

    def _open(self) -> None:
        try:
            self._idle.put(Connection(self._url))
        except Exception as error:  # passed to the waiting thread
            self._decrement_count()
            self._idle.put((error, time.monotonic()))

    def _decrement_count(self) -> None:
        with self._lock:
            self._count -= 1
