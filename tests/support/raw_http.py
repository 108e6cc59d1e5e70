"""HTTP by hand: bytes into a socket, bytes out, for what no client library would send."""

import re
import socket
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson

HOST = b"Host: localhost\r\n"


@dataclass
class Answers:
    """What came back: the answers in order, and whether the server then closed the connection."""

    raw: bytes
    closed: bool

    @property
    def statuses(self) -> list[int]:
        return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3}) ", self.raw)]

    @property
    def body(self) -> Any:
        """The JSON body of the last answer; None if it is empty."""
        text = self.raw.rpartition(b"\r\n\r\n")[2]
        return orjson.loads(text) if text else None


def connect(base_url: str, timeout: float = 5.0) -> socket.socket:
    parts = urlsplit(base_url)
    assert parts.hostname
    return socket.create_connection((parts.hostname, parts.port or 80), timeout=timeout)


def talk(base_url: str, *pieces: bytes, quiet: float = 0.5, seconds: float = 20.0, pause: float = 0.1) -> Answers:
    """Send the pieces (`pause` seconds apart) and read until the server closes or says nothing more for `quiet`."""
    received = b""
    with connect(base_url) as connection:
        for number, piece in enumerate(pieces):
            if number:
                time.sleep(pause)
            try:
                connection.sendall(piece)
            except OSError:
                break
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            connection.settimeout(quiet if received else seconds)
            try:
                data = connection.recv(65536)
            except TimeoutError:
                return Answers(received, closed=False)
            except ConnectionResetError:
                return Answers(received, closed=True)
            if not data:
                return Answers(received, closed=True)
            received += data
    return Answers(received, closed=False)
