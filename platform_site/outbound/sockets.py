"""Sockets with one deadline and byte limit per request: standard timeouts restart with each read, and HTTP does not
bound interim responses, headers, chunk extensions and trailers."""

import socket
import ssl
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    _Socket = socket.socket
else:
    _Socket = object


class ResponseTooLarge(OSError):
    pass


class _Bounded(_Socket):
    deadline = float("inf")
    allowance = 0
    has_received = False
    has_ended = False

    def until(self, deadline: float, allowance: int) -> None:
        self.deadline, self.allowance, self.has_received, self.has_ended = deadline, allowance, False, False

    def left(self) -> float:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline has passed")
        return left

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        self.settimeout(self.left())
        received: int = super().recv_into(*args, **kwargs)
        self.allowance -= received
        self.has_received = self.has_received or received > 0
        self.has_ended = received == 0
        if self.allowance < 0:
            raise ResponseTooLarge("the peer sends without end")
        return received

    def sendall(self, *args: Any, **kwargs: Any) -> None:
        self.settimeout(self.left())
        super().sendall(*args, **kwargs)


class BoundedSocket(_Bounded, socket.socket):
    pass


class BoundedTLSSocket(_Bounded, ssl.SSLSocket):
    pass


Bounded = BoundedSocket | BoundedTLSSocket


def is_stale(connection: socket.socket) -> bool:
    """Whether an idle connection is closed or has unexpected bytes."""
    connection.settimeout(0)
    try:
        if isinstance(connection, ssl.SSLSocket):
            # TLS 1.3 servers send session tickets unasked: this reads them, and they are not data.
            connection.recv(1)
        else:
            connection.recv(1, socket.MSG_PEEK)
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    except OSError:
        return True
    return True
