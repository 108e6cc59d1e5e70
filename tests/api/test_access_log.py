"""The access log: gathered, written together, and complete when a process ends in order."""

import io
import logging
import os
import select
import signal
import threading
import time

import pytest

from platform_site.observability.logs import AccessHandler
from tests.support.service import wait_for


class Stream(io.StringIO):
    """Counts how often it is written to; `gate` holds a writer up."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.gate = threading.Event()
        self.gate.set()

    def write(self, text: str) -> int:
        self.gate.wait(10)
        self.writes += 1
        return super().write(text)


def say(handler: logging.Handler, *texts: str) -> None:
    for text in texts:
        handler.handle(logging.LogRecord("platform.access", logging.INFO, "", 0, text, (), None))


@pytest.mark.usefixtures("with_fastpath")
def test_lines_are_written_together_in_their_order_and_soon() -> None:
    stream = Stream()
    handler = AccessHandler(stream)
    say(handler, *(f"line {number}" for number in range(200)))
    wait_for("the lines are there", lambda: stream.getvalue().count("\n") == 200, 5)
    assert stream.getvalue().splitlines() == [f"line {number}" for number in range(200)]
    assert stream.writes < 20
    say(handler, "later")
    wait_for("the next one, too", lambda: stream.getvalue().endswith("later\n"), 5)


def test_flush_leaves_nothing_behind() -> None:
    stream = Stream()
    handler = AccessHandler(stream)
    say(handler, "one", "two")
    handler.flush()
    assert stream.getvalue() == "one\ntwo\n"


@pytest.mark.exhaustive
@pytest.mark.usefixtures("with_fastpath")
def test_stalled_log_reader_blocks_no_request_and_memory_is_bounded() -> None:
    stream = Stream()
    handler = AccessHandler(stream)
    stream.gate.clear()
    say(handler, *["x"] * (handler.MAX_WAITING + 1000))
    assert len(handler.lines._waiting) <= handler.MAX_WAITING
    stream.gate.set()
    wait_for("what was kept is written", lambda: stream.getvalue().count("\n") >= handler.MAX_WAITING, 10)


def test_a_stream_that_refuses_ends_nothing() -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    handler = AccessHandler(Full())
    say(handler, "lost")
    handler.flush()
    say(handler, "lost, too")
    handler.flush()


def test_a_child_process_writes_its_own_lines() -> None:
    read, write = os.pipe()
    handler = AccessHandler(os.fdopen(write, "w"))
    say(handler, "parent")
    handler.flush()
    child = os.fork()
    if not child:
        say(handler, "child")  # its own thread writes it
        time.sleep(60)
        os._exit(0)
    found = b""
    while found.count(b"\n") < 2 and select.select([read], [], [], 30)[0]:
        found += os.read(read, 1000)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert found == b"parent\nchild\n"
