"""Server-Sent Events: https://html.spec.whatwg.org/multipage/server-sent-events.html"""

import threading
from collections.abc import Callable
from typing import Final

from django.http import StreamingHttpResponse

_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""Of nginx: not to buffer the stream."""


def message(event: str, data: str, last_id: str | None = None) -> bytes:
    last = "" if last_id is None else f"id: {last_id}\n"
    return f"event: {event}\n{last}data: {data}\n\n".encode()


class MessageQueue:
    """Messages from any thread to one reader, at most `max_bytes`; more closes the queue (`is_overflowed`)."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._messages: list[bytes] = []
        self.size = 0
        self.is_closed = False
        self.is_overflowed = False
        self.notify: Callable[[], object] = lambda: None
        """Called, in the writer's thread, when there is something to take."""

    def put(self, data: bytes) -> None:
        with self._lock:
            if self.is_closed:
                return
            self.size += len(data)
            self._messages.append(data)
        if self.size > self._max_bytes:
            self.overflow()
        else:
            self.notify()

    def overflow(self) -> None:
        with self._lock:
            self._messages.clear()
            self.size = 0
            self.is_closed = self.is_overflowed = True
        self.notify()

    def close(self) -> None:
        self.is_closed = True
        self.notify()

    def take(self) -> bytes | None:
        with self._lock:
            data = b"".join(self._messages)
            self._messages.clear()
            self.size = 0
            return None if self.is_closed and not data else data


class EventStreamResponse(StreamingHttpResponse):
    """Without content of its own: the server sends the messages (`platform_site.server.http_message`)."""

    def __init__(self, queue: MessageQueue) -> None:
        super().__init__(content_type="text/event-stream; charset=utf-8", headers=_HEADERS)
        self.queue = queue
