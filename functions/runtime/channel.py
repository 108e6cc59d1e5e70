"""Frames to and from the runner, over the pipes of its process: a 4-byte little-endian length, and as many bytes.
Whoever calls here waits no longer than the deadline it names, a moment of `time.monotonic`, and never for a process
that itself waits to be read. At the deadline, and for what breaks the protocol, the process is killed. One thread, or
request on the event loop, uses a channel; others only write to `wake`, once they have answered a question of the
code."""

import contextlib
import json
import os
import select
import struct
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import orjson

from functions.runtime.errors import ProcessGone, Reason
from platform_site.concurrency import loop_requests

MAX_FRAME_BYTES: Final = 24 * 1024 * 1024
"""What a process may say in one frame before it counts as flooding; a plan's largest output is far below."""


class Channel:
    """See the module. `kill` ends the process, for a reason."""

    def __init__(self, popen: "subprocess.Popen[bytes]", kill: Callable[[Reason], None]) -> None:
        pipes = [pipe for pipe in (popen.stdin, popen.stdout, popen.stderr) if pipe]
        self._in, self._out, self._errors = (pipe.fileno() for pipe in pipes)
        self._kill = kill
        self._buffer = bytearray()
        self._error_tail = b""
        self.replies: Callable[[], Iterable[bytes]] = tuple
        """Takes the frames with answers that other threads have made since the last time."""
        self._woken, self.wake = os.pipe()
        """`wake` is written to when there are such."""
        for descriptor in (self._in, self._out, self._errors, self._woken, self.wake):
            os.set_blocking(descriptor, False)
        self._poll = select.epoll()
        for descriptor in (self._out, self._errors, self._woken):
            self._poll.register(descriptor, select.EPOLLIN)
        self._is_writing = False
        self._readiness: loop_requests.Readiness | None = None
        """Of all three, for requests on the event loop."""

    def close(self) -> None:
        """Once. The pipes of the process are its owner's to close."""
        os.close(self._woken)
        os.close(self.wake)
        self._poll.close()
        if self._readiness is not None:
            self._readiness.close_soon()

    def last_words(self) -> str:
        """The end of what Deno wrote to stderr, for the platform's log."""
        self._discard_errors()
        return self._error_tail.decode(errors="replace").strip()

    def write(self, frame: Mapping[str, Any], deadline: float) -> None:
        self.write_bytes(orjson.dumps(frame), deadline)

    def write_bytes(self, body: bytes, deadline: float) -> None:
        left = memoryview(struct.pack("<I", len(body)) + body)
        self._is_writing = True
        while left:
            try:
                left = left[os.write(self._in, left) :]
            except BlockingIOError:
                self._await_room(deadline)
            except OSError as error:
                raise ProcessGone("it closed its input") from error
        self._is_writing = False

    def write_ahead(self, body: bytes) -> bool:
        """Write a frame, while another request on the loop uses the channel. False if it does not fit at once."""
        frame = struct.pack("<I", len(body)) + body
        if self._is_writing or len(frame) > select.PIPE_BUF:  # up to that it is written as a whole or not at all
            return False
        try:
            os.write(self._in, frame)
        except OSError:
            return False
        return True

    def _await_room(self, deadline: float) -> None:
        """Until it reads on. It may itself be waiting for us, in a burst of questions or of log lines: so what it says
        meanwhile is taken in, as much of it as may be in one frame."""
        listens = len(self._buffer) <= MAX_FRAME_BYTES
        self._poll.modify(self._out, select.EPOLLIN if listens else 0)
        self._poll.modify(self._woken, 0)
        self._poll.register(self._in, select.EPOLLOUT)
        try:
            if self._out in self._ready(deadline, {self._in, self._out}):
                self._take_in()
        finally:
            self._poll.unregister(self._in)
            self._poll.modify(self._woken, select.EPOLLIN)
            self._poll.modify(self._out, select.EPOLLIN)

    def await_reply(self, deadline: float) -> None:
        """Until an answer was made in another thread. What the code says meanwhile waits."""
        self._poll.modify(self._out, 0)
        try:
            if self._out in self._ready(deadline, {self._out, self._woken}):
                raise ProcessGone("it ended")
        finally:
            self._poll.modify(self._out, select.EPOLLIN)

    def _fill(self, deadline: float) -> None:
        if self._woken in self._ready(deadline, {self._out, self._woken}):
            self.hand_in(deadline)
        else:
            self._take_in()

    def hand_in(self, deadline: float) -> None:
        """Tell the code what was answered in other threads."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 4096)
        for reply in self.replies():
            self.write_bytes(reply, deadline)

    def _take_in(self) -> None:
        more = os.read(self._out, 1 << 18)
        if not more:
            raise ProcessGone("it ended")
        self._buffer += more

    def _ready(self, deadline: float, wanted: set[int]) -> set[int]:
        """Wait for one of the descriptors that are `wanted`. Raises ProcessGone at the deadline."""
        request = loop_requests.current()
        while True:
            left = max(0.0, deadline - time.monotonic())
            if request is not None:
                if self._readiness is None or not self._readiness.is_open:
                    self._readiness = loop_requests.Readiness(request.loop, self._poll.fileno())
                self._readiness.wait(request, seconds=left)
                left = 0.0
            ready = {found for found, _ in self._poll.poll(left)}
            if self._errors in ready:
                self._discard_errors()
            if ready & wanted:
                return ready
            if time.monotonic() >= deadline:
                self._kill("timeout")
                raise ProcessGone("the deadline passed")

    def _discard_errors(self) -> None:
        """Keep stderr from filling up, and the end of it: V8 says there that its heap is full."""
        with contextlib.suppress(OSError):
            for _ in range(16):  # one that never stops writing must not keep us from looking at the clock
                if not (more := os.read(self._errors, 1 << 16)):
                    with contextlib.suppress(OSError):
                        self._poll.unregister(self._errors)  # it is closed, and would be ready for ever
                    break
                self._error_tail = (self._error_tail + more)[-4096:]

    def read_bytes(self, deadline: float) -> bytes:
        """The next frame. Raises ProcessGone at the end, and at the deadline or for a flood, when it is killed."""
        while len(self._buffer) < 4:
            self._fill(deadline)
        (length,) = struct.unpack_from("<I", self._buffer)
        if length > MAX_FRAME_BYTES:
            raise self.broken()
        while len(self._buffer) < 4 + length:
            self._fill(deadline)
        body = bytes(self._buffer[4 : 4 + length])
        del self._buffer[: 4 + length]
        return body

    def read(self, deadline: float) -> dict[str, Any]:
        """The next frame outside of a call. Raises ProcessGone as above, and for what is no frame."""
        try:
            frame = json.loads(self.read_bytes(deadline))
        except (ValueError, RecursionError) as error:
            raise self.broken() from error
        if not isinstance(frame, dict):
            raise self.broken()
        return frame

    def broken(self) -> ProcessGone:
        self._kill("protocol")
        return ProcessGone("it broke the protocol")
