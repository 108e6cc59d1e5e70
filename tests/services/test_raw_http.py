"""What the server does with bytes that no good client sends and with clients that stall (T11)."""

import contextlib
import re
import resource
import secrets
import socket
import statistics
import time
from contextlib import ExitStack

import httpx
import pytest

from platform_site.server import http_parser, http_protocol
from tests.support.raw_http import HOST, connect, talk
from tests.support.service import Up, start_up
from tests.support.timing import within

pytestmark = pytest.mark.served

GET = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"


def post(*headers: bytes, path: bytes = b"/v1/auth/token") -> bytes:
    return b"POST " + path + b" HTTP/1.1\r\n" + HOST + b"".join(header + b"\r\n" for header in headers) + b"\r\n"


def assert_envelope(answers: object, status: int, code: str) -> None:
    assert answers.statuses == [status], answers  # type: ignore[attr-defined]
    error = answers.body["error"]  # type: ignore[attr-defined]
    assert error["code"] == code
    head = answers.raw.partition(b"\r\n\r\n")[0].lower()  # type: ignore[attr-defined]
    assert f"x-request-id: {error['request_id']}".encode() in head


@pytest.mark.parametrize("order", [0, 1])
def test_a_length_said_twice_smuggles_nothing(served: Up, order: int) -> None:
    headers = [b"Content-Length: 5", b"Transfer-Encoding: chunked"]
    answers = talk(served.base_url, post(*(headers if order else reversed(headers))) + b"0\r\n\r\n" + GET)
    assert len(answers.statuses) == 1, "what follows the body is not a second request"
    assert answers.closed


@pytest.mark.parametrize(
    "head",
    [
        post(b"Content-Length: 5", b"Content-Length: 6"),
        post(b"Content-Length: 5, 6"),
        post(b"Content-Length: -1"),
        post(b"Content-Length: +5"),
        post(b"Content-Length: 0x5"),
        post(b"Content-Length: 99999999999999999999999"),
        post(b"Transfer-Encoding: xchunked"),
        post(b"Transfer-Encoding: gzip"),
        post(b"Transfer-Encoding: chunked, identity"),
        post(b"Transfer-Encoding: gzip, chunked"),
        post(b"Transfer-Encoding: chunked, chunked"),
        b"GET /healthz HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n",
        b"GET /heal thz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /healthz HTTP/3.7\r\nHost: localhost\r\n\r\n",
        b"GET /healthz HTTP/2.0\r\nHost: localhost\r\n\r\n",
        b"GET /healthz\r\n\r\n",
        post(b"Connection: keep-alive", b"Transfer-Encoding: chunked").replace(b"/1.1", b"/1.0") + b"0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500) + b"\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused_and_the_connection_closed(served: Up, head: bytes) -> None:
    answers = talk(served.base_url, head + b"hello" + GET)
    assert answers.statuses in ([400], [413], [])
    assert answers.closed


@pytest.mark.parametrize("digits", [1, 30, 5000])
def test_a_length_may_have_zeros_before_it(served: Up, digits: int) -> None:
    head = post(b"Content-Type: application/json", b"Content-Length: " + b"2".rjust(digits, b"0"))
    plain = talk(served.base_url, post(b"Content-Type: application/json", b"Content-Length: 2") + b"{}")
    assert talk(served.base_url, head + b"{}").statuses == plain.statuses
    assert talk(served.base_url, post(b"Content-Length: " + b"0" * digits)).statuses == [400]


def test_an_upgrade_to_http2_or_websocket_is_not_taken(served: Up) -> None:
    preface = talk(served.base_url, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
    assert preface.statuses in ([], [400])
    assert preface.closed
    for upgrade in (
        b"h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA",
        b"websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: YWJjZGVmZ2hpamtsbW5vcA==",
    ):
        head = b"GET /healthz HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: " + upgrade + b"\r\n\r\n"
        assert talk(served.base_url, head).statuses == [200]


def test_pipelined_requests_are_answered_in_their_order(served: Up) -> None:
    paths = [b"/healthz", b"/v1/one", b"/healthz", b"/v1/two"]
    many = b"".join(
        b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"X-Request-Id: n%d\r\n\r\n" % n for n, path in enumerate(paths)
    )
    answers = talk(served.base_url, many)
    assert answers.statuses == [200, 401, 200, 401] or answers.statuses == [200, 404, 200, 404]
    assert re.findall(rb'"request_id":"(n\d)"', answers.raw) == [b"n1", b"n3"]


def test_two_hosts_two_content_types_and_two_tokens_are_refused(served: Up) -> None:
    twice = b"GET /v1/projects HTTP/1.1\r\n" + HOST + HOST + b"\r\n"
    assert_envelope(talk(served.base_url, twice), 400, "invalid_request")
    kinds = post(b"Content-Type: application/json", b"Content-Type: text/plain", b"Content-Length: 2") + b"{}"
    assert_envelope(talk(served.base_url, kinds), 400, "invalid_request")
    key = served.facts["server_key"].encode()
    tokens = b"GET /v1/projects HTTP/1.1\r\n" + HOST + (b"Authorization: Bearer " + key + b"\r\n") * 2 + b"\r\n"
    assert_envelope(talk(served.base_url, tokens), 401, "unauthorized")
    once = b"GET /v1/projects HTTP/1.1\r\n" + HOST + b"Authorization: Bearer " + key + b"\r\n\r\n"
    assert talk(served.base_url, once).statuses == [200]


def test_a_header_with_underscores_is_not_the_one_with_hyphens(served: Up) -> None:
    key = served.facts["server_key"].encode()
    head = (
        b"GET /v1/projects HTTP/1.1\r\n" + HOST + b"X_Request_Id: forged\r\nAuthorization: Bearer " + key + b"\r\n\r\n"
    )
    answers = talk(served.base_url, head)
    assert answers.statuses == [200]
    assert b"forged" not in answers.raw


@pytest.mark.parametrize(
    ("head", "status", "code"),
    [
        (b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n", 400, "invalid_request"),
        (b"CONNECT localhost:1 HTTP/1.1\r\n" + HOST + b"\r\n", 400, "invalid_request"),
        (b"GET /v1/%00 HTTP/1.1\r\n" + HOST + b"\r\n", 404, "not_found"),
        (b"GET /v1/%ff%fe HTTP/1.1\r\n" + HOST + b"\r\n", 404, "not_found"),
        (b"get /v1/projects HTTP/1.1\r\n" + HOST + b"\r\n", 405, "method_not_allowed"),
        (b"GET /v1/projects HTTP/1.1\r\nHost: evil.example\r\n\r\n", 400, "invalid_request"),
        (b"GET http://evil.example/v1/projects HTTP/1.1\r\n" + HOST + b"\r\n", 400, "invalid_request"),
        (b"GET /v1/projects HTTP/1.1\r\nHost: a b\r\n\r\n", 400, "invalid_request"),
        (b"GET /v1/projects HTTP/1.1\r\n\r\n", 400, "invalid_request"),
        (b"GET /v1/projects HTTP/1.1\r\nHost:\r\n\r\n", 400, "invalid_request"),
        (b"GET /v1/projects HTTP/1.0\r\nHost:\r\n\r\n", 400, "invalid_request"),
        (b"GET http://localhost/v1/projects HTTP/1.1\r\n\r\n", 400, "invalid_request"),
        (b"GET /v1/projects HTTP/1.1\r\nHost: localhost:65536\r\n\r\n", 400, "invalid_request"),
        (b"GET /v1/projects HTTP/1.1\r\nHost: localhost:" + b"1" * 5000 + b"\r\n\r\n", 400, "invalid_request"),
        (b"GET http://localhost:65536/v1/projects HTTP/1.1\r\n" + HOST + b"\r\n", 400, "invalid_request"),
        (b"GET /v1/projects HTTP/1.1\r\nHost: localhost:65535\r\n\r\n", 401, "unauthorized"),
        (b"GET /v1/projects HTTP/1.0\r\n\r\n", 401, "unauthorized"),
        (b"POST /healthz HTTP/1.1\r\n" + HOST + b"Content-Length: 0\r\n\r\n", 405, "method_not_allowed"),
        (b"GET /v1/nothing HTTP/1.1\r\n" + HOST + b"\r\n", 404, "not_found"),
    ],
)
def test_odd_requests_get_the_envelope(served: Up, head: bytes, status: int, code: str) -> None:
    assert_envelope(talk(served.base_url, head), status, code)


@pytest.mark.parametrize("method", [b"get", b"FOO"])
def test_an_unknown_method_gets_those_of_the_service(served: Up, method: bytes) -> None:
    answers = talk(served.base_url, method + b" /v1/projects HTTP/1.1\r\n" + HOST + b"\r\n")
    assert answers.statuses == [405]
    assert b"\r\nallow: get, head, post, put, patch, delete, options\r\n" in answers.raw.lower()


def test_a_head_that_is_too_large_is_refused(served: Up) -> None:
    answers = talk(served.base_url, b"GET /healthz HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 200_000 + b"\r\n\r\n")
    assert answers.statuses in ([431], [400], [])
    assert answers.closed


@pytest.mark.parametrize("size", [http_parser.BODY_LIMIT + 1, 2_000_000])
def test_body_over_1_mb_is_413_whole_or_chunked_and_reaches_the_client(served: Up, size: int) -> None:
    body = b"a" * size
    for content in (body, iter([body[:600_000], body[600_000:]])):
        answer = httpx.post(
            f"{served.base_url}/v1/auth/token", content=content, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "payload_too_large"
    # Like curl: it is refused before it sends.
    asked = talk(served.base_url, post(b"Expect: 100-continue", b"Content-Length: %d" % size))
    assert_envelope(asked, 413, "payload_too_large")


def test_a_body_in_pieces_and_one_that_was_invited_are_read_whole(served: Up) -> None:
    text = b'{"grant_type": "password", "email": "a@example.com", "password": "\xc3\xa9"}'
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (text[:20], text[20:]))
    kind = b"Content-Type: application/json"
    in_pieces = talk(served.base_url, post(kind, b"Transfer-Encoding: chunked"), chunks, b"0\r\n\r\n")
    assert_envelope(in_pieces, 400, "invalid_grant")
    with connect(served.base_url, timeout=30) as invited:
        invited.sendall(post(kind, b"Expect: 100-continue", b"Content-Length: %d" % len(text)))
        assert invited.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        invited.sendall(text)
        assert invited.recv(65536).startswith(b"HTTP/1.1 400 ")


def test_trailers_and_a_broken_chunk_are_not_taken_for_a_whole_body(served: Up) -> None:
    head = post(b"Content-Type: application/json", b"Transfer-Encoding: chunked")
    trailers = talk(served.base_url, head + b"2\r\n{}\r\n0\r\nX-Trailer: a\r\n\r\n")
    assert_envelope(trailers, 400, "invalid_request")
    broken = talk(served.base_url, head + b"2\r\n{}\r\nzz\r\n")
    assert broken.statuses in ([400], [])
    assert broken.closed


def test_head_has_the_headers_of_get_and_no_body(served: Up) -> None:
    static = re.search(r'href="(/static/[^"]+\.css)', httpx.get(f"{served.base_url}/admin/login/").text)
    assert static
    for path in ("/healthz", "/admin/login/", static[1]):
        answer = talk(served.base_url, f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(), GET)
        head, _, rest = answer.raw.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), path
        assert int(re.search(rb"(?i)content-length: (\d+)", head)[1]) > 0  # type: ignore[index]
        assert rest.startswith(b"HTTP/1.1 200"), "the next answer follows at once"


def test_disconnected_client_affects_no_other(served: Up) -> None:
    workers = {worker.pid for worker in served.web_workers()}
    for _ in range(30):
        with connect(served.base_url) as gone:
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # reset instead of farewell
            gone.sendall(post(b"Content-Type: application/json", b"Content-Length: 100") + b'{"a"')
        with connect(served.base_url) as gone:
            gone.sendall(b"GET /admin/login/ HTTP/1.1\r\n" + HOST + b"\r\n")
    assert httpx.get(f"{served.base_url}/v1/projects", headers=bearer(served)).status_code == 200
    assert {worker.pid for worker in served.web_workers()} == workers


def bearer(served: Up) -> dict[str, str]:
    return {"Authorization": f"Bearer {served.facts['server_key']}"}


def test_a_stalled_head_and_stalled_bodies_delay_no_others_and_time_out(served: Up) -> None:
    with contextlib.ExitStack() as stack, httpx.Client(base_url=served.base_url, headers=bearer(served)) as client:
        begun = time.monotonic()
        slow = stack.enter_context(connect(served.base_url, timeout=15))
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: loc")
        stalled = [stack.enter_context(connect(served.base_url, timeout=30)) for _ in range(100)]
        for number, connection in enumerate(stalled):
            length = b"Transfer-Encoding: chunked" if number % 2 else b"Content-Length: 1000"
            connection.sendall(post(b"Content-Type: application/json", length) + (b"5\r\n{" if number % 2 else b"{"))
        took = []
        while time.monotonic() - begun < 5 or len(took) < 100:
            at = time.monotonic()
            assert client.get("/v1/projects").status_code == 200
            took.append(time.monotonic() - at)
            time.sleep(0.02)
        assert statistics.quantiles(took, n=100)[98] < within(0.5)
        assert client.get("/healthz").elapsed.total_seconds() < within(0.1)
        answer = slow.recv(65536)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 408")
        assert time.monotonic() - begun < 10 + within(2)
        for connection in stalled:
            answer = connection.recv(65536)
            assert answer.startswith(b"HTTP/1.1 408"), answer
            assert b'"code":"invalid_request"' in answer
            assert connection.recv(65536) == b"", "and closed"
        assert http_protocol.BODY_SECONDS - 1 < time.monotonic() - begun < http_protocol.BODY_SECONDS + within(2)


def test_a_request_is_answered_beside_thousands_of_connections(served: Up) -> None:
    """As many as streams of live changes may be: each has one for itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = 1_200 * len(served.web_workers())
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, count + 1_000)), hard))
    with ExitStack() as connections:
        for _ in range(count):
            connections.enter_context(connect(served.base_url))
        for _ in range(20):
            assert httpx.get(f"{served.base_url}/healthz", timeout=5).status_code == 200


NON_ASCII = ["São Paulo".encode(), "ö".encode("latin-1"), b"\xff\xfe", b"a\x80b"]


@pytest.mark.parametrize("value", NON_ASCII)
@pytest.mark.parametrize("name", [b"CF-IPCity", b"User-Agent", b"Referer", b"X-Request-Id", b"Accept", b"X-Shop-Name"])
def test_bytes_above_ascii_in_a_header_that_is_not_read_are_ignored(served: Up, name: bytes, value: bytes) -> None:
    for path, status in ((b"/.well-known/jwks.json", 200), (b"/docs", 200), (b"/v1/projects", 401)):
        head = b"GET " + path + b" HTTP/1.1\r\n" + HOST + name + b": " + value + b"\r\nConnection: close\r\n\r\n"
        assert talk(served.base_url, head).statuses == [status], path


def test_a_cookie_with_bytes_above_ascii_does_not_refuse_the_page(served: Up) -> None:
    cookie = b"Cookie: name=Jos\xc3\xa9\r\nConnection: close\r\n\r\n"
    assert talk(served.base_url, b"GET /admin/login/ HTTP/1.1\r\n" + HOST + cookie).statuses == [200]


def test_a_preflight_with_bytes_above_ascii_is_answered(served: Up) -> None:
    head = b"OPTIONS /v1/projects HTTP/1.1\r\n" + HOST + b"Origin: https://app.example\r\nUser-Agent: \xc3\xb6\r\n"
    head += b"Access-Control-Request-Method: GET\r\nConnection: close\r\n\r\n"
    assert talk(served.base_url, head).statuses[0] in (200, 204)


def test_an_inbound_message_keeps_its_readable_headers(served: Up) -> None:
    head = post(b"X-Shop-Name: Caf\xc3\xa9", b"Content-Length: 2", b"Connection: close", path=b"/v1/inbound/in_x")
    assert talk(served.base_url, head + b"{}").statuses == [404], "an unknown token, not a bad request"


@pytest.mark.parametrize("value", NON_ASCII)
def test_bytes_above_ascii_in_a_token_are_unauthorized(served: Up, value: bytes) -> None:
    head = (
        b"GET /v1/projects HTTP/1.1\r\n" + HOST + b"Authorization: Bearer " + value + b"\r\nConnection: close\r\n\r\n"
    )
    answers = talk(served.base_url, head)
    assert_envelope(answers, 401, "unauthorized")
    assert b"www-authenticate:" in answers.raw.lower()


@pytest.mark.parametrize(
    ("header", "status", "field"),
    [(b"Idempotency-Key", 422, "Idempotency-Key"), (b"X-Environment", 404, None), (b"If-Match", 412, None)],
)
def test_bytes_above_ascii_in_a_header_that_is_read_are_its_error(
    served: Up, header: bytes, status: int, field: str | None
) -> None:
    key = str(served.facts["server_key"]).encode()
    row = httpx.get(
        f"{served.base_url}/v1/rows/tasks?limit=1", headers={"Authorization": f"Bearer {key.decode()}"}
    ).json()["data"][0]["id"]
    body = b'{"done": false}'
    head = b"PATCH /v1/rows/tasks/" + row.encode() + b" HTTP/1.1\r\n" + HOST + b"Authorization: Bearer " + key + b"\r\n"
    head += (
        b"Content-Type: application/json\r\nContent-Length: 15\r\nConnection: close\r\n" + header + b": caf\xe9\r\n\r\n"
    )
    answers = talk(served.base_url, head + body)
    assert answers.statuses == [status], answers
    if field is not None:
        assert [each["field"] for each in answers.body["error"]["fields"]] == [field]


def test_a_repeated_header_does_not_hide_one_that_cannot_be_read(served: Up) -> None:
    key = str(served.facts["server_key"]).encode()
    rows = httpx.get(f"{served.base_url}/v1/rows/tasks?limit=1", headers={"Authorization": f"Bearer {key.decode()}"})
    path = b"/v1/rows/tasks/" + rows.json()["data"][0]["id"].encode()
    for header, status in ((b'If-Match: "\xff"', 412), (b"Idempotency-Key: \xff", 422)):
        head = b"PATCH " + path + b" HTTP/1.1\r\n" + HOST + b"Authorization: Bearer " + key + b"\r\n"
        head += b"Accept: a\r\nAccept: b\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
        assert talk(served.base_url, head + header + b"\r\nConnection: close\r\n\r\n{}").statuses == [status], header
    head = b"GET /v1/projects HTTP/1.1\r\n" + HOST + b"Accept: a\r\nAccept: b\r\nAuthorization: Bearer \xff\r\n"
    assert talk(served.base_url, head + b"Connection: close\r\n\r\n").statuses == [401]


@pytest.mark.parametrize("space", [b" ", b"\t", b" \t  "])
def test_whitespace_after_a_value_is_not_a_part_of_it(served: Up, space: bytes) -> None:
    """RFC 9110, 5.5."""
    key, body = served.facts["server_key"].encode(), b"{}"
    head = b"POST /v1/functions/open-tasks/invoke HTTP/1.1\r\n"
    for header in (
        HOST.removesuffix(b"\r\n"),
        b"Authorization: Bearer " + key,
        b"Content-Type: application/json",
        b"Content-Encoding: identity",
        b"Content-Length: %d" % len(body),
        b"Idempotency-Key: " + secrets.token_hex(8).encode(),
        b"X-Environment: " + served.facts["environments"]["production"].encode(),
        b"Connection: close",
    ):
        head += header + space + b"\r\n"
    answers = talk(served.base_url, head + b"\r\n" + body)
    assert answers.statuses == [200], answers.raw


@pytest.mark.parametrize("value", [b"a\x00b", b"a\x01b", b"a\x7fb", b"a\nb", b"a\r b"])
def test_control_characters_in_a_header_are_refused(served: Up, value: bytes) -> None:
    head = b"GET /v1/projects HTTP/1.1\r\n" + HOST + b"X-Shop-Name: " + value + b"\r\nConnection: close\r\n\r\n"
    assert talk(served.base_url, head).statuses in ([400], [])


def test_bytes_above_ascii_in_a_header_name_are_refused(served: Up) -> None:
    head = b"GET /v1/projects HTTP/1.1\r\n" + HOST + b"X-\xc3\xa9: 1\r\nConnection: close\r\n\r\n"
    assert talk(served.base_url, head).statuses in ([400], [])


def test_a_client_address_that_cannot_be_read_is_not_the_proxys(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A client must not leave its own rate limits by what it adds to the header of a trusted proxy."""
    up = start_up(tmp_path_factory.mktemp("proxied") / "data", environment={"TRUSTED_PROXIES": "127.0.0.0/8"})
    try:
        for value, status in ((b"1.2.3.4", 401), (b"\xff, 9.9.9.9", 400)):
            head = (
                b"GET /v1/projects HTTP/1.1\r\n"
                + HOST
                + b"X-Forwarded-For: "
                + value
                + b"\r\nConnection: close\r\n\r\n"
            )
            assert talk(up.base_url, head).statuses == [status], value
    finally:
        assert up.stop() == 0, up.output
