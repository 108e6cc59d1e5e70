"""Requests: lost and refused responses are repeated with the same key, at most three times; whom a client trusts."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from platform_site.developer_cli import session, store
from platform_site.developer_cli.api import Api
from platform_site.developer_cli.failures import Exit, Failure
from tests.support.developer_cli import Cli

pytestmark = pytest.mark.exhaustive

SUCCESS = {"run_id": "run_1", "status": "succeeded", "output": {"sum": 3}}
BUSY = {"error": {"code": "unavailable", "message": "Try again.", "request_id": "req_1"}}


class Failing:
    """A service that fails as often as `failures` says, then succeeds. It stores the key of each request."""

    def __init__(self) -> None:
        self.failures: list[int | None] = []
        """Statuses; None closes the connection without a response."""
        self.keys: list[str | None] = []
        self.retry_after = "0"
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                service.keys.append(self.headers["idempotency-key"])
                status = service.failures.pop(0) if service.failures else 200
                if status is None:
                    self.close_connection = True
                    return
                body = json.dumps(SUCCESS if status == 200 else BUSY).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.send_header("retry-after", service.retry_after)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.access = {"PLATFORM_URL": self.url, "PLATFORM_TOKEN": "sk_test"}


@pytest.fixture
def failing() -> Iterator[Failing]:
    service = Failing()
    yield service
    service.server.shutdown()
    service.server.server_close()


@pytest.fixture
def cli(tmp_path: Any, failing: Failing) -> Cli:
    return Cli(tmp_path, failing.url)


@pytest.mark.parametrize("failures", [[503], [None], [429, 502], [None, 500]])
def test_a_request_is_repeated_with_its_key(cli: Cli, failing: Failing, failures: list[int | None]) -> None:
    failing.failures = list(failures)
    assert cli.json("invoke", "sum", **failing.access)["output"] == {"sum": 3}
    assert len(failing.keys) == len(failures) + 1
    assert len(set(failing.keys)) == 1
    cli.json("invoke", "sum", **failing.access)
    assert failing.keys[-1] != failing.keys[0]


def test_three_attempts_are_enough(cli: Cli, failing: Failing) -> None:
    failing.failures = [503, 503, 503, 503]
    assert cli.error("invoke", "sum", code=6, **failing.access)["code"] == "unavailable"
    assert len(failing.keys) == 3


def test_a_long_wait_is_left_to_the_user(cli: Cli, failing: Failing) -> None:
    failing.failures, failing.retry_after = [429], "60"
    assert cli.error("invoke", "sum", code=6, **failing.access)["hint"].startswith("Wait")
    assert len(failing.keys) == 1


def test_a_follower_waits_for_the_service(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(session, "RETRY_SECONDS", 0)
    answers: list[Any] = [Exit.UNREACHABLE, Exit.UNREACHABLE, "found", Exit.CREDENTIALS]

    def ask(path: str, *, limit: int) -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exit):
            raise Failure(answer, "unreachable", "It does not answer.")
        return f"{path} {answer} {limit}"

    assert session.when_reachable(ask, "/logs", limit=2) == "/logs found 2"
    assert capsys.readouterr().err == "Error: It does not answer.\n"
    with pytest.raises(Failure):
        session.when_reachable(ask, "/logs", limit=2)


def test_a_follower_keeps_its_session_while_the_service_is_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(session, "RETRY_SECONDS", 0)
    monkeypatch.setattr(store, "_credentials_path", lambda: tmp_path / "credentials.json")
    api, sent = Api("http://127.0.0.1:1", store.Credentials("old", "refresh", "me")), list[str]()

    def request(method: str, path: str, *, headers: dict[str, str], **_: Any) -> httpx.Response:
        token = headers.get("Authorization")
        sent.append(f"{path} {token}")
        if path == "/auth/token":
            if sent.count("/auth/token None") == 1:
                raise httpx.ConnectError("away")
            return httpx.Response(200, json={"access_token": "new", "refresh_token": "next"})
        return httpx.Response(
            200 if token == "Bearer new" else 401, json={"error": {"code": "unauthorized", "message": ""}}
        )

    monkeypatch.setattr(api._client, "request", request)
    session.when_reachable(api.get, "/logs")
    assert sent[-1] == "/logs Bearer new"


def test_interrupting_an_apply_says_that_it_may_be_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    api = Api("http://127.0.0.1:1", None)
    monkeypatch.setattr(api, "send", interrupted)
    with pytest.raises(Failure, match="all of them or none") as refused:
        api.apply({})
    assert refused.value.exit_code == 130


def test_a_proxy_never_gets_plain_requests_and_a_wrong_one_is_named(cli: Cli, failing: Failing) -> None:
    proxy = {"HTTP_PROXY": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9", "NO_PROXY": "", "no_proxy": ""}
    assert cli.json("invoke", "sum", **failing.access, **proxy)["output"] == {"sum": 3}
    for name, value in (("ALL_PROXY", "odd://127.0.0.1"), ("SSL_CERT_FILE", "/nowhere")):
        access = {"PLATFORM_URL": "https://platform.example", "PLATFORM_TOKEN": "sk_test", name: value}
        assert cli.error("invoke", "sum", code=2, **access)["code"] == "invalid_environment"


def test_certificate_authorities_are_read_for_https_alone() -> None:
    def trusted(url: str) -> int:
        pool: Any = Api(url, None)._client._transport._pool  # type: ignore[attr-defined]
        return int(pool._ssl_context.cert_store_stats()["x509_ca"])

    assert trusted("http://127.0.0.1:8000") == 0
    assert trusted("https://127.0.0.1:8000") > 0
