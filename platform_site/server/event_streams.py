"""Sends Server-Sent Events on the event loop: a stream costs no thread while it is silent.

Granian takes bytes without a bound, so a client that does not read would fill the memory of this process. Therefore
every PAUSE_BYTES the socket is asked whether the client has taken them, and what comes meanwhile waits in the stream's
queue, which has a limit.
"""

import asyncio
import contextlib
import contextvars
import fcntl
import logging
import os
import socket
import struct
import sys
import termios
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from platform_site.http.event_streams import MessageQueue

logger = logging.getLogger(__name__)

PAUSE_BYTES: Final = 1024 * 1024
_LOOK_SECONDS: Final = 0.05
_IS_LINUX: Final = sys.platform == "linux"


class EventStream:
    """One response, sent by callbacks of the loop: a coroutine, its tasks and its event would cost 3 KB of memory."""

    __slots__ = ("_client", "_end", "_gone", "_is_waiting", "_queue", "_sent", "_transport", "_wake_ups")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, client: str, queue: MessageQueue, end: Callable[[], None]
    ) -> None:
        """`client` is the peer, `address:port`. `end` is called once, in the thread of the loop."""
        self._wake_ups, self._client, self._queue, self._end = _wake_ups_of(loop), client, queue, end
        self._transport: Any = None
        self._gone: Any = None
        self._sent = 0
        self._is_waiting = False

    def begin(self, protocol: Any, head: tuple[int, list[tuple[str, str]]]) -> None:
        """Send the messages of the queue until one side ends it. `head` are the status and the headers."""
        self._queue.notify = self._wake
        try:
            self._transport = protocol.response_stream(*head)
            self._gone = protocol.client_disconnect()
            self._gone.add_done_callback(self._close, context=_NO_CONTEXT)
        except Exception:  # RSGI raises its own for a connection that broke
            logger.debug("a stream did not begin", exc_info=True)
            self._queue.close()
        self.send()

    def _wake(self) -> None:
        self._wake_ups.send(self)

    def send(self) -> None:
        """Send what waits. Called in the thread of the loop."""
        if self._end is _nothing or self._is_waiting:
            return
        data = self._queue.take()
        if data is None or self._transport is None:
            self._finish()
        elif data:
            try:
                self._transport.send_bytes(data)  # Granian takes it at once: there is nothing to await
            except Exception:
                logger.debug("a stream broke off", exc_info=True)
                self._finish()
                return
            self._sent += len(data)
            if self._sent >= PAUSE_BYTES and _IS_LINUX:
                self._is_waiting = True
                _keep(self._wake_ups.loop.create_task(self._wait()))
            elif self._queue.is_closed:
                self.send()  # nothing comes after what waits now

    async def _wait(self) -> None:
        try:
            await _wait_until_read(self._client, self._queue)
        finally:
            self._sent, self._is_waiting = 0, False
            self.send()

    def _close(self, _: Any) -> None:
        self._queue.close()

    def _finish(self) -> None:
        end, self._end = self._end, _nothing
        self._queue.notify = _nothing
        self._queue.close()
        if self._gone is not None:
            self._gone.cancel()
        self._transport = self._gone = None
        end()


def _nothing() -> None:
    pass


_NO_CONTEXT: Final = contextvars.Context()
_waiting: Final[set[asyncio.Task[None]]] = set()
"""The loop itself holds its tasks weakly."""


def _keep(task: "asyncio.Task[None]") -> None:
    _waiting.add(task)
    task.add_done_callback(_waiting.discard)


class _WakeUps:
    """Lets streams send, from any thread: a thousand of them with one wake-up of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._due: deque[EventStream] = deque()
        self._is_called = False

    def send(self, stream: EventStream) -> None:
        self._due.append(stream)
        if not self._is_called:
            self._is_called = True
            with contextlib.suppress(RuntimeError):  # the process ends
                self.loop.call_soon_threadsafe(self._send_all, context=_NO_CONTEXT)

    def _send_all(self) -> None:
        self._is_called = False  # first: what comes from now on calls again
        while self._due:
            self._due.popleft().send()


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
