"""A TCP proxy before a service, whose connections can go silent and break, as those of a network that fails."""

import contextlib
import socket
import threading
import time
from typing import Self


class CuttableNetwork:
    """`port` leads to `host:to` as long as the network is whole."""

    def __init__(self, host: str, to: int) -> None:
        self._target = (host, to)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: set[socket.socket] = set()
        self._is_whole = threading.Event()
        self._is_whole.set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self._break()

    def cut(self, seconds: float) -> None:
        """Nothing arrives for so long; then all connections break."""
        self._is_whole.clear()
        time.sleep(seconds)
        self._break()
        self._is_whole.set()

    def _break(self) -> None:
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._is_whole.wait()
                try:
                    server = socket.create_connection(self._target)
                except OSError:
                    client.close()
                    continue
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=self._forward, args=ends, daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        self._open.add(source)
        with contextlib.suppress(OSError), source:
            while data := source.recv(65_536):
                self._is_whole.wait()  # what was sent meanwhile is lost with the connection
                target.sendall(data)
        self._open.discard(source)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)
