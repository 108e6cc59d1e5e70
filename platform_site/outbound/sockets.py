"""Sockets with one deadline for all they do, and one number of bytes they may bring. A timeout of the standard kind
begins anew with each read, so whoever sends a byte a second is never late. Here each read gets what is left of the
whole. The number of bytes bounds what a peer can make us read where HTTP does not: endless interim responses, headers,
chunk extensions, trailers."""

import socket
import ssl
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    _Socket = socket.socket
else:
    _Socket = object


class ResponseTooLarge(OSError):
    """The peer sent more than it was to send."""


class _Bounded(_Socket):
    """A mixin of plain and TLS sockets; `until` sets the limits of each request."""

    deadline = float("inf")
    allowance = 0
    has_received = False
    """Whether anything came since the last `until`."""
    has_ended = False
    """Whether more was looked for and the peer had closed."""

    def until(self, deadline: float, allowance: int) -> None:
        """From now on: over at `deadline` (`time.monotonic()`), and at most `allowance` bytes in."""
        self.deadline, self.allowance, self.has_received, self.has_ended = deadline, allowance, False, False

    def left(self) -> float:
        """Seconds until the deadline. Raises TimeoutError if it has passed."""
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
    """Made by an SSLContext whose `sslsocket_class` it is."""


Bounded = BoundedSocket | BoundedTLSSocket


def has_something(connection: socket.socket) -> bool:
    """Whether an idle connection was closed by the peer or has unexpected bytes, so that it cannot be reused."""
    connection.settimeout(0)
    try:
        if isinstance(connection, ssl.SSLSocket):
            # TLS 1.3 servers send session tickets of their own accord: those are read here and are no data.
            connection.recv(1)
        else:
            connection.recv(1, socket.MSG_PEEK)
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    except OSError:
        return True
    return True
