"""Sign-in in the browser: the console sends a one-time code to a port of this computer (RFC 8252, RFC 7636), useless
without the verifier, which stays in this process. Other requests are refused."""

import hashlib
import hmac
import secrets
import time
import webbrowser
from base64 import urlsafe_b64encode
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from platform_site.developer_cli import output
from platform_site.developer_cli.api import Answer, Api
from platform_site.developer_cli.failures import Exit, Failure
from platform_site.developer_cli.sign_in_phrase import phrase_of

PATH = "/console/command-line"
TIMEOUT_SECONDS = 300
_PASSWORD = "Sign in with a password instead: platform login --email EMAIL"  # noqa: S105 - a hint


class _Listener(TCPServer):
    """Waits for the request with the right state. Not an HTTPServer, which resolves the computer's name."""

    def __init__(self, state: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.state = state
        self.port = self.server_address[1]
        self.origin = f"http://127.0.0.1:{self.port}"
        self.received: dict[str, str] | None = None

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a browser that closed the connection, or a program that sends nothing


class _Handler(BaseHTTPRequestHandler):
    server: _Listener
    timeout = 5

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        given = {name: values[0] for name, values in parse_qs(parts.query).items() if len(values) == 1}
        is_ours = parts.path == "/" and self.headers.get("Host") == self.server.origin.removeprefix("http://")
        if not is_ours or not hmac.compare_digest(given.get("state", "").encode(), self.server.state.encode()):
            self._answer(404, "This is not the response that the command is waiting for.")
        else:
            self.server.received = given
            outcome = "Return to your terminal." if "code" in given else "The sign-in was refused."
            self._answer(200, f"{outcome} You may close this page.")

    def _answer(self, status: int, text: str) -> None:
        body = f'<!doctype html><meta charset="utf-8"><title>platform</title><p>{text}'.encode()
        self.send_response(status)
        for name, value in (
            ("Content-Type", "text/html; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"),
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", "no-store"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


def sign_in(api: Api) -> Answer:
    if not api.has_page(PATH):
        raise Failure(
            Exit.INCOMPATIBLE,
            "server_too_old",
            f"{api.url} does not support signing in to the command line in a browser.",
            _PASSWORD,
        )
    verifier, state = secrets.token_urlsafe(48), secrets.token_urlsafe(32)
    challenge = urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    with _Listener(state) as listener:
        given = {"port": listener.port, "state": state, "code_challenge": challenge}
        url = f"{api.url}{PATH}?{urlencode(given)}"
        phrase = phrase_of(challenge)
        output.say(
            {"open": url, "phrase": phrase},
            f"Allow the sign-in in your browser if it shows {phrase}. If no page opens, open:",
            url,
        )
        webbrowser.open(url)
        code = _wait(listener)
        grant = {"grant_type": "authorization_code", "code": code, "code_verifier": verifier}
        return api.send("POST", "/auth/token", {**grant, "redirect_uri": f"{listener.origin}/"})


def _wait(listener: _Listener) -> str:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while listener.received is None:
        listener.timeout = deadline - time.monotonic()
        if listener.timeout <= 0:
            raise Failure(Exit.CREDENTIALS, "no_answer", "No response from the browser within five minutes.", _PASSWORD)
        listener.handle_request()
    if "code" not in listener.received:
        raise Failure(Exit.CREDENTIALS, "access_denied", "The sign-in was refused in the browser.")
    return listener.received["code"]
