"""One connection to Redis: made by redis-py, used by hiredis under a deadline."""

import socket
import struct
import time
from typing import Any, Final

import hiredis
import redis
from redis.connection import parse_url

_CONNECT_SECONDS: Final = 2.0
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
        """Set the socket's timeout, unless it changes by less than 10 ms: it costs a system call."""
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
