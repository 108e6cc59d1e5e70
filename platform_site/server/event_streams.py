"""Sends Server-Sent Events on the event loop: a stream costs no thread while it is silent.

Granian takes bytes without a bound, so a client that does not read would fill the memory of this process. Therefore
every PAUSE_BYTES the socket is asked whether the client has taken them, and what comes meanwhile waits in the stream's
queue, which has a limit.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import socket
import struct
import sys
import termios
from collections import deque
from functools import lru_cache, partial
from typing import Any, Final

from platform_site.http.event_streams import MessageQueue

logger = logging.getLogger(__name__)

PAUSE_BYTES: Final = 1024 * 1024
_LOOK_SECONDS: Final = 0.05
_IS_LINUX: Final = sys.platform == "linux"


async def stream(protocol: Any, client: str, head: tuple[int, list[tuple[str, str]]], queue: MessageQueue) -> None:
    """Send the messages of `queue` until one side ends it. `client` is the peer, `address:port`; `head` the status and
    the headers."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    queue.notify = partial(_wake_ups_of(loop).set, changed)
    transport = protocol.response_stream(*head)
    del head
    gone = asyncio.ensure_future(_close_when_gone(protocol, queue))
    sent = 0
    try:
        while (data := queue.take()) is not None:
            if not data:
                await changed.wait()
                changed.clear()
                continue
            await transport.send_bytes(data)
            sent += len(data)
            if sent >= PAUSE_BYTES and _IS_LINUX:
                await _wait_until_read(client, queue)
                sent = 0
    except Exception:  # RSGI raises its own for a connection that broke
        logger.debug("a stream broke off", exc_info=True)
    finally:
        queue.close()
        gone.cancel()


async def _close_when_gone(protocol: Any, queue: MessageQueue) -> None:
    await protocol.client_disconnect()
    queue.close()


class _WakeUps:
    """Sets events of a loop, from any thread: those of a thousand streams with one wake-up of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: deque[asyncio.Event] = deque()
        self._is_called = False

    def set(self, changed: asyncio.Event) -> None:
        self._due.append(changed)
        if not self._is_called:
            self._is_called = True
            with contextlib.suppress(RuntimeError):  # the process ends
                self._loop.call_soon_threadsafe(self._set_all)

    def _set_all(self) -> None:
        self._is_called = False  # first: what comes from now on calls again
        while self._due:
            self._due.popleft().set()


_wake_ups_of: Final = lru_cache(maxsize=1)(_WakeUps)
"""Of a process's loop."""


async def _wait_until_read(client: str, queue: MessageQueue) -> None:
    """Return when the client has taken all that was sent. If it is cut off meanwhile, its connection is closed:
    it would not read the last message either."""
    connection = _connection_to(client)
    if connection is None:
        return
    with connection:
        await asyncio.sleep(_LOOK_SECONDS)  # Granian writes in threads of its own
        while _unread_bytes(connection) > 0:
            if queue.is_closed:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                return
            await asyncio.sleep(_LOOK_SECONDS)


def _connection_to(client: str) -> socket.socket | None:
    """A second descriptor of this process's connection to `client`: Granian does not show its own."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError, ValueError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                found = socket.socket(fileno=os.dup(int(name)))
                if _name_of_peer(found) == client:
                    return found
                found.close()
    return None


def _name_of_peer(connection: socket.socket) -> str | None:
    try:
        host, port, *_ = connection.getpeername()
    except (OSError, ValueError):
        return None
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _unread_bytes(connection: socket.socket) -> int:
    """What this machine still holds of what was sent."""
    [unread] = struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, b"\0" * 4))
    return int(unread)
