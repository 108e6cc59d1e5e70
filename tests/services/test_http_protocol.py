"""Connections of the server: who may write to them, and how much they keep of what was not asked for yet."""

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import uvloop

from platform_site.server.http_message import Message
from platform_site.server.http_parser import MAX_PIPELINED
from platform_site.server.http_protocol import HttpServer

REQUEST = b"GET /v1/rows/tasks HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Served:
    """A server on a free port whose requests wait in `begun`."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self.begun: list[Message] = []
        self.server = HttpServer(self.loop, lambda message, peer: None, self.begun.append, most=100)
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        self.address = listener.getsockname()
        self.loop.run_until_complete(self.server.start(listener))

    def run(self, seconds: float = 0.1) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def client(self) -> socket.socket:
        made = socket.create_connection(self.address)
        made.settimeout(2)
        return made


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.server.leave()
    made.server.close_idle()
    made.run(0.05)
    made.loop.close()


def in_thread(call: object) -> None:
    assert callable(call)
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_hundreds_may_connect_while_the_loop_is_busy(served: Served) -> None:
    """Beyond the length of the listener's queue, a client waits a second before it tries again."""
    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection(served.address, timeout=0.5))
        served.run()


def test_a_thread_answers_without_the_loop(served: Served) -> None:
    with served.client() as client:
        client.sendall(REQUEST)
        served.run()
        [message] = served.begun
        in_thread(lambda: message.respond(200, [], b"hello"))
        assert client.recv(65536).endswith(b"\r\n\r\nhello")
        client.sendall(REQUEST)
        served.run()
        assert len(served.begun) == 2


def test_a_late_answer_does_not_reach_the_next_connection_of_its_number(served: Served) -> None:
    client = served.client()
    client.sendall(REQUEST)
    served.run()
    [message] = served.begun
    descriptor = message.connection._descriptor
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, not a farewell
    client.close()
    served.run()
    assert message.connection.is_gone
    ours, theirs = socket.socketpair()
    with ours, theirs:
        os.dup2(ours.fileno(), descriptor)
        try:
            in_thread(lambda: message.respond(200, [], b"of another tenant"))
            served.run()
            theirs.setblocking(False)
            with pytest.raises(BlockingIOError):
                theirs.recv(65536)
        finally:
            os.close(descriptor)


def test_pipelined_requests_are_answered_in_order_whoever_writes(served: Served) -> None:
    with served.client() as client:
        client.sendall(REQUEST * 4)
        served.run()
        for number in range(4):
            message = served.begun[number]
            answer = lambda message=message, number=number: message.respond(200, [], b"n%d" % number)  # noqa: E731
            in_thread(answer) if number % 2 else answer()
            served.run(0.02)
        received = client.recv(65536)
        assert [received.find(b"n%d" % number) for number in range(4)] == sorted(
            received.find(b"n%d" % number) for number in range(4)
        )
        assert received.count(b"HTTP/1.1 200 OK") == 4


def test_only_some_requests_may_wait_on_one_connection(served: Served) -> None:
    with served.client() as client:
        client.sendall(REQUEST * 5_000)
        served.run()
        [message] = served.begun
        assert len(message.connection._waiting) <= MAX_PIPELINED + 1
        for number in range(MAX_PIPELINED + 2):
            if number < len(served.begun):
                current = served.begun[number]
                current.respond(current.refusal.status if current.refusal else 200, [], b"")
            served.run(0.005)
        received = b""
        while piece := client.recv(65536):
            received += piece
        assert received.count(b"HTTP/1.1 200 OK") == MAX_PIPELINED + 1
        assert received.count(b"HTTP/1.1 400 ") == 1
