"""An inbound endpoint of the whole service, over real sockets: what providers and other clients can send there."""

import json
import socket
from typing import Any

import httpx
import pytest

from tests.support.service import Up, wait_for

TELL = "export default (input) => input"


@pytest.fixture(scope="module")
def url(served: Up) -> str:
    """The URL of a new endpoint of a new function, whose callers wait."""
    with httpx.Client(base_url=served.base_url, headers={"X-Environment": _environment(served)}) as owner:
        grant = {"grant_type": "password", "email": served.facts["account"]["email"]}
        grant["password"] = served.facts["account"]["password"]
        signed_in = owner.post("/v1/auth/token", json=grant, headers={"X-Environment": ""})
        owner.headers["Authorization"] = f"Bearer {signed_in.json()['access_token']}"
        assert owner.put("/v1/functions/tell-inbound", json={"source": TELL}).status_code in (200, 201)
        made = owner.post("/v1/functions/tell-inbound/inbound", json={"async": False, "label": "over http"})
        assert made.status_code == 201, made.text
        return str(made.json()["url"])


def _environment(served: Up) -> str:
    return str(served.facts["environments"]["production"])


def spoken(served: Up, request: bytes) -> bytes:
    """What comes back for these bytes, until the server closes or is silent for a second."""
    url = httpx.URL(served.base_url)
    with socket.create_connection((url.host, url.port or 80), timeout=10) as line:
        line.sendall(request)
        line.settimeout(1.5)
        received = b""
        try:
            while more := line.recv(65536):
                received += more
        except TimeoutError:
            pass
    return received


def test_the_url_is_the_one_that_was_shown(served: Up, url: str) -> None:
    assert url.startswith(f"{served.base_url}/v1/inbound/hk_{_environment(served).removeprefix('env_')}")
    got = httpx.post(f"{url}?x=%2F&x=", content=b"\x00raw\xff", headers={"Content-Type": "a/b"}).json()
    assert (got["method"], got["query"], got["body_base64"]) == ("POST", "x=%2F&x=", "AHJhd/8=")
    assert got["headers"]["content-type"] == "a/b"
    assert got["client"] == "127.0.0.1"


def test_a_body_in_pieces_arrives_whole(served: Up, url: str) -> None:
    def pieces() -> Any:
        yield b'{"id":'
        yield b' "evt_1"}'

    got = httpx.post(url, content=pieces()).json()
    assert got["body"] == '{"id": "evt_1"}'
    assert "transfer-encoding" not in got["headers"]


def test_a_compressed_body_is_not_opened(url: str) -> None:
    """Its signature is over what was sent; and what unpacks to a gigabyte is not unpacked."""
    got = httpx.post(url, content=b"\x1f\x8b\x08rest", headers={"Content-Encoding": "gzip"}).json()
    assert (got["body_base64"], got["headers"]["content-encoding"]) == ("H4sIcmVzdA==", "gzip")


def test_headers_that_came_twice_are_joined_and_none_passes_for_another(served: Up, url: str) -> None:
    path = httpx.URL(url).raw_path
    said = spoken(
        served,
        b"POST " + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: 2\r\n"
        b"X-Signature: one\r\nX-Signature: two\r\nX_Signature: three\r\nX-Forwarded-For: 1.2.3.4\r\n"
        b"Cookie: a=1\r\nCookie: b=2\r\n\r\n{}",
    )  # fmt: skip
    got = json.loads(said.partition(b"\r\n\r\n")[2])
    assert got["headers"]["x-signature"] == "one,two"
    assert got["client"] == "127.0.0.1"
    assert not {"x-forwarded-for", "cookie", "connection"} & got["headers"].keys()


def test_too_much_is_refused(served: Up, url: str) -> None:
    large = httpx.post(url, content=b"x" * (1024 * 1024 + 1))
    assert (large.status_code, large.json()["error"]["code"]) == (413, "payload_too_large")

    def pieces() -> Any:
        for _ in range(17):
            yield b"x" * 65536

    in_pieces = httpx.post(url, content=pieces())
    assert (in_pieces.status_code, in_pieces.json()["error"]["code"]) == (413, "payload_too_large")
    path = httpx.URL(url).raw_path
    flood = b"".join(b"X-%d: %s\r\n" % (number, b"y" * 4000) for number in range(90))
    refused = spoken(
        served, b"POST " + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\n" + flood + b"\r\n{}"
    )
    assert b" 200 " not in refused.partition(b"\r\n")[0]
    many = b"".join(b"X-%d: y\r\n" % number for number in range(60))
    taken = spoken(
        served,
        b"POST "
        + path
        + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: 2\r\n"
        + many
        + b"\r\n{}",
    )
    assert json.loads(taken.partition(b"\r\n\r\n")[2])["headers"]["x-59"] == "y"


@pytest.mark.parametrize("spelling", ["//v1/inbound/{}", "/v1//inbound/{}", "/v1/inbound/{}/", "/V1/inbound/{}",
                                      "/v1/inbound/x/../{}",  "/v1/inbound/{}%00"])  # fmt: skip
def test_another_spelling_is_another_endpoint(served: Up, url: str, spelling: str) -> None:
    path = spelling.format(url.rpartition("/")[2])
    said = spoken(
        served,
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}".encode(),
    )
    assert b" 404 " in said.partition(b"\r\n")[0], said[:300]


def test_head_says_that_it_is_there_and_runs_nothing(served: Up, url: str) -> None:
    there, missing = httpx.head(url), httpx.head(url[:-1] + ("x" if url[-1] != "x" else "y"))
    assert (there.status_code, there.content, missing.status_code, missing.content) == (200, b"", 404, b"")


def test_a_queued_run_comes_about_by_the_workers(served: Up, url: str) -> None:
    with httpx.Client(base_url=served.base_url) as owner:
        grant = {"grant_type": "password", "email": served.facts["account"]["email"]}
        grant["password"] = served.facts["account"]["password"]
        token = owner.post("/v1/auth/token", json=grant).json()["access_token"]
        owner.headers.update({"Authorization": f"Bearer {token}", "X-Environment": _environment(served)})
        url = owner.post("/v1/functions/tell-inbound/inbound", json={}).json()["url"]
        got = httpx.post(url, content=b"later")
        assert got.status_code == 202
        run = f"/v1/functions/tell-inbound/runs/{got.json()['run_id']}"
        ended = wait_for("its end", lambda: (now := owner.get(run).json())["phase"] == "ended" and now)
        assert (ended["status"], ended["trigger"], ended["output"]["body"]) == ("succeeded", "inbound", "later")


def test_the_service_wrote_no_token_anywhere(served: Up, url: str) -> None:
    token = url.rpartition("/")[2]
    httpx.post(url, content=b"{}", headers={"X-Request-Id": "the-last-one"})
    wait_for("its line", lambda: "the-last-one" in served.output)
    assert "/v1/inbound/<str:token>" in served.output
    assert token not in served.output
    assert token[:60] not in served.output
