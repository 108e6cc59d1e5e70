"""A receiver on a real socket with configurable behavior, good or bad, that stores the requests."""

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Container

Behave = Callable[[socket.socket], object]
"""Gets the connection after a whole request was read; what it returns is of no matter. True: the connection stays."""


def answer(status: str = "200 OK", body: bytes = b"", **headers: str) -> Behave:
    """A proper answer; the connection stays open for the next request."""

    def behave(connection: socket.socket) -> bool:
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        connection.sendall("\r\n".join([*lines, "\r\n"]).encode() + body)
        return True

    return behave


def send(data: bytes) -> Behave:
    """These bytes, and then the end."""
    return lambda connection: connection.sendall(data)


def dribble(data: bytes, every: float) -> Behave:
    """These bytes one by one."""

    def behave(connection: socket.socket) -> None:
        for byte in data:
            connection.sendall(bytes([byte]))
            time.sleep(every)

    return behave


def endless(start: bytes, piece: bytes) -> Behave:
    """`start` and then `piece` until the client disconnects."""

    def behave(connection: socket.socket) -> None:
        connection.sendall(start)
        while True:
            connection.sendall(piece)

    return behave


def silence(connection: socket.socket) -> None:
    """Nothing, until the caller has had enough."""
    connection.recv(1)


def reset(connection: socket.socket) -> None:
    """A reset instead of an answer."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()


class Receiver:
    """Listens on `port`. `behave` says what happens to each request; `requests` and `connections` what happened."""

    def __init__(
        self,
        behave: Behave | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        first: Callable[[socket.socket], object] | None = None,
        reads_bodies_of: Container[bytes] | None = None,
    ) -> None:
        """`reads_bodies_of` some methods: after the head of any other the next request begins, whatever the content
        is."""
        self.behave = behave or answer()
        self.requests: list[bytes] = []
        self.connections = 0
        self._tls, self._first, self._with_body = tls, first, reads_bodies_of
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.socket(family)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind((host, port))
        self._listener.listen(128)
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> "Receiver":
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts; closing alone does not
        self._listener.close()
        self.hang_up()

    def url(self, path: str = "/hook", *, host: str = "127.0.0.1") -> str:
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}{path}"

    def hang_up(self) -> None:
        """Close every connection from this side."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        self._open.add(connection)
        try:
            if self._first is not None:
                self._first(connection)
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
                self._open.add(connection)
            ahead = b""
            while (read := self._read(connection, ahead)) is not None:
                request, ahead = read
                self.requests.append(request)
                if self.behave(connection) is not True:
                    break
        except OSError:
            pass
        finally:
            self._open.discard(connection)
            connection.close()

    def _read(self, connection: socket.socket, received: bytes) -> tuple[bytes, bytes] | None:
        """The next request, and what came behind it; `received` has come already."""
        while b"\r\n\r\n" not in received:
            piece = connection.recv(65536)
            if not piece:
                return None
            received += piece
        head, _, body = received.partition(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        if self._with_body is not None and head.partition(b" ")[0] not in self._with_body:
            length = 0
        while len(body) < length:
            piece = connection.recv(65536)
            if not piece:
                return None
            body += piece
        return head + b"\r\n\r\n" + body[:length], body[length:]


def headers(request: bytes) -> dict[str, str]:
    lines = request.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]
    return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
