"""Sends Server-Sent Events on the event loop, without threads or tasks; queues are bounded."""

from functools import partial

from platform_site.http.event_streams import EventStreamResponse
from platform_site.server.http_message import Message


class EventStream:
    """Answers `message` with the messages of the queue until one side ends it."""

    def __init__(self, message: Message, response: EventStreamResponse) -> None:
        self._message, self.queue = message, response.queue
        self._is_chunked = message.begin_stream(response)
        message.connection.stream = self
        self.queue.notify = partial(message.connection.server.loop.call_soon_threadsafe, self.send)
        self.send()

    def send(self) -> None:
        """Send what is in the queue; called when it changes, and when the client disconnects or has read everything."""
        connection, queue = self._message.connection, self.queue
        if connection.stream is not self:  # it has ended
            return
        if connection.is_gone:
            self._end()
            return
        while not connection.is_paused:
            data = queue.take()
            if data is None:
                self._end()
                connection.finish(self._message, b"0\r\n\r\n" if self._is_chunked else b"")
                return
            if not data:
                return
            connection.write(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)
        if queue.is_closed:  # a client that does not read would not read the last message either
            self._end()
            connection.abort()

    def _end(self) -> None:
        self._message.connection.stream = None
        self.queue.notify = lambda: None
        self.queue.close()
        self.queue.take()  # its messages would be kept until the next pass of the feed
