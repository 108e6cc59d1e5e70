"""A real identity provider on loopback, made with Authlib's server side: OpenID Connect and, beside it, GitHub's shape.

It keeps to the protocol (client authentication, exact redirect URIs, PKCE, nonces, single-use codes, RFC 9207) unless a
test tells it to misbehave by setting one of `twist_…`. People sign in at a form, as a browser fills it in; `people`
are its users. Every request that came is in `requests`.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx
import orjson
from authlib.common.security import generate_token
from authlib.oauth2 import AuthorizationServer
from authlib.oauth2.base import OAuth2Error
from authlib.oauth2.rfc6749 import OAuth2Request
from authlib.oauth2.rfc6749.grants import AuthorizationCodeGrant
from authlib.oauth2.rfc6749.requests import BasicOAuth2Payload
from authlib.oauth2.rfc6750 import BearerTokenGenerator
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oauth2.rfc9207.parameter import IssuerParameter
from authlib.oidc.core.grants import OpenIDCode
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OctKey, RSAKey

CLIENT_ID = "platform-client"
CLIENT_SECRET = "s3cret:with/odd+characters%"

FORM = """<!doctype html><html lang="en"><head><title>Sign in at the provider</title></head><body><main>
<h1>Sign in at the provider</h1>
<form method="post"><label>Who are you <input name="login" autofocus></label>
<button name="answer" value="yes">Sign in</button> <button name="answer" value="no">Cancel</button></form>
</main></body></html>"""


@dataclass
class Person:
    """A person with an account at the provider. `claims` are what it says of them."""

    subject: str
    claims: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Code:
    code: str
    client_id: str
    redirect_uri: str
    scope: str
    person: Person
    nonce: str | None
    code_challenge: str | None
    code_challenge_method: str | None

    def get_redirect_uri(self) -> str:
        return self.redirect_uri

    def get_scope(self) -> str:
        return self.scope

    def get_nonce(self) -> str | None:
        return self.nonce

    def get_auth_time(self) -> int:
        return int(time.time())

    def get_acr(self) -> None:
        return None

    def get_amr(self) -> None:
        return None


@dataclass
class _Client:
    client_id: str
    secret: str | None
    redirect_uris: set[str]
    auth_methods: tuple[str, ...] = ("client_secret_basic", "client_secret_post")

    def get_client_id(self) -> str:
        return self.client_id

    def get_default_redirect_uri(self) -> None:
        return None

    def get_allowed_scope(self, scope: str | None) -> str:
        return scope or ""

    def check_redirect_uri(self, uri: str) -> bool:
        return uri in self.redirect_uris or any(uri.startswith(f"{each}/idp_") for each in self.redirect_uris)

    def check_client_secret(self, secret: str) -> bool:
        return secret == self.secret

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method in self.auth_methods

    def check_response_type(self, response_type: str) -> bool:
        return response_type == "code"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type == "authorization_code"


@dataclass
class Response:
    status: int
    body: bytes
    headers: list[tuple[str, str]]

    @property
    def location(self) -> str | None:
        return next((value for name, value in self.headers if name == "Location"), None)

    @location.setter
    def location(self, value: str) -> None:
        self.headers = [(name, value if name == "Location" else old) for name, old in self.headers]


class _Request(OAuth2Request):
    def __init__(self, came: "Came") -> None:
        super().__init__(came.method, f"https://loopback.example{came.path}", headers=came.headers)
        self.payload = BasicOAuth2Payload({**came.query, **came.form})
        self._came = came

    @property
    def args(self) -> dict[str, str]:
        return self._came.query

    @property
    def form(self) -> dict[str, str]:
        return self._came.form


class _Server(AuthorizationServer):
    def __init__(self, provider: "IdentityProvider") -> None:
        super().__init__()
        self.provider = provider
        self.register_token_generator("default", BearerTokenGenerator(lambda **_: generate_token(42)))

    def query_client(self, client_id: str) -> _Client | None:
        return self.provider.clients.get(client_id)

    def save_token(self, token: dict[str, Any], request: Any) -> None:
        self.provider.tokens[token["access_token"]] = request.user

    def create_oauth2_request(self, request: Any) -> OAuth2Request:
        return request if isinstance(request, OAuth2Request) else _Request(request)

    def handle_response(self, status: int, body: Any, headers: Any) -> Response:
        content = orjson.dumps(body) if isinstance(body, dict) else str(body or "").encode()
        return Response(status, content, list(headers))

    def send_signal(self, *args: Any, **kwargs: Any) -> None:
        pass


class _Grant(AuthorizationCodeGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = ["client_secret_basic", "client_secret_post", "none"]

    @property
    def provider(self) -> "IdentityProvider":
        return self.server.provider

    def save_authorization_code(self, code: str, request: Any) -> None:
        asked = request.payload.data
        self.provider.codes[code] = _Code(
            code,
            request.client.client_id,
            asked["redirect_uri"],
            request.scope,
            request.user,
            asked.get("nonce"),
            asked.get("code_challenge"),
            asked.get("code_challenge_method"),
        )

    def query_authorization_code(self, code: str, client: _Client) -> _Code | None:
        found = self.provider.codes.get(code)
        return found if found is not None and found.client_id == client.client_id else None

    def delete_authorization_code(self, code: _Code) -> None:
        self.provider.codes.pop(code.code, None)

    def authenticate_user(self, code: _Code) -> Person:
        return code.person


class _OpenID(OpenIDCode):
    def __init__(self, provider: "IdentityProvider") -> None:
        super().__init__(require_nonce=False)
        self.provider = provider

    def exists_nonce(self, nonce: str, request: Any) -> bool:
        return False

    def get_client_claims(self, client: _Client) -> dict[str, Any]:
        return {"iss": self.provider.issuer, "aud": [client.client_id]}

    def get_client_algorithm(self, client: _Client) -> str:
        return self.provider.algorithm

    def get_encode_header(self, client: _Client) -> dict[str, str]:
        return {"alg": self.provider.algorithm, "kid": self.provider.key.kid}

    def resolve_client_private_key(self, client: _Client) -> Any:
        return self.provider.key

    def generate_user_info(self, user: Person, scope: str) -> dict[str, Any]:
        return {"sub": user.subject} | ({} if self.provider.email_only_in_userinfo else user.claims)

    def encode_id_token(self, token: dict[str, Any], request: Any) -> str:
        text = super().encode_id_token(token, request)
        twist = self.provider.twist_id_token
        if twist is None:
            return text
        decoded = jwt.decode(text, self.provider.key, algorithms=[self.provider.algorithm])
        return twist(dict(decoded.header), dict(decoded.claims))


class _Issuer(IssuerParameter):
    def __init__(self, provider: "IdentityProvider") -> None:
        self.provider = provider

    def get_issuer(self) -> str | None:
        return self.provider.issuer if self.provider.names_itself else None


@dataclass
class Came:
    method: str
    path: str
    query: dict[str, str]
    form: dict[str, str]
    headers: dict[str, str]
    raw_form: str


class IdentityProvider:
    """One provider with its own keys, clients, people. `issuer` is its URL."""

    def __init__(self) -> None:
        self.key: Any = ECKey.generate_key("P-256", {"kid": "first", "use": "sig"})
        self.algorithm = "ES256"
        self.clients: dict[str, _Client] = {}
        self.people: dict[str, Person] = {}
        self.codes: dict[str, _Code] = {}
        self.tokens: dict[str, Person] = {}
        self.requests: list[Came] = []
        self.names_itself = True
        self.email_only_in_userinfo = False
        self.emails: dict[str, Any] = {}
        """By subject, what /user/emails lists."""
        self.twist_id_token: Callable[[dict[str, Any], dict[str, Any]], str] | None = None
        self.twist_discovery: Callable[[dict[str, Any]], dict[str, Any]] | None = None
        self.twist_answer: dict[str, Callable[[], Response]] = {}
        """By path, an answer that replaces the real one."""
        self.twist_callback: Callable[[str], str] | None = None
        """The result of opening the URL to which a person is redirected."""
        self._server = _Server(self)
        self._server.register_grant(_Grant, [CodeChallenge(required=True), _OpenID(self)])
        self._server.register_extension(_Issuer(self))
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self.issuer = f"http://127.0.0.1:{self._http.server_address[1]}"
        self.stopping = threading.Event()

    # ── What tests use ──

    def register(
        self, *redirect_uris: str, client_id: str = CLIENT_ID, secret: str | None = CLIENT_SECRET, **fields: Any
    ) -> None:
        if secret is None:
            fields.setdefault("auth_methods", ("none",))
        self.clients[client_id] = _Client(client_id, secret, set(redirect_uris), **fields)

    def person(self, login: str, subject: str | None = None, **claims: Any) -> Person:
        made = Person(subject or f"sub-{login}", claims)
        self.people[login] = made
        return made

    def signed(self, header: dict[str, Any], claims: dict[str, Any], key: Any = None) -> str:
        key = key or self.key
        algorithms = [str(header["alg"])]
        return jwt.encode(header, claims, key, algorithms=algorithms)

    def new_key(self, kid: str = "second") -> None:
        """Rotate: from now on only the new key is published and used."""
        self.key = ECKey.generate_key("P-256", {"kid": kid, "use": "sig"})

    def count(self, path: str) -> int:
        return sum(came.path.partition("?")[0] == path for came in self.requests)

    # ── Answers ──

    def answer(self, came: Came) -> Response:
        path = urlsplit(came.path).path
        if path in self.twist_answer:
            return self.twist_answer[path]()
        match path:
            case "/.well-known/openid-configuration":
                return _json(self._discovery())
            case "/jwks":
                return _json(
                    KeySet([self.key]).as_dict(private=False) if not isinstance(self.key, OctKey) else {"keys": []}
                )
            case "/authorize":
                return self._authorize(came)
            case "/token":
                return self._server.create_token_response(came)
            case "/userinfo" | "/user" | "/user/emails":
                return self._profile(path, came)
        return Response(404, b"", [])

    def _discovery(self) -> dict[str, Any]:
        document = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "userinfo_endpoint": f"{self.issuer}/userinfo",
            "jwks_uri": f"{self.issuer}/jwks",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": [self.algorithm, "none", "HS256"],
            "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"],
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": self.names_itself,
        }
        return self.twist_discovery(document) if self.twist_discovery else document

    def _authorize(self, came: Came) -> Response:
        if came.method == "GET":
            return Response(200, FORM.encode(), [("Content-Type", "text/html; charset=utf-8")])
        request = _Request(came)
        try:
            grant = self._server.get_consent_grant(request, self.people.get(came.form.get("login", "")))
        except OAuth2Error as error:
            return self._server.handle_error_response(request, error)
        person = self.people.get(came.form.get("login", "")) if came.form.get("answer") == "yes" else None
        response = self._server.create_authorization_response(request, grant_user=person, grant=grant)
        if self.twist_callback is not None and response.location:
            response.location = self.twist_callback(response.location)
        return response

    def _profile(self, path: str, came: Came) -> Response:
        person = self.tokens.get(came.headers.get("Authorization", "").removeprefix("Bearer "))
        if person is None:
            return Response(401, b"{}", [])
        if path == "/userinfo":
            return _json({"sub": person.subject} | person.claims)
        if path == "/user/emails":
            return _json(self.emails.get(person.subject, []))
        return _json({"id": int(person.subject)} | person.claims)

    # ── The socket ──

    def _handler(provider) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
                query = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
                came = Came(self.command, self.path, query, dict(parse_qsl(raw)), dict(self.headers.items()), raw)
                provider.requests.append(came)
                response = provider.answer(came)
                self.send_response(response.status)
                for name, value in response.headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(response.body)))
                self.end_headers()
                self.wfile.write(response.body)

            do_POST = do_GET

            def log_message(self, *args: Any) -> None:
                pass

            def handle(self) -> None:
                try:
                    super().handle()
                except (ConnectionError, TimeoutError):
                    pass

        return Handler

    def start(self) -> None:
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        self.stopping.set()
        self._http.shutdown()
        self._http.server_close()


def _json(value: Any) -> Response:
    return Response(200, orjson.dumps(value), [("Content-Type", "application/json")])


@contextmanager
def running() -> Iterator[IdentityProvider]:
    provider = IdentityProvider()
    provider.start()
    try:
        yield provider
    finally:
        provider.stop()


_PERSON = httpx.Client()  # making one costs more than a sign-in


def sign_in_at(provider_url: str, login: str, answer: str = "yes") -> str:
    """What a person does at the provider's form; the URL to which the browser is then redirected."""
    sent = _PERSON.post(provider_url, data={"login": login, "answer": answer})
    assert sent.status_code in (302, 303), (sent.status_code, sent.text)
    return sent.headers["Location"]


__all__ = [
    "CLIENT_ID",
    "CLIENT_SECRET",
    "IdentityProvider",
    "OctKey",
    "Person",
    "RSAKey",
    "Response",
    "running",
    "sign_in_at",
]
