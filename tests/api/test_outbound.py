"""The guarded client against real sockets: every hostile receiver of the webhooks issue, and what a call leaves
behind."""

import gzip
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.conf import LazySettings

from platform_site import outbound
from platform_site.outbound import errors, http_client, resolver, sockets
from platform_site.outbound.resolver import NotResolved
from platform_site.outbound.ssrf import Address, networks
from tests.support.certificates import LOOPBACK, Authority, resolving
from tests.support.receiver import Receiver, answer, dribble, endless, reset, send, silence
from tests.support.timing import within

SLACK = within(0.5)


@pytest.fixture
def client() -> Iterator[outbound.Client]:
    """Loopback opened, as in development."""
    made = outbound.Client(opened=LOOPBACK)
    yield made
    made.close()


def post(client: outbound.Client, receiver: Receiver, **how: Any) -> outbound.Response:
    how.setdefault("total", 5)
    how.setdefault("owner", "")
    return client.request("POST", how.pop("url", None) or receiver.url(), body=how.pop("body", b"{}"), **how)


def timed(act: Callable[[], object]) -> tuple[type[BaseException] | None, float]:
    at = time.monotonic()
    try:
        act()
    except outbound.OutboundError as error:
        failed = error
    else:
        return None, time.monotonic() - at
    assert "127." not in failed.reason, "a reason names no address"
    return type(failed), time.monotonic() - at


# ── What a good call is ──


def test_a_call_arrives_as_it_was_meant(client: outbound.Client) -> None:
    with Receiver(answer("201 Created", b'{"ok":true}', X_Two="a", Set_Cookie="b")) as receiver:
        got = client.request(
            "POST",
            receiver.url("/hook?x=%20ä"),
            headers={"content-type": "application/json", "X-A": "1"},
            body=b"[1]",
            owner="",
        )
        assert (got.status, got.body, got.is_cut) == (201, b'{"ok":true}', False)
        assert got.headers == {"content-length": "11", "x-two": "a", "set-cookie": "b"}
        head, _, body = receiver.requests[0].partition(b"\r\n\r\n")
        assert body == b"[1]"
        assert head.split(b"\r\n") == [
            b"POST /hook?x=%20%C3%A4 HTTP/1.1",
            b"Host: 127.0.0.1:%d" % receiver.port,
            b"Accept-Encoding: identity",
            b"content-type: application/json",
            b"X-A: 1",
            b"Content-Length: 3",
        ]


@pytest.mark.parametrize(
    "headers",
    [{"X-A": "1\r\nX-Evil: 2"}, {"X-A\r\nX-Evil": "1"}, {"X A": "1"}, {"X-A:": "1"}, {"X-A": "\0"}, {"": "1"}],
)
def test_a_header_cannot_add_another(client: outbound.Client, headers: dict[str, str]) -> None:
    with Receiver() as receiver, pytest.raises(ValueError, match="header"):
        post(client, receiver, headers=headers)
    with Receiver() as receiver, pytest.raises(ValueError, match="method"):
        client.request("GET / HTTP/1.1\r\n", receiver.url(), owner="")


@pytest.mark.parametrize("method", ["GET", "DELETE", "POST", "PATCH", "OPTIONS"])
def test_a_body_has_its_length_whatever_the_method(client: outbound.Client, method: str) -> None:
    """Else the receiver would take it for the next request, on a connection that is kept."""
    with Receiver() as receiver:
        for body in (b"GET /forged HTTP/1.1\r\n\r\n", b""):
            assert client.request(method, receiver.url(), body=body, owner="").status == 200
        sized, empty = receiver.requests
        assert sized.endswith(b"\r\nContent-Length: 24\r\n\r\nGET /forged HTTP/1.1\r\n\r\n")
        assert (b"Content-Length: 0" in empty) == (method in ("POST", "PATCH"))
        assert receiver.connections == 1


def test_the_answer_to_head_has_a_length_and_no_body(client: outbound.Client) -> None:
    with Receiver(lambda c: c.sendall(OK + b"Content-Length: 5\r\n\r\n") or True) as receiver:
        for _ in range(2):
            got = client.request("HEAD", receiver.url(), owner="", total=5)
            assert (got.status, got.body, got.headers["content-length"]) == (200, b"", "5")
        assert receiver.connections == 1


def test_a_large_body_goes_out_on_a_kept_connection(client: outbound.Client) -> None:
    with Receiver() as receiver:
        post(client, receiver)
        assert post(client, receiver, body=b"a" * 10_000_000, total=30).status == 200
        assert (len(receiver.requests[1]) > 10_000_000, receiver.connections) == (True, 1)


def test_message_framing_headers_are_set_by_the_platform(client: outbound.Client) -> None:
    framing = {"Host": "evil", "content-length": "999", "Transfer-Encoding": "chunked", "Connection": "close"}
    with Receiver() as receiver:
        assert post(client, receiver, headers=framing).status == 200
        head = receiver.requests[0].lower()
        assert b"evil" not in head
        assert head.count(b"content-length") == 1
        assert b"chunked" not in head


def test_headers_that_came_twice_are_joined_and_chunks_are_put_together(client: outbound.Client) -> None:
    chunks = b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nTrailer: 1\r\n\r\n"
    raw = b"HTTP/1.1 200 OK\r\nVary: a\r\nvary: b\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
    with Receiver(lambda connection: connection.sendall(raw) or True) as receiver:
        for _ in range(2):
            got = post(client, receiver)
            assert got.body == b"hello world"
            assert got.headers["vary"] == "a, b"
        assert receiver.connections == 1


def test_a_204_has_no_body_and_keeps_its_connection(client: outbound.Client) -> None:
    with Receiver(lambda c: c.sendall(b"HTTP/1.1 204 No Content\r\n\r\n") or True) as receiver:
        assert [post(client, receiver).body for _ in range(3)] == [b"", b"", b""]
        assert receiver.connections == 1


@pytest.mark.parametrize("status", [200, 204, 301, 302, 303, 307, 308, 400, 404, 410, 429, 500, 503])
def test_every_status_is_an_answer_and_no_redirect_is_followed(client: outbound.Client, status: int) -> None:
    with Receiver() as private, Receiver() as receiver:
        receiver.behave = answer(f"{status} Whatever", Location=private.url("/inner"), Retry_After="120")
        got = post(client, receiver)
        assert got.status == status
        assert got.headers["retry-after"] == "120"
        assert len(receiver.requests) == 1
        assert private.connections == 0


def test_no_proxy_of_the_environment_is_asked(client: outbound.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    with Receiver() as proxy, Receiver() as receiver:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert post(client, receiver).status == 200
        assert proxy.connections == 0


# ── Where a call may go ──


@pytest.fixture
def canaries() -> Iterator[tuple[Receiver, Receiver]]:
    """Two listeners on every address of this machine; neither may ever hear anything."""
    with Receiver(host="0.0.0.0") as four, Receiver(host="::") as six:  # noqa: S104
        yield four, six
        assert four.connections == six.connections == 0


FORMS = [
    "127.0.0.1", "127.1.2.3", "0.0.0.0", "localhost", "LOCALHOST", "localhost.", "[::1]", "[::]",  # noqa: S104
    "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[0:0:0:0:0:ffff:127.0.0.1]", "[64:ff9b::7f00:1]",
    "[2002:7f00:1::]", "[fe80::1]", "[fec0::1]", "2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1",
    "017700000001", "127.1", "127.0.1", "①②⑦.⓪.⓪.①", "127。0。0。1", "user@127.0.0.1", "example.com@127.0.0.1",
    "127.0.0.1%00.example.com", "169.254.169.254", "[fd00:ec2::254]",
]  # fmt: skip


@pytest.mark.parametrize("host", FORMS)
def test_an_inner_host_is_refused_before_a_packet_is_sent(host: str, canaries: tuple[Receiver, Receiver]) -> None:
    guarded = outbound.Client()
    for canary in canaries:
        for scheme in ("http", "https"):
            with pytest.raises(errors.Forbidden) as told:
                guarded.request("POST", f"{scheme}://{host}:{canary.port}/", total=2, owner="")
            assert not isinstance(told.value, outbound.RequestTimedOut)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://127.0.0.1/", "file:///etc/passwd", "http://127.0.0.1:22/", "http://127.0.0.1:6379/",
        "http://127.0.0.1:5432/", "http://user:pw@127.0.0.1/", "http://127.0.0.1/" + "a" * 3000, "http:///x",
    ],
)  # fmt: skip
def test_forbidden_url_is_refused_even_in_an_allowed_network(client: outbound.Client, url: str) -> None:
    with pytest.raises(errors.Forbidden):
        client.request("GET", url, owner="")


def test_a_name_that_resolves_to_an_inner_address_is_refused(canaries: tuple[Receiver, Receiver]) -> None:
    for private in ("127.0.0.1", "10.0.0.1", "::1", "::ffff:127.0.0.1", "169.254.169.254", "64:ff9b::7f00:1"):
        guarded = outbound.Client(resolve=resolving([private]))
        with pytest.raises(errors.Forbidden):
            guarded.request("POST", f"http://innocent.example:{canaries[0].port}/", total=2, owner="")


def test_of_several_addresses_only_the_allowed_ones_are_tried(canaries: tuple[Receiver, Receiver]) -> None:
    with Receiver(host="127.0.0.2") as receiver, Receiver(host="127.0.0.1", port=receiver.port) as inner:
        only = outbound.Client(opened=networks(("127.0.0.2/32",)), resolve=resolving(["127.0.0.1", "127.0.0.2"]))
        got = only.request("POST", f"http://innocent.example:{receiver.port}/", total=2, owner="")
        assert (got.status, inner.connections) == (200, 0)
        assert b"Host: innocent.example:" in receiver.requests[0]
    # The port of the canary listens on 127.0.0.2 as well as on 127.0.0.1: closed addresses are skipped, not tried.
    none = outbound.Client(resolve=resolving(["127.0.0.1", "127.0.0.2", "::1"]))
    with pytest.raises(errors.Forbidden):
        none.request("POST", f"http://innocent.example:{canaries[0].port}/", total=2, owner="")


def test_an_unreachable_address_leaves_time_for_the_next(client: outbound.Client) -> None:
    with Receiver(host="127.0.0.3") as receiver:
        several = outbound.Client(opened=LOOPBACK, resolve=resolving(["127.0.0.2", "127.0.0.3"]))
        assert several.request("POST", f"http://a.example:{receiver.port}/", total=2, owner="").status == 200


def test_an_address_that_says_nothing_leaves_time_for_the_next() -> None:
    with Receiver(host="127.0.0.3") as receiver, full_queue("127.0.0.2", receiver.port):
        several = outbound.Client(opened=LOOPBACK, resolve=resolving(["127.0.0.2", "127.0.0.3"]))
        assert several.request("POST", f"http://a.example:{receiver.port}/", connect=3, owner="").status == 200


def test_an_address_of_ipv6_is_called(client: outbound.Client) -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server, ThreadPoolExecutor(1) as thread:

        def serve() -> bytes:
            connection, _ = server.accept()
            with connection:
                asked = connection.recv(10_000)
                connection.sendall(OK + b"Content-Length: 0\r\n\r\n")
                return asked

        serving, port = thread.submit(serve), server.getsockname()[1]
        assert client.request("GET", f"http://[::1]:{port}/", owner="", total=5).status == 200
        assert f"\r\nHost: [::1]:{port}\r\n".encode() in serving.result(5)


def test_a_name_that_changes_its_address_is_checked_at_each_connection(canaries: tuple[Receiver, Receiver]) -> None:
    """Rebinding: the answer that was checked is the one connected to, and a second answer is a second check."""
    with Receiver(host="127.0.0.2") as receiver:
        answers = resolving(["127.0.0.2"], ["127.0.0.1"])
        guarded = outbound.Client(opened=networks(("127.0.0.2/32",)), resolve=answers)
        url = f"http://rebind.example:{receiver.port}/"
        assert guarded.request("POST", url, total=2, owner="").status == 200
        assert guarded.request("POST", url, total=2, owner="").status == 200, (
            "the kept connection goes where it was checked"
        )
        guarded.close()
        with pytest.raises(errors.Forbidden):
            guarded.request("POST", url, total=2, owner="")
        assert receiver.connections == 1


def test_names_that_nobody_knows_and_name_servers_that_never_answer() -> None:
    def unknown(host: str, port: int, deadline: float, owner: str) -> list[Address]:
        raise NotResolved

    def silent(host: str, port: int, deadline: float, owner: str) -> list[Address]:
        time.sleep(max(0, deadline - time.monotonic()))
        raise TimeoutError

    with pytest.raises(errors.Unresolved):
        outbound.Client(resolve=unknown).request("GET", "https://a.example/", owner="")
    kind, seconds = timed(
        lambda: outbound.Client(resolve=silent).request("GET", "https://a.example/", connect=0.2, owner="")
    )
    assert kind is outbound.RequestTimedOut
    assert seconds < 0.2 + SLACK
    with pytest.raises(errors.Unresolved):
        outbound.Client().request("GET", "https://not-there.invalid/", owner="")


def test_unresolvable_name_takes_no_slot_of_a_later_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as full:

        def start(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        full.setattr(threading.Thread, "start", start)
        for _ in range(resolver.MAX_PENDING + 1):
            with pytest.raises(NotResolved):
                resolver.resolve("localhost", 80, time.monotonic() + 0.1, "")
    assert resolver.resolve("localhost", 80, time.monotonic() + within(5), "")


def test_name_servers_that_never_answer_hold_a_bounded_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()

    def swallowed(*_: object, **__: object) -> list[Any]:
        answered.wait(60)
        raise OSError

    def asking() -> int:
        return sum(thread.name == "resolve" for thread in threading.enumerate())

    before = asking()
    monkeypatch.setattr(socket, "getaddrinfo", swallowed)
    for number in range(resolver.MAX_PENDING + 3):
        with pytest.raises(TimeoutError):
            resolver.resolve("a.example", 80, time.monotonic() + 0.005, f"env_{number}")
    assert asking() - before <= resolver.MAX_PENDING
    answered.set()
    _until(lambda: asking() <= before)
    with pytest.raises(NotResolved):
        resolver.resolve("a.example", 80, time.monotonic() + within(5), "")


def test_a_tenant_whose_names_nobody_answers_keeps_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    answered, real = threading.Event(), socket.getaddrinfo

    def swallowed(host: str, *given: Any, **named: Any) -> list[Any]:
        if host == "localhost":
            return real(host, *given, **named)
        answered.wait(60)
        raise OSError

    monkeypatch.setattr(socket, "getaddrinfo", swallowed)
    client = outbound.Client(opened=LOOPBACK)
    try:
        with Receiver() as receiver:
            for number in range(resolver.MAX_PENDING + 3):
                with pytest.raises(outbound.RequestTimedOut):
                    client.request("GET", f"http://{number}.example/", owner="env_a", total=0.005)
            url = receiver.url("/").replace("127.0.0.1", "localhost")
            assert client.request("GET", url, owner="env_b").status == 200
            with pytest.raises(outbound.RequestTimedOut):
                client.request("GET", url, owner="env_a", total=0.05)
    finally:
        answered.set()
        _until(lambda: all(thread.name != "resolve" for thread in threading.enumerate()))
        client.close()


def test_unresolved_names_of_many_tenants_delay_no_known_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answered, real = threading.Event(), socket.getaddrinfo

    def swallowed(host: str, *given: Any, **named: Any) -> list[Any]:
        if host == "localhost":
            return real(host, *given, **named)
        answered.wait(60)
        raise OSError

    monkeypatch.setattr(socket, "getaddrinfo", swallowed)
    monkeypatch.setattr(resolver, "_semaphore", resolver._new_semaphore())
    client = outbound.Client(opened=LOOPBACK)
    try:
        with Receiver() as receiver:
            url = receiver.url("/").replace("127.0.0.1", "localhost")
            assert client.request("GET", url, owner="env_honest").status == 200
            client.close()
            for number in range(resolver.MAX_PENDING * 2):
                with pytest.raises(outbound.RequestTimedOut):
                    client.request("GET", f"http://{number}.example/", owner=f"env_{number % 100}", total=0.005)
            assert client.request("GET", url, owner="env_honest").status == 200
            with pytest.raises(outbound.RequestTimedOut):
                client.request("GET", url, owner="env_newcomer", total=0.05)
    finally:
        answered.set()
        _until(lambda: all(thread.name != "resolve" for thread in threading.enumerate()))
        client.close()


def test_the_client_of_the_process_follows_the_settings(settings: LazySettings) -> None:
    with Receiver() as receiver:
        settings.OUTBOUND_ALLOWED_NETWORKS = []
        with pytest.raises(errors.Forbidden):
            outbound.client().request("GET", receiver.url(), owner="")
        settings.OUTBOUND_ALLOWED_NETWORKS = ["127.0.0.0/8"]
        assert outbound.client().request("GET", receiver.url(), owner="").status == 200
        assert outbound.client() is outbound.client()


# ── Receivers that are slow, loud or wrong: each call ends in time ──

OK = b"HTTP/1.1 200 OK\r\n"
HOSTILE: dict[str, tuple[Callable[[socket.socket], object], type[Exception] | None]] = {
    "never answers": (silence, outbound.RequestTimedOut),
    "slow headers": (dribble(OK + b"X-A: " + b"a" * 1000, 0.02), outbound.RequestTimedOut),
    "slow body": (dribble(OK + b"Content-Length: 1000\r\n\r\n" + b"a" * 1000, 0.02), outbound.RequestTimedOut),
    "body that never ends, unannounced": (endless(OK + b"\r\n", b"a" * 65536), None),
    "body that never ends, in chunks": (
        endless(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"8000\r\n" + b"a" * 32768 + b"\r\n"),
        None,
    ),
    "chunks of one byte": (endless(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n" * 1000), None),
    "100 MB body": (endless(OK + b"Content-Length: 104857600\r\n\r\n", b"a" * 65536), None),
    "headers that never end": (endless(OK, b"X-A: aaaaaaaaaaaaaaaaaaaaa\r\n" * 100), errors.InvalidResponse),
    "a header line that never ends": (endless(OK + b"X-A: ", b"a" * 65536), errors.InvalidResponse),
    "a status line that never ends": (endless(b"HTTP/1.1 200 ", b"a" * 65536), errors.InvalidResponse),
    "interim responses that never end": (
        endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
        errors.InvalidResponse,
    ),
    "trailers that never end": (
        endless(OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X-A: a\r\n" * 1000),
        errors.InvalidResponse,
    ),
    "a chunk size that never ends": (
        endless(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"0" * 65536),
        errors.InvalidResponse,
    ),
    "a chunk size that is none": (send(OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"), errors.InvalidResponse),
    "a chunk size below zero": (send(OK + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nabc"), errors.InvalidResponse),
    "garbage": (send(bytes(range(256)) * 10), errors.InvalidResponse),
    "another protocol": (send(b"SSH-2.0-OpenSSH_9.6\r\n"), errors.InvalidResponse),
    "HTTP/2 of its own accord": (send(b"HTTP/2 200\r\n\r\n"), errors.InvalidResponse),
    "a status that is none": (send(b"HTTP/1.1 abc OK\r\n\r\n"), errors.InvalidResponse),
    "a status of one digit": (send(b"HTTP/1.1 9 OK\r\n\r\n"), errors.InvalidResponse),
    "switching protocols": (send(b"HTTP/1.1 101 Switching Protocols\r\n\r\n"), errors.InvalidResponse),
    "nothing": (send(b""), errors.ConnectionBroken),
    "a reset": (reset, errors.ConnectionBroken),
    "half a status line": (send(b"HTTP/1."), errors.InvalidResponse),
    "half a body": (send(OK + b"Content-Length: 100\r\n\r\nabc"), errors.InvalidResponse),
    "half a chunk": (send(OK + b"Transfer-Encoding: chunked\r\n\r\n64\r\nabc"), errors.InvalidResponse),
    "a length that is none": (send(OK + b"Content-Length: -1\r\n\r\n"), None),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_receiver_costs_a_bounded_time_and_memory(client: outbound.Client, name: str) -> None:
    behave, expected = HOSTILE[name]
    process = psutil.Process()
    with Receiver(behave) as receiver:
        before = process.memory_info().rss
        kind, seconds = timed(lambda: post(client, receiver, total=1.0))
        assert kind is expected
        assert seconds < 1.0 + SLACK
        assert process.memory_info().rss - before < 20 * 2**20
        assert not client._idle, "no such connection is used again"


def test_a_long_body_is_cut_and_a_body_of_exactly_the_limit_is_not(client: outbound.Client) -> None:
    for length, is_cut in ((65536, False), (65537, True), (10_000_000, True)):
        with Receiver(answer(body=b"a" * length)) as receiver:
            got = post(client, receiver)
            assert (len(got.body), got.is_cut) == (min(length, 65536), is_cut)
    with Receiver(answer(body=b"abcdef")) as receiver:
        got = post(client, receiver, limit=3)
        assert (got.body, got.is_cut) == (b"abc", True)
        assert post(client, receiver, limit=6).body == b"abcdef"


def test_a_gzip_bomb_stays_packed(client: outbound.Client) -> None:
    bomb = gzip.compress(b"\0" * 50_000_000)
    before = psutil.Process().memory_info().rss
    with Receiver(answer(body=bomb, Content_Encoding="gzip")) as receiver:
        got = post(client, receiver)
    assert got.body == bomb[:65536]
    assert psutil.Process().memory_info().rss - before < 20 * 2**20


def test_a_receiver_that_does_not_read_is_left_in_time(client: outbound.Client) -> None:
    stop = threading.Event()
    with Receiver(first=lambda connection: stop.wait(10)) as receiver:
        kind, seconds = timed(lambda: post(client, receiver, body=b"a" * 30_000_000, total=1))
        stop.set()
    assert kind is outbound.RequestTimedOut
    assert seconds < 1 + SLACK


def test_an_answer_that_comes_before_the_body_was_read_is_no_crash(client: outbound.Client) -> None:
    def refuse(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        connection.close()

    with Receiver(first=refuse) as receiver:
        kind, seconds = timed(lambda: post(client, receiver, body=b"a" * 20_000_000, total=2))
    assert kind in {None, errors.ConnectionBroken}
    assert seconds < 2 + SLACK


def test_a_closed_port_and_a_full_queue(client: outbound.Client) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        kind, seconds = timed(lambda: client.request("GET", f"http://127.0.0.1:{port}/", owner=""))
        assert kind is errors.Refused
    with full_queue("127.0.0.1", port):
        for limits in ({"connect": 0.3}, {"connect": 10, "total": 0.3}, {"total": 0}):
            kind, seconds = timed(
                lambda limits=limits: client.request("GET", f"http://127.0.0.1:{port}/", owner="", **limits)
            )
            assert kind is outbound.RequestTimedOut
            assert seconds < 0.3 + SLACK


@contextmanager
def full_queue(host: str, port: int) -> Iterator[None]:
    """A port that listens without accepting: connections are not answered."""
    with ExitStack() as held:
        server = held.enter_context(socket.socket())
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((host, port))
        server.listen(0)
        for _ in range(4):
            one = held.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex((host, port))
        yield


# ── TLS ──


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_certificate_is_checked_for_the_host_name_not_the_ip_address(authority: Authority) -> None:
    context = authority.server("hooks.example")
    named: list[str | None] = []
    context.sni_callback = lambda socket_, name, context_: named.append(name)
    with Receiver(tls=context) as receiver:
        client = authority.client()
        for _ in range(3):
            assert client.request("POST", receiver.url(host="hooks.example"), body=b"{}", owner="").status == 200
        assert named == ["hooks.example"]
        assert receiver.connections == 1, "TLS connections are kept as well"
        assert b"Host: hooks.example:" in receiver.requests[0]


def test_an_address_in_the_certificate_counts_as_well(authority: Authority) -> None:
    with Receiver(tls=authority.server("127.0.0.1")) as receiver:
        assert authority.client().request("GET", receiver.url(), owner="").status == 200


def test_a_certificate_that_is_not_valid_is_no_connection(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other")
    for context in (
        authority.server("other.example"),
        authority.server("hooks.example", days=-1),
        stranger.server("hooks.example"),
    ):
        with Receiver(tls=context) as receiver:
            with pytest.raises(errors.Insecure):
                authority.client().request("POST", receiver.url(host="hooks.example"), body=b"{}", owner="")
            assert receiver.requests == [], "nothing was said to it"
    # The trust of production does not know this authority either.
    with Receiver(tls=authority.server("127.0.0.1")) as receiver, pytest.raises(errors.Insecure):
        outbound.Client(opened=LOOPBACK).request("GET", receiver.url(), owner="")


def test_what_speaks_no_tls_or_only_an_old_one_is_no_connection(authority: Authority) -> None:
    with Receiver(first=send(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as plain, pytest.raises(errors.Insecure):
        authority.client().request("GET", f"https://hooks.example:{plain.port}/", total=2, owner="")
    with Receiver(first=lambda connection: connection.sendall(b"\x15\x03\x01\x00\x02\x02\x28")) as alert:
        with pytest.raises(errors.Insecure):
            authority.client().request("GET", f"https://hooks.example:{alert.port}/", total=2, owner="")
    with Receiver(first=lambda connection: time.sleep(2)) as mute:
        kind, seconds = timed(
            lambda: authority.client().request("GET", f"https://hooks.example:{mute.port}/", connect=0.3, owner="")
        )
        assert kind is outbound.RequestTimedOut
        assert seconds < 0.3 + SLACK


def test_slow_and_endless_bodies_end_in_time_over_tls_too(authority: Authority) -> None:
    for name in ("slow body", "slow headers", "never answers", "body that never ends, unannounced"):
        behave, expected = HOSTILE[name]
        with Receiver(behave, tls=authority.server("hooks.example")) as receiver:
            client = authority.client()
            kind, seconds = timed(
                lambda c=client, r=receiver: c.request(
                    "POST", r.url(host="hooks.example"), body=b"{}", total=1, owner=""
                )  # type: ignore[misc]
            )
            assert kind is expected, name
            assert seconds < 1 + SLACK


# ── Connections that are kept ──


def test_a_connection_is_kept_per_host_and_closed_when_the_answer_says_so(client: outbound.Client) -> None:
    with Receiver() as receiver:
        for _ in range(5):
            assert post(client, receiver).status == 200
        assert receiver.connections == 1
        receiver.behave = answer(Connection="close")
        for _ in range(3):
            assert post(client, receiver).status == 200
        assert receiver.connections == 3


def test_a_call_that_was_interrupted_before_is_not_made(client: outbound.Client) -> None:
    interruption = outbound.Interruption()
    interruption.interrupt()
    with Receiver() as receiver:
        with pytest.raises(errors.ConnectionBroken):
            post(client, receiver, interruption=interruption)
        assert receiver.connections == 0


def test_a_connection_serves_one_port_and_scheme(client: outbound.Client) -> None:
    with Receiver() as one, Receiver() as other:
        for receiver in (one, other):
            assert post(client, receiver).status == 200
        assert (one.connections, other.connections) == (1, 1)
        with pytest.raises(outbound.OutboundError):  # it speaks no TLS
            post(client, one, url=f"https://127.0.0.1:{one.port}/", connect=0.2)


def test_a_connection_the_receiver_closed_meanwhile_is_not_used(client: outbound.Client) -> None:
    with Receiver() as receiver:
        for expected in (1, 2, 3):
            assert post(client, receiver).status == 200
            assert receiver.connections == expected
            receiver.hang_up()
            _until(lambda: _is_dead(client))


def _is_dead(client: outbound.Client) -> bool:
    return all(sockets.is_stale(one.connection) for one in client._idle)


def _until(holds: Callable[[], bool], seconds: float = 5) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_lost_connection_is_replaced_when_a_retry_is_safe(client: outbound.Client) -> None:
    """The receiver closes just as the next request is on its way: nothing came back on it."""
    with Receiver() as receiver:
        answers = iter([answer(), send(b""), answer(), send(b""), answer(), send(b"")])
        receiver.behave = lambda connection: next(answers)(connection)
        assert client.request("GET", receiver.url(), owner="").status == 200
        assert client.request("GET", receiver.url(), owner="").status == 200, "made again on a new connection"
        with pytest.raises(errors.ConnectionBroken):
            post(client, receiver)
        assert post(client, receiver).status == 200
        with pytest.raises(errors.ConnectionBroken):  # the second answer in a row is none
            post(client, receiver, is_repeatable=False)


@pytest.mark.parametrize("said", [b"HTTP/1.1 2", OK, OK + b"Content-Le", OK + b"Content-Length: 0\r\n"])
def test_a_call_that_was_answered_in_part_is_none_and_is_not_made_again(client: outbound.Client, said: bytes) -> None:
    with Receiver() as receiver:
        for end in (send(said), lambda connection: (connection.sendall(said), time.sleep(0.1), reset(connection))):
            answers = iter([answer(), end, answer()])
            receiver.behave = lambda connection, answers=answers: next(answers)(connection)
            before = len(receiver.requests)
            assert client.request("GET", receiver.url(), owner="").status == 200
            with pytest.raises((errors.InvalidResponse, errors.ConnectionBroken)):
                client.request("GET", receiver.url(), owner="")
            assert len(receiver.requests) == before + 2


def test_a_post_is_made_again_only_if_it_says_so(client: outbound.Client) -> None:
    with Receiver() as receiver:
        answers = iter([answer(), send(b""), answer()])
        receiver.behave = lambda connection: next(answers)(connection)
        assert post(client, receiver).status == 200
        assert post(client, receiver, is_repeatable=True).status == 200
        assert len(receiver.requests) == 3


def test_bytes_that_come_after_an_answer_belong_to_no_other(client: outbound.Client) -> None:
    forged = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"
    with Receiver(lambda c: c.sendall(OK + b"Content-Length: 4\r\n\r\ntrue" + forged) or True) as receiver:
        for _ in range(3):
            assert post(client, receiver).body == b"true"


def test_connections_are_not_shared_between_tenants(client: outbound.Client) -> None:
    with Receiver() as receiver:
        for owner in ("env_a", "env_b", "env_a", "env_b", ""):
            assert post(client, receiver, owner=owner).status == 200
        assert receiver.connections == 3


def test_an_idle_connection_is_given_up_before_the_receiver_does(
    client: outbound.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "IDLE_SECONDS", 0.05)
    with Receiver() as receiver:
        post(client, receiver)
        time.sleep(0.06)
        post(client, receiver)
        assert receiver.connections == 2


def idle_count(client: outbound.Client) -> int:
    return len(client._idle)


def test_threads_share_a_client_with_a_bounded_number_of_connections(client: outbound.Client) -> None:
    with Receiver() as receiver, ThreadPoolExecutor(32) as pool:

        def call(n: int) -> bool:
            got = client.request("POST", receiver.url(f"/{n}"), body=b"%d" % n, owner="")
            return got.status == 200

        assert all(pool.map(call, range(1000)))
        assert len(receiver.requests) == 1000
        assert idle_count(client) <= http_client._IDLE_PER_HOST


def test_a_thousand_hosts_leave_no_thousand_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "_IDLE_IN_ALL", 10)
    client = outbound.Client(opened=LOOPBACK, resolve=resolving(["127.0.0.1"]))
    with Receiver() as receiver:
        for n in range(40):
            assert client.request("GET", f"http://host-{n}.example:{receiver.port}/", owner="").status == 200
        assert idle_count(client) <= 10
    before = psutil.Process().num_fds()
    client.close()
    assert psutil.Process().num_fds() < before
    assert idle_count(client) == 0


def test_idle_connections_are_closed_for_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "_IDLE_IN_ALL", 2)
    monkeypatch.setattr(http_client, "IDLE_SECONDS", 0.2)
    client = outbound.Client(opened=LOOPBACK, resolve=resolving(["127.0.0.1"]))
    with Receiver() as receiver:

        def call(host: str) -> None:
            assert client.request("GET", f"http://{host}.example:{receiver.port}/", owner="").status == 200

        for _ in range(3):
            call("a")
            call("b")
            assert idle_count(client) == 2
            call("c")  # nowhere to keep it
            assert {one.key[2] for one in client._idle} == {"a.example", "b.example"}
            time.sleep(0.25)  # now they are old
            call("c")
            assert ({one.key[2] for one in client._idle}, idle_count(client)) == ({"c.example"}, 1)
            time.sleep(0.25)
            call("d")
            assert {one.key[2] for one in client._idle} <= {"c.example", "d.example"}
            time.sleep(0.25)
    client.close()


def test_a_failed_call_leaves_no_descriptor_behind(client: outbound.Client, authority: Authority) -> None:
    def fail() -> None:
        for behave in (send(b""), send(b"garbage\r\n\r\n"), reset):
            with Receiver(behave) as receiver:
                timed(lambda r=receiver: post(client, r))  # type: ignore[misc]
        with Receiver(first=send(b"no TLS here")) as plain:
            timed(lambda: authority.client().request("GET", f"https://hooks.example:{plain.port}/", total=2, owner=""))

    threads = threading.active_count()  # those of other tests among them
    fail()
    _until(lambda: threading.active_count() < threads + 10)
    before = psutil.Process().num_fds()
    for _ in range(10):
        fail()
    _until(lambda: psutil.Process().num_fds() <= before + 2)


def test_a_fork_uses_none_of_its_parents_connections(settings: LazySettings) -> None:
    settings.OUTBOUND_ALLOWED_NETWORKS = ["127.0.0.0/8"]
    with Receiver() as receiver:
        assert outbound.client().request("GET", receiver.url(), owner="").status == 200
        child = os.fork()
        if child == 0:
            os._exit(0 if not outbound.client()._idle else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert outbound.client().request("GET", receiver.url(), owner="").status == 200
        assert receiver.connections == 1
