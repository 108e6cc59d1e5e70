"""Frames to and from the runner, over the pipes of its process: a 4-byte little-endian length, and as many bytes. No
operation blocks beyond its deadline (of `time.monotonic`), or deadlocks with a process that waits for its output to be
read. At the deadline, and on a protocol violation, the process is killed."""

import contextlib
import json
import os
import select
import struct
import subprocess
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from functions.runtime.errors import ProcessGone, Reason
from platform_site.concurrency import loop_requests

MAX_FRAME_BYTES: Final = 24 * 1024 * 1024  # a plan's largest output is far below


class Channel:
    def __init__(self, popen: "subprocess.Popen[bytes]", kill: Callable[[Reason], None]) -> None:
        pipes = [pipe for pipe in (popen.stdin, popen.stdout, popen.stderr) if pipe]
        self._in, self._out, self._errors = (pipe.fileno() for pipe in pipes)
        self._kill = kill
        self._buffer = bytearray()
        self._error_tail = b""
        self.replies: Callable[[], Iterable[bytes]] = tuple
        """Returns the frames with replies that other threads have made since the last call. They write to `wake`."""
        self._wake_reader, self.wake = os.pipe()
        for descriptor in (self._in, self._out, self._errors, self._wake_reader, self.wake):
            os.set_blocking(descriptor, False)
        self._poll = select.epoll()
        for descriptor in (self._out, self._errors, self._wake_reader):
            self._poll.register(descriptor, select.EPOLLIN)
        self._is_writing = False
        self._readiness: loop_requests.Readiness | None = None
        """Of all three, for requests on the event loop."""

    def close(self) -> None:
        """Call once. The owner closes the pipes of the process."""
        os.close(self._wake_reader)
        os.close(self.wake)
        self._poll.close()
        if self._readiness is not None:
            self._readiness.close_soon()

    def stderr_tail(self) -> str:
        self._discard_errors()
        return self._error_tail.decode(errors="replace").strip()

    def write_bytes(self, body: bytes, deadline: float) -> None:
        left = memoryview(struct.pack("<I", len(body)) + body)
        self._is_writing = True
        while left:
            try:
                left = left[os.write(self._in, left) :]
            except BlockingIOError:
                self._wait_until_writable(deadline)
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

    def _wait_until_writable(self, deadline: float) -> None:
        """Wait until the process reads. It may itself be blocked on its output, by a burst of requests or log lines: so
        its output is read meanwhile, up to the size of one frame."""
        reads_output = len(self._buffer) <= MAX_FRAME_BYTES
        self._poll.modify(self._out, select.EPOLLIN if reads_output else 0)
        self._poll.modify(self._wake_reader, 0)
        self._poll.register(self._in, select.EPOLLOUT)
        try:
            if self._out in self._ready(deadline, {self._in, self._out}):
                self._read_more()
        finally:
            self._poll.unregister(self._in)
            self._poll.modify(self._wake_reader, select.EPOLLIN)
            self._poll.modify(self._out, select.EPOLLIN)

    def await_reply(self, deadline: float) -> None:
        """Wait for a reply from another thread. The output of the code is not read meanwhile."""
        self._poll.modify(self._out, 0)
        try:
            if self._out in self._ready(deadline, {self._out, self._wake_reader}):
                raise ProcessGone("it ended")
        finally:
            self._poll.modify(self._out, select.EPOLLIN)

    def _fill(self, deadline: float) -> None:
        if self._wake_reader in self._ready(deadline, {self._out, self._wake_reader}):
            self.send_replies(deadline)
        else:
            self._read_more()

    def send_replies(self, deadline: float) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_reader, 4096)
        for reply in self.replies():
            self.write_bytes(reply, deadline)

    def _read_more(self) -> None:
        more = os.read(self._out, 1 << 18)
        if not more:
            raise ProcessGone("it ended")
        self._buffer += more

    def _ready(self, deadline: float, wanted: set[int]) -> set[int]:
        """Raises ProcessGone at the deadline."""
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
        """Read stderr so that it does not fill up, and keep its end: V8 reports a full heap there."""
        with contextlib.suppress(OSError):
            for _ in range(16):  # a bound, so that a process that never stops writing does not delay the deadline
                if not (more := os.read(self._errors, 1 << 16)):
                    with contextlib.suppress(OSError):
                        self._poll.unregister(self._errors)  # it is closed, and poll would always return it
                    break
                self._error_tail = (self._error_tail + more)[-4096:]

    def read_bytes(self, deadline: float) -> bytes:
        """The next frame. Raises ProcessGone if the process ended, or is killed for the deadline or a large frame."""
        while len(self._buffer) < 4:
            self._fill(deadline)
        (length,) = struct.unpack_from("<I", self._buffer)
        if length > MAX_FRAME_BYTES:
            raise self.protocol_violation()
        while len(self._buffer) < 4 + length:
            self._fill(deadline)
        body = bytes(self._buffer[4 : 4 + length])
        del self._buffer[: 4 + length]
        return body

    def read(self, deadline: float) -> dict[str, Any]:
        """The next frame outside of a call. Raises ProcessGone as `read_bytes`, and for invalid JSON."""
        try:
            frame = json.loads(self.read_bytes(deadline))
        except (ValueError, RecursionError) as error:
            raise self.protocol_violation() from error
        if not isinstance(frame, dict):
            raise self.protocol_violation()
        return frame

    def protocol_violation(self) -> ProcessGone:
        self._kill("protocol")
        return ProcessGone("it broke the protocol")
