"""The HTTP client of webhooks, functions (`ctx.fetch`) and sign-in: checks the URL, connects to the checked IP, and
reads a bounded response. Thread-safe; reuses connections."""

import contextlib
import http.client
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

import certifi
from django.conf import settings

from platform_site.outbound import errors, resolver
from platform_site.outbound.messages import Response, read_response, request_message
from platform_site.outbound.sockets import Bounded, BoundedSocket, BoundedTLSSocket, ResponseTooLarge, is_stale
from platform_site.outbound.ssrf import Address, Network, is_allowed, networks, unmapped
from platform_site.outbound.urls import BadUrl, Target, parse_url

CONNECT_SECONDS: Final = 5.0
TOTAL_SECONDS: Final = 15.0
BODY_LIMIT: Final = 64 * 1024
_HEAD_ALLOWANCE: Final = 128 * 1024
"""Bytes for status line, headers, interim responses and read-ahead."""
_BODY_ALLOWANCE: Final = 8
"""Wire bytes per body byte: chunks may be tiny."""
IDLE_SECONDS: Final = 4.0
"""Node, the most common receiver, closes idle connections after five."""
_IDLE_PER_HOST: Final = 8
_IDLE_IN_ALL: Final = 256
REPEATABLE: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})


Key = tuple[str, str, str, int]
"""Owner, scheme, host, port."""


@dataclass(slots=True, eq=False)
class _IdleConnection:
    key: Key
    connection: Bounded
    since: float


class Interruption:
    """Lets another thread end a call: at once, except during name resolution and TLS handshake."""

    def __init__(self) -> None:
        self.is_interrupted = False
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None

    def interrupt(self) -> None:
        """Also prevents a call."""
        with self._lock:
            self.is_interrupted = True
            if self._connection is not None:
                with contextlib.suppress(OSError):
                    # Wakes the waiting thread, unlike closing; a TLS socket's own shutdown would remove its state.
                    socket.socket.shutdown(self._connection, socket.SHUT_RDWR)

    @contextlib.contextmanager
    def waiting_for(self, connection: socket.socket) -> Iterator[None]:
        """While the call waits for this connection. Raises ConnectionError if it has ended."""
        with self._lock:
            if self.is_interrupted:
                raise ConnectionAbortedError
            self._connection = connection
        try:
            yield
        finally:
            with self._lock:
                self._connection = None


class Client:
    def __init__(
        self,
        *,
        opened: Iterable[Network] = (),
        resolve: Callable[[str, int, float, str], list[Address]] = resolver.resolve,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`opened` networks may be called though not public. `tls` replaces the certificate authorities."""
        self._opened = tuple(opened)
        self._resolve = resolve
        self._tls = tls or _public_tls()
        self._tls.sslsocket_class = BoundedTLSSocket
        self._lock = threading.Lock()
        self._idle: list[_IdleConnection] = []

    def request(
        self,
        method: str,
        url: str,
        *,
        owner: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        limit: int = BODY_LIMIT,
        connect: float = CONNECT_SECONDS,
        total: float = TOTAL_SECONDS,
        is_repeatable: bool | None = None,
        interruption: Interruption | None = None,
    ) -> Response:
        """`owner` (an environment's id, `""` for the platform) has its own connections, since a host that misreads a
        request's end would mix tenants' secrets, and a share of name lookups. On a dead idle connection it is repeated
        if `is_repeatable` (None: by method). Raises an OutboundError (ConnectionBroken if interrupted), ValueError."""
        deadline = time.monotonic() + total
        interruption = interruption or Interruption()
        try:
            target = parse_url(url)
        except BadUrl as error:
            raise errors.Forbidden(str(error)) from None
        message = request_message(method, target, headers or {}, body)
        key = (owner, target.scheme, target.host, target.port)
        idle = self._take(key)
        if idle is not None:
            try:
                return self._exchange(idle, key, method, message, limit, deadline, interruption)
            except errors.ConnectionBroken:
                may_repeat = method in REPEATABLE if is_repeatable is None else is_repeatable
                if idle.has_received or not may_repeat or interruption.is_interrupted:
                    raise
        connection = self._connect(target, owner, deadline, connect, interruption)
        return self._exchange(connection, key, method, message, limit, deadline, interruption)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for one in idle:
            one.connection.close()

    def _connect(
        self, target: Target, owner: str, deadline: float, seconds: float, interruption: Interruption
    ) -> Bounded:
        by = min(deadline, time.monotonic() + seconds)
        try:
            addresses = self._resolve(target.host, target.port, by, owner)
        except resolver.NotResolved:
            raise errors.Unresolved from None
        except TimeoutError:
            raise errors.RequestTimedOut("the name could not be resolved in time") from None
        allowed = [address for address in addresses if is_allowed(address, self._opened)]
        if not allowed:
            raise errors.Forbidden
        for index, address in enumerate(allowed):
            is_last = index == len(allowed) - 1
            left = by - time.monotonic()
            share = left if is_last else left / 2  # an unreachable address leaves time for the next
            try:
                connection = self._connect_to(unmapped(address), target, share, interruption)
                break
            except TimeoutError:
                if is_last:
                    raise errors.RequestTimedOut("the connection could not be made in time") from None
            except OSError:
                if interruption.is_interrupted:
                    raise errors.ConnectionBroken from None
                if is_last:
                    raise errors.Refused from None
        return self._secured(connection, target, by) if target.scheme == "https" else connection

    def _connect_to(
        self, address: Address, target: Target, seconds: float, interruption: Interruption
    ) -> BoundedSocket:
        if seconds <= 0:
            raise TimeoutError
        connection = BoundedSocket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_STREAM)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(seconds)
            with interruption.waiting_for(connection):
                connection.connect((str(address), target.port))
        except BaseException:
            connection.close()
            raise
        return connection

    def _secured(self, connection: BoundedSocket, target: Target, by: float) -> BoundedTLSSocket:
        try:
            connection.settimeout(max(0.001, by - time.monotonic()))
            secured = self._tls.wrap_socket(connection, server_hostname=target.host)
        except TimeoutError:
            connection.close()
            raise errors.RequestTimedOut("the TLS handshake took too long") from None
        except (OSError, ValueError):
            connection.close()
            raise errors.Insecure from None
        if not isinstance(secured, BoundedTLSSocket):
            raise TypeError("the TLS context makes sockets of another class")
        return secured

    def _take(self, key: Key) -> Bounded | None:
        while True:
            with self._lock:
                one = next((each for each in reversed(self._idle) if each.key == key), None)
                if one is None:
                    return None
                self._idle.remove(one)
            if time.monotonic() - one.since < IDLE_SECONDS and not is_stale(one.connection):
                return one.connection
            one.connection.close()

    def _keep(self, key: Key, connection: Bounded) -> None:
        with self._lock:
            now = time.monotonic()
            # In the order of their times: those that have expired come first.
            living = next((at for at, one in enumerate(self._idle) if now - one.since < IDLE_SECONDS), len(self._idle))
            closing, self._idle = self._idle[:living], self._idle[living:]
            of_host = sum(one.key == key for one in self._idle)
            has_room = of_host < _IDLE_PER_HOST and len(self._idle) < _IDLE_IN_ALL
            (self._idle if has_room else closing).append(_IdleConnection(key, connection, now))
        for one in closing:
            one.connection.close()

    def _exchange(
        self,
        connection: Bounded,
        key: Key,
        method: str,
        message: bytes,
        limit: int,
        deadline: float,
        interruption: Interruption,
    ) -> Response:
        connection.until(deadline, _HEAD_ALLOWANCE + _BODY_ALLOWANCE * limit)
        may_keep = False
        try:
            with interruption.waiting_for(connection):
                connection.sendall(message)
                response = http.client.HTTPResponse(connection, method=method)
                with response:
                    response.begin()
                    if connection.has_ended:  # `http.client` takes a head that was cut off for a whole one
                        raise http.client.IncompleteRead(b"")
                    answer = read_response(response, limit)
            may_keep = not (response.will_close or answer.is_cut or interruption.is_interrupted)
            return answer
        except TimeoutError:
            raise errors.RequestTimedOut from None
        except ConnectionError:  # RemoteDisconnected among them
            raise errors.ConnectionBroken from None
        except (http.client.HTTPException, ResponseTooLarge, ValueError):
            raise errors.InvalidResponse from None
        except OSError:  # TLS alerts among them
            raise errors.ConnectionBroken from None
        finally:
            if may_keep:
                self._keep(key, connection)
            else:
                connection.close()


@cache
def _public_tls() -> ssl.SSLContext:
    """The system's certificate authorities (or SSL_CERT_FILE) and certifi's."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context


_clients: Final[dict[tuple[str, ...], Client]] = {}


def client() -> Client:
    opened = tuple(settings.OUTBOUND_ALLOWED_NETWORKS)
    return _clients.get(opened) or _clients.setdefault(opened, Client(opened=networks(opened)))


os.register_at_fork(after_in_child=_clients.clear)
