"""The request as Django sees it: names of headers, repeated ones, and whose word about the client counts."""

from typing import Any

import pytest

from platform_site.server import request_head
from platform_site.server.http_message import Message
from platform_site.server.http_parser import RequestParser
from platform_site.server.incoming import Incoming
from platform_site.server.request_head import Forwarding, host_of, meta_name


def head(*lines: str) -> Message:
    """A request with these headers, as parsed."""
    parser = RequestParser(lambda message: None)
    parser.feed("".join(f"{line}\r\n" for line in ("GET / HTTP/1.1", *lines, "")).encode())
    [message] = parser.messages
    return message


def headers_of(message: Message) -> dict[str, Any]:
    return {name: value for name, value in message.meta.items() if name.startswith(("HTTP_", "CONTENT_"))}


def test_a_repeated_header_is_joined_and_named() -> None:
    message = head("Authorization: Bearer a", "accept: x", "authorization: Bearer b", "Cookie: a=1", "cookie: b=2")
    assert message.repeated == {"authorization", "cookie"}
    assert headers_of(message) == {
        "HTTP_AUTHORIZATION": "Bearer a,Bearer b",
        "HTTP_ACCEPT": "x",
        "HTTP_COOKIE": "a=1; b=2",
    }


@pytest.mark.parametrize(
    "header", ["x_forwarded_for", "content_length", "x-forwarded-for", "x-forwarded-proto", "forwarded", "x-real-ip"]
)
def test_underscores_and_forwarding_headers_never_reach_meta(header: str) -> None:
    message = head(f"{header}: 10.0.0.1")
    assert headers_of(message) == {}
    assert message.not_in_meta == [(header, "10.0.0.1")]


def test_content_type_and_length_have_their_own_names() -> None:
    assert (meta_name("content-type"), meta_name("content-length"), meta_name("x-a")) == (
        "CONTENT_TYPE",
        "CONTENT_LENGTH",
        "HTTP_X_A",
    )


@pytest.mark.parametrize(
    ("trusted", "peer", "forwarded_for", "client"),
    [
        ((), "10.0.0.9", "1.2.3.4", "10.0.0.9"),
        (("10.0.0.0/8",), "11.0.0.9", "1.2.3.4", "11.0.0.9"),
        (("10.0.0.0/8",), "10.0.0.9", "1.2.3.4", "1.2.3.4"),
        (("10.0.0.0/8",), "10.0.0.9", "6.6.6.6, 1.2.3.4", "1.2.3.4"),
        (("10.0.0.0/8",), "10.0.0.9", "6.6.6.6, 1.2.3.4, 10.0.0.8", "1.2.3.4"),
        (("10.0.0.0/8",), "10.0.0.9", "10.0.0.7, 10.0.0.8", "10.0.0.7"),
        (("10.0.0.0/8",), "10.0.0.9", "1.2.3.4, unknown", "10.0.0.9"),
        (("10.0.0.0/8",), "10.0.0.9", "1.2.3.4:5678", "1.2.3.4"),
        (("10.0.0.0/8",), "10.0.0.9", "[2001:db8::1]:99", "2001:db8::1"),
        (("10.0.0.0/8",), "::ffff:10.0.0.9", "1.2.3.4", "1.2.3.4"),
        (("::1",), "::1", "2001:db8::1", "2001:db8::1"),
        (("10.0.0.0/8",), "10.0.0.9", "", "10.0.0.9"),
    ],
)
def test_client_ip_is_the_last_address_not_of_a_trusted_proxy(
    trusted: tuple[str, ...], peer: str, forwarded_for: str, client: str
) -> None:
    assert Forwarding(trusted).client(peer, [("x-forwarded-for", forwarded_for)]) == (client, "http")


def test_two_forwarding_headers_are_one_list() -> None:
    headers = [("x-forwarded-for", "6.6.6.6"), ("x-forwarded-for", "1.2.3.4")]
    assert Forwarding(["10.0.0.0/8"]).client("10.0.0.9", headers)[0] == "1.2.3.4"


@pytest.mark.parametrize(
    ("peer", "proto", "scheme"),
    [
        ("10.0.0.9", "https", "https"),
        ("10.0.0.9", "http, https", "https"),
        ("10.0.0.9", "gopher", "http"),
        ("9.9.9.9", "https", "http"),
    ],
)
def test_the_scheme_is_the_trusted_proxys_word(peer: str, proto: str, scheme: str) -> None:
    assert Forwarding(["10.0.0.0/8"]).client(peer, [("x-forwarded-proto", proto)])[1] == scheme


@pytest.mark.parametrize(
    ("endpoint", "host"),
    [
        ("127.0.0.1:80", "127.0.0.1"),
        ("[::1]:80", "::1"),
        ("::1", "::1"),
        ("1.2.3.4", "1.2.3.4"),
        ("", ""),
    ],
)
def test_the_host_of_an_endpoint(endpoint: str, host: str) -> None:
    assert host_of(endpoint) == host


def request(body: bytes, content_type: str, query: str = "", method: str = "POST") -> Incoming:
    meta = {
        "wsgi.url_scheme": "https",
        "REQUEST_METHOD": method,
        "QUERY_STRING": query,
        "CONTENT_TYPE": content_type,
        "CONTENT_LENGTH": str(len(body)),
        "HTTP_COOKIE": "a=1; b=2",
        "HTTP_X_THING": "yes",
    }
    return Incoming("/a", meta, body)


def test_django_reads_forms_files_queries_and_cookies_from_it() -> None:
    form = request(b"a=1&a=2&b=%C3%A9", "application/x-www-form-urlencoded", "q=1&q=2&e=%C3%A9")
    assert form.POST.getlist("a") == ["1", "2"]
    assert form.POST["b"] == "é"
    assert form.GET.getlist("q") == ["1", "2"]
    assert form.GET["e"] == "é"
    assert form.COOKIES == {"a": "1", "b": "2"}
    assert form.headers["X-Thing"] == "yes"
    assert form.is_secure()
    assert form.get_full_path() == "/a?q=1&q=2&e=%C3%A9"
    upload = request(
        b'--x\r\nContent-Disposition: form-data; name="f"; filename="n.txt"\r\nContent-Type: text/plain\r\n\r\nhello\r\n--x--\r\n',
        "multipart/form-data; boundary=x",
    )
    assert upload.FILES["f"].read() == b"hello"


def test_the_body_is_read_once_or_twice_as_django_promises() -> None:
    whole = request(b'{"a": 1}', "application/json; charset=utf-8")
    assert whole.content_type == "application/json"
    assert whole.content_params == {"charset": "utf-8"}
    assert whole.body == b'{"a": 1}'
    assert whole.read() == b'{"a": 1}'
    streamed = request(b'{"a": 1}', "application/json")
    assert streamed.read(4) == b'{"a"'


def test_what_is_long_is_not_remembered() -> None:
    """Anybody can send names of 60 KB, and no two alike."""
    names, hosts = (
        request_head.cached_meta_name.cache_info().currsize,
        request_head._is_valid_host_cached.cache_info().currsize,
    )
    for number in range(20):
        long = f"x-{number}-" + "a" * 60_000
        meta = head(f"{long}: 1").meta
        assert meta[meta_name(long) or ""] == "1"
        request_head.check_host(long, {**meta, "HTTP_HOST": long})
    assert request_head.cached_meta_name.cache_info().currsize == names
    assert request_head._is_valid_host_cached.cache_info().currsize == hosts
