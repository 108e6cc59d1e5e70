"""Connections of the server: who may write to them, and how much they keep of what was not asked for yet."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from types import SimpleNamespace

import pytest
import uvloop
from django.http import HttpResponse

from platform_site.http.bodies import MAX_ON_LOOP
from platform_site.http.errors import Unavailable
from platform_site.http.event_streams import EventStreamResponse, MessageQueue
from platform_site.server import http_protocol
from platform_site.server.application import Application
from platform_site.server.http_message import EventStream, Message
from platform_site.server.http_parser import MAX_PIPELINED
from platform_site.server.http_protocol import HttpServer
from platform_site.server.request_head import Forwarding
from platform_site.server.thread_shares import ThreadShares

REQUEST = b"GET /v1/rows/tasks HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Served:
    """A server on a free port whose requests wait in `begun`."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self.begun: list[Message] = []
        self.open = ExitStack()
        self.server = HttpServer(self.loop, Forwarding(()), self.begun.append, max_connections=100)
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        self.address = listener.getsockname()
        self.loop.run_until_complete(self.server.start(listener))

    def run(self, seconds: float = 0.1) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def unread_request(self) -> Message:
        """A request whose client will read nothing."""
        client = self.open.enter_context(socket.socket())
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(self.address)
        client.sendall(REQUEST)
        known = len(self.begun)
        while len(self.begun) == known:
            self.run(0.01)
        return self.begun[-1]

    def read(self, client: socket.socket, least: int) -> None:
        """Have the client read so many bytes, while the server runs."""
        while least > 0:
            least -= len(client.recv(1_000_000))
            self.run(0.01)

    def client(self) -> socket.socket:
        made = socket.create_connection(self.address)
        made.settimeout(2)
        return made


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.open.close()
    made.server.stop_listening()
    for connection in made.server.connections:
        connection.abort()
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


def test_connections_that_were_idle_longest_make_room_for_others(served: Served) -> None:
    """Without it, one client could keep all others out with a request per minute on each of its connections."""
    served.server.max_connections = 70
    waiting, stream, fresh = (
        served.unread_request(),
        served.unread_request(),
        served.open.enter_context(served.client()),
    )
    EventStream(stream, EventStreamResponse(MessageQueue(20_000_000)))
    idle = [served.unread_request() for _ in range(67)]
    for message in idle:
        message.respond(HttpResponse(b""))
        served.run(0.002)
    assert len(served.server.connections) == 70
    served.unread_request()
    served.run(0.05)
    assert [each.connection.is_gone for each in idle] == [True] * 64 + [False] * 3
    assert [each.connection.is_gone for each in (waiting, stream)] == [False, False]
    known = len(served.begun)
    fresh.sendall(REQUEST)
    served.run()
    assert len(served.begun) == known + 1


def test_pipelined_requests_are_answered_in_order_whoever_writes(served: Served) -> None:
    with served.client() as client:
        client.sendall(REQUEST * 4)
        served.run()
        for number in range(4):
            message = served.begun[number]
            answer = lambda message=message, number=number: message.respond(HttpResponse(b"n%d" % number))  # noqa: E731
            in_thread(answer) if number % 2 else answer()
            served.run(0.02)  # a thread leaves the writing to the loop
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
        assert len(message.connection._parser.messages) <= MAX_PIPELINED + 1
        for number in range(MAX_PIPELINED + 2):
            if number < len(served.begun):
                current = served.begun[number]
                current.respond(HttpResponse(status=current.refusal.status if current.refusal else 200))
            served.run(0.005)
        received = b""
        while piece := client.recv(65536):
            received += piece
        assert received.count(b"HTTP/1.1 200 OK") == MAX_PIPELINED + 1
        assert received.count(b"HTTP/1.1 400 ") == 1


def post(body: bytes) -> bytes:
    return b"POST /v1/rows/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def test_bodies_behind_an_unfinished_response_are_not_read(served: Served) -> None:
    with served.client() as client:
        client.setblocking(False)
        client.sendall(REQUEST)
        served.run()
        [message] = served.begun
        for piece in [post(b"x" * 500_000)] * 20:
            with suppress(BlockingIOError):
                client.send(piece)
            served.run(0.02)
        connection = message.connection
        kept = sum(len(each.body) for each in connection._parser.messages) + len(connection._parser._body)
        assert kept <= 2**19, "one read, whatever the client sends"
        client.settimeout(2)
        message.respond(HttpResponse(b""))
        served.run()
        assert len(served.begun) == 2, "the next request goes on"


def test_the_slowest_of_many_incomplete_bodies_are_refused(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "MAX_INCOMPLETE", 1_200_000)
    returned = threading.Event()
    monkeypatch.setattr(http_protocol, "return_memory", returned.set)
    clients = []
    for _ in range(4):
        clients.append(served.open.enter_context(served.client()))
        clients[-1].sendall(post(b"x" * 500_000)[:-1])
        served.run()
    served.run(2 * http_protocol._EXPIRY_CHECK_SECONDS)
    assert [type(each.refusal) for each in served.begun] == [Unavailable, Unavailable]
    for client in clients:
        client.sendall(b"x")
    served.run()
    assert [len(each.body) for each in served.begun[2:]] == [500_000, 500_000], "the others go on"
    assert returned.wait(5)


def test_the_last_response_is_read_by_a_client_that_sent_more(served: Served) -> None:
    with served.client() as client:
        client.sendall(REQUEST)
        served.run()
        for _ in range(3):
            client.sendall(REQUEST)
            served.run(0.02)
        served.server.is_stopping = True
        served.begun[0].respond(HttpResponse(b"last"))
        served.run()
        received = b""
        while piece := client.recv(65536):
            received += piece
        assert received.endswith(b"last")


def test_a_large_head_in_one_piece_is_refused(served: Served) -> None:
    headers = b"".join(b"X-H%d: %b\r\n" % (number, b"a" * 1_000) for number in range(90))
    with served.client() as client:
        client.sendall(REQUEST.replace(b"Host", headers + b"Host"))
        served.run()
        assert [message.refusal.status for message in served.begun if message.refusal] == [431]


class Recorded:
    """An application on the loop of a server; what it would run in a thread and on the loop is noted."""

    def __init__(self, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        self.in_thread: list[object] = []
        self.on_loop: list[object] = []
        self.application = Application()
        self.application._loop = served.loop
        self.application._pool = SimpleNamespace(submit=self.in_thread.append)  # type: ignore[assignment]
        self.application._shares = ThreadShares(1, 1.0, served.loop.call_later)
        monkeypatch.setattr(self.application, "_work_on_loop", self.on_loop.append)
        monkeypatch.setattr(served.server, "handle", self.application.handle)


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json; charset=utf-8",
        "text/plain; charset=utf-16",
        "text/plain; charset=rot13",
        "text/plain; charset=undefined",
        "text/plain; a*=nonsense''%41",
        "text/plain; a*=utf-8'%41",
        "; ;=;",
    ],
)
def test_a_request_is_read_whatever_its_content_type(
    served: Served, monkeypatch: pytest.MonkeyPatch, content_type: str
) -> None:
    recorded = Recorded(served, monkeypatch)
    head = "GET /v1/rows/tasks?%s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\n\r\n"
    with served.client() as client:
        client.sendall((head % ("&".join(["a=%41"] * 1_001), content_type)).encode())
        served.run()
        assert len(recorded.on_loop) == 1


@pytest.mark.parametrize(("size", "begun_on_loop"), [(100, True), (MAX_ON_LOOP, True), (MAX_ON_LOOP + 1, False)])
def test_large_bodies_are_answered_in_threads(
    served: Served, monkeypatch: pytest.MonkeyPatch, size: int, begun_on_loop: bool
) -> None:
    recorded = Recorded(served, monkeypatch)
    with served.client() as client:
        client.sendall(post(b"x" * size))
        served.run()
    assert (len(recorded.on_loop), len(recorded.in_thread)) == ((1, 0) if begun_on_loop else (0, 1))


UPGRADE = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
INNER = b"GET /v1/rows/secrets HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: 6.6.6.6\r\n\r\n"
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(INNER), INNER)


@pytest.mark.parametrize(
    "upgrade", [UPGRADE, b"Proxy-Connection: upgrade\r\nUpgrade: websocket\r\n"], ids=["connection", "proxy"]
)
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
@pytest.mark.parametrize(
    ("framing", "body", "expected"),
    [
        (b"Content-Length: %d\r\n" % len(INNER), INNER, INNER),
        (b"Transfer-Encoding: chunked\r\n", CHUNKED, INNER),
        (b"Content-Length: 0\r\n", b"", b""),
        (b"", b"", b""),
    ],
    ids=["length", "chunked", "empty", "none"],
)
@pytest.mark.parametrize("size", [1, 10_000])
def test_an_upgrade_smuggles_no_request_in_its_body(
    served: Served, upgrade: bytes, version: bytes, framing: bytes, body: bytes, expected: bytes, size: int
) -> None:
    """The parser takes the end of such a head as the end of the request; what follows is its body nonetheless."""
    head = b"POST /v1/one HTTP/" + version + b"\r\nHost: localhost\r\nConnection: keep-alive\r\n" + upgrade + framing
    sent = head + b"\r\n" + body + REQUEST
    with served.client() as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(sent), size):
            client.sendall(sent[start : start + size])
            served.run(0)
        served.run(0.02)
        [first] = served.begun
        if version == b"1.0" and b"chunked" in framing:
            assert first.refusal is not None
            assert first.is_last
            return
        assert (first.path, first.body, first.refusal) == ("/v1/one", expected, None)
        first.respond(HttpResponse(b""))
        served.run(0.02)
        assert [each.path for each in served.begun] == ["/v1/one", "/v1/rows/tasks"]


def test_bodies_of_upgrades_have_the_limits_of_others(served: Served) -> None:
    head = b"POST /v1/one HTTP/1.1\r\nHost: localhost\r\n" + UPGRADE
    for framing in (b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", b"Content-Length: 2000000\r\n"):
        with served.client() as client:
            client.sendall(head + framing + b"\r\n" + bytes(2_000_000))
            served.run(0.2)
            message = served.begun.pop()
            assert message.refusal is not None
            assert message.refusal.status == (400 if b"chunked" in framing else 413)
            assert not served.begun
    with served.client() as client:
        client.sendall((head + b"\r\n") * 5_000)
        served.run()
        [message] = served.begun
        assert len(message.connection._parser.messages) <= MAX_PIPELINED + 1


def test_a_response_of_a_thread_follows_one_that_is_not_sent(served: Served) -> None:
    with served.client() as client:
        client.sendall(REQUEST)
        served.run(0.02)
        [connection] = served.server.connections
        transport = connection._transport
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 100_000)
        served.begun[0].respond(HttpResponse(b"A" * 900_000))
        served.run(0.02)
        client.sendall(REQUEST)
        served.run(0.02)
        assert transport.get_write_buffer_size() > 0
        received = b""
        client.settimeout(0.1)
        with suppress(TimeoutError):  # until the socket has room again; the rest waits for the loop
            while True:
                received += client.recv(300_000)
        in_thread(lambda: served.begun[1].respond(HttpResponse(b"SECOND")))
        for _ in range(100):
            served.run(0.005)
            with suppress(TimeoutError):
                received += client.recv(300_000)
            if received.count(b"HTTP/1.1") == 2 and len(received) > 900_000 and received.endswith(b"SECOND"):
                break
        assert b"A" * 900_000 in received


def test_a_value_that_looks_like_a_length_is_no_length(served: Served) -> None:
    with served.client() as client:
        client.sendall(REQUEST)
        served.run()
        served.begun[0].respond(HttpResponse(b"hello", headers={"X-Hook": "Content-Length: 3"}))
        assert b"\r\ncontent-length: 5\r\n" in client.recv(65536)


def test_a_body_of_tiny_chunks_is_read_whole(served: Served) -> None:
    chunk, head = b"2\r\nab\r\n", REQUEST.replace(b"GET", b"POST")[:-2] + b"Transfer-Encoding: chunked\r\n\r\n"
    with served.client() as client:
        client.sendall(head)
        for _ in range(20):
            client.sendall(chunk * 500)
            served.run(0.002)
        [connection] = served.server.connections
        assert connection._parser._body == b"ab" * 10_000
        client.sendall(b"0\r\n\r\n")
        served.run()
        assert served.begun[0].body == b"ab" * 10_000
        assert not connection._parser._body


def test_a_host_that_cannot_be_read_hides_no_other(served: Served) -> None:
    with served.client() as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\xff\r\nHost: localhost\r\n\r\n")
        served.run()
        assert served.begun[0].refusal is not None
        assert served.begun[0].refusal.status == 400


def test_nothing_is_begun_after_a_last_request_that_is_answered_at_once(served: Served) -> None:
    served.server.handle = lambda message: (served.begun.append(message), message.respond(HttpResponse(b"")))
    upgrade = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close, upgrade\r\nUpgrade: h2c\r\n\r\n"
    with served.client() as client:
        client.sendall(upgrade + REQUEST)
        served.run()
        assert [each.path for each in served.begun] == ["/"]


@pytest.mark.parametrize("length", [b"0 ", b" 0\t", b"2 "])
def test_spaces_around_a_length_are_ignored(served: Served, length: bytes) -> None:
    head = REQUEST.replace(b"GET", b"POST")[:-2] + b"Content-Length: " + length + b"\r\n\r\n"
    with served.client() as client:
        client.sendall(head + b"ab"[: int(length)])
        served.run()
        assert served.begun[0].refusal is None
        assert served.begun[0].body == b"ab"[: int(length)]


PAGE = b"A" * 14_000_000


def test_the_kernel_takes_little_of_a_response_that_is_not_read(served: Served) -> None:
    message = served.unread_request()
    message.respond(HttpResponse(PAGE))
    served.run(0.05)
    taken = len(PAGE) - message.connection._transport.get_write_buffer_size()
    assert 0 < taken < 2 * http_protocol.SEND_BUFFER


def test_a_client_that_reads_gets_all_of_a_large_page(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "MAX_UNREAD", len(PAGE) - 1)
    with served.client() as client, client.makefile("rb") as response, ThreadPoolExecutor(1) as threads:
        client.sendall(REQUEST)
        served.run()
        served.begun[0].respond(HttpResponse(PAGE))
        served.server._limit_unread()
        received = threads.submit(lambda: [*iter(response.readline, b"\r\n"), response.read(len(PAGE))])
        while not received.done():
            served.run(0.01)
        is_whole = received.result()[-1] == PAGE
        assert is_whole


def test_a_client_that_reads_is_closed_after_those_that_do_not(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    stalled = served.unread_request()
    stalled.respond(HttpResponse(b"C" * 2_000_000))
    with served.client() as client:
        client.sendall(REQUEST)
        served.run()
        served.begun[-1].respond(HttpResponse(PAGE))
        served.run(0.05)
        served.server._limit_unread()
        served.read(client, 2_000_000)
        left = served.begun[-1].connection._transport.get_write_buffer_size()
        monkeypatch.setattr(http_protocol, "MAX_UNREAD", left + 1)
        served.server._limit_unread()
        served.run(0.05)
        assert left > 2_000_000
        assert [each.connection.is_gone for each in (stalled, served.begun[-1])] == [True, False]


def test_connections_without_unread_bytes_are_never_closed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting, stream = served.unread_request(), served.unread_request()
    EventStream(stream, EventStreamResponse(MessageQueue(20_000_000)))
    with served.client() as client:
        client.sendall(REQUEST)
        served.run()
        reading = served.begun[-1]
        reading.respond(HttpResponse(PAGE))
        served.run(0.05)
        served.server._limit_unread()
        served.read(client, 2_000_000)
        monkeypatch.setattr(http_protocol, "MAX_UNREAD", 0)
        served.server._limit_unread()
        served.run(0.05)
        assert reading.connection.reads
        assert [each.connection.is_gone for each in (waiting, stream, reading)] == [False, False, True]


def test_clients_with_the_most_unread_bytes_are_closed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "MAX_UNREAD", 20_000_000)
    small, large, stream = (served.unread_request() for _ in range(3))
    queue = MessageQueue(20_000_000)
    EventStream(stream, EventStreamResponse(queue))
    queue.put(b"B" * 2_000_000)
    served.run(0.01)
    queue.put(b"B" * 10_000_000)
    small.respond(HttpResponse(b"C" * 1_000_000))
    large.respond(HttpResponse(PAGE))
    for _ in range(2):
        served.server._limit_unread()
    served.run(0.05)
    assert [each.connection.is_gone for each in (small, large, stream)] == [False, True, False]
    monkeypatch.setattr(http_protocol, "MAX_UNREAD", 10_000_000)
    monkeypatch.setattr(http_protocol, "_EXPIRY_CHECK_SECONDS", 0.01)
    returned = threading.Event()
    monkeypatch.setattr(http_protocol, "return_memory", returned.set)
    served.server._limit_unread()
    served.run(0.05)
    assert returned.wait(5)
    assert [each.connection.is_gone for each in (small, stream)] == [False, True]
    assert (queue.is_overflowed, queue.size, stream.connection.stream) == (True, 0, None)


def test_a_client_that_reads_nothing_has_no_more_requests_begun(served: Served) -> None:
    client = served.open.enter_context(socket.socket())
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(served.address)
    for count in range(10):
        client.sendall(REQUEST)
        served.run(0.02)
        if len(served.begun) > count:
            served.begun[-1].respond(HttpResponse(b"x" * 3_000_000))
    assert len(served.begun) == 1


def test_a_stream_whose_client_is_gone_keeps_no_messages(served: Served) -> None:
    stream, queue = served.unread_request(), MessageQueue(20_000_000)
    EventStream(stream, EventStreamResponse(queue))
    queue.put(b"B" * 2_000_000)
    served.run(0.01)
    queue.put(b"B" * 2_000_000)
    assert queue.size
    served.open.close()
    served.run()
    assert (queue.is_closed, queue.is_overflowed, queue.size) == (True, False, 0)


def test_nothing_follows_the_end_of_a_stream(served: Served) -> None:
    """On this connection the next response would begin with it."""
    with served.client() as client:
        client.sendall(REQUEST)
        served.run()
        queue = MessageQueue(1_000)
        EventStream(served.begun[0], EventStreamResponse(queue))
        queue.put(b"data: bye\n\n")
        queue.close()
        served.run()
        assert client.recv(65536).endswith(b"data: bye\n\n\r\n0\r\n\r\n")
        client.sendall(REQUEST)
        served.run()
        served.begun[1].respond(HttpResponse(b"second"))
        assert client.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")
