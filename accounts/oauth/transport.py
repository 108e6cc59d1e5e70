"""Calls to providers: Authlib's protocol code over the guarded HTTP client, bounded in time, bytes and number.

A tenant names its providers, so an endpoint may be slow, huge or somebody's internal address. The guarded client sees
to addresses and bytes; here one sign-in gets SECONDS for all its calls, one process makes at most IN_ALL calls at a
time and PER_OWNER to the providers of one application, and a provider that ran into the deadline rests a moment:
threads that wait for a slow provider are threads that answer nobody. Calls are made outside of transactions.
"""

import logging
import threading
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote_plus, urlencode

import orjson
from authlib.oauth2.client import OAuth2Client
from django.conf import settings

from accounts.oauth.errors import ProviderAnswerInvalid, ProviderUnreachable
from accounts.oauth.models import IdentityProvider
from platform_site.api.outbound import BadUrl, OutboundError, TimedOut, client, parse_url

SECONDS: Final = 8.0
PER_CALL: Final = 4.0
CONNECT: Final = 2.0
LIMIT: Final = 64 * 1024
"""Bytes of one answer."""
IN_ALL: Final = 8
PER_OWNER: Final = 4
"""By application and not by provider: a tenant with several slow ones must leave room for others."""
REST: Final = 3.0
"""Seconds."""
_USER_AGENT: Final = "backend-platform"  # GitHub refuses callers without one

log = logging.getLogger("platform.oauth")


class Answer:
    """An answer in the form in which Authlib reads it."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status_code = status
        self._body = body

    def json(self) -> Any:
        """Raises ValueError (`orjson.JSONDecodeError` is one)."""
        return orjson.loads(self._body)

    def raise_for_status(self) -> None:
        if self.status_code >= 400:
            raise ProviderAnswerInvalid(f"status {self.status_code}")


class _Slots:
    """How many calls are under way, and who rests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, int] = {}
        self._rests_until: dict[str, float] = {}

    @contextmanager
    def taken(self, name: str, owner: str) -> Iterator[None]:
        """A slot for one call to the provider `name` of `owner`. Raises ProviderUnreachable instead of waiting."""
        now = time.monotonic()
        with self._lock:
            self._rests_until = {name: until for name, until in self._rests_until.items() if until > now}
            if name in self._rests_until:
                raise ProviderUnreachable("it was too slow a moment ago")
            if self._running.get(owner, 0) >= PER_OWNER or sum(self._running.values()) >= IN_ALL:
                raise ProviderUnreachable("too many calls to providers at once")
            self._running[owner] = self._running.get(owner, 0) + 1
        try:
            yield
        except TimedOut:
            with self._lock:
                self._rests_until[name] = time.monotonic() + REST
            raise
        finally:
            with self._lock:
                self._running[owner] -= 1
                if not self._running[owner]:
                    del self._running[owner]


_slots = _Slots()


class Calls:
    """The calls of one step of one sign-in: what Authlib takes for a session of `requests`."""

    def __init__(self, provider: IdentityProvider) -> None:
        self.provider = provider
        self._deadline = time.monotonic() + SECONDS

    def get_object(self, url: str, *, access_token: str | None = None) -> dict[str, Any]:
        """The JSON object at `url`. Raises ProviderUnreachable, ProviderAnswerInvalid."""
        found = self.get_json(url, access_token=access_token)
        if not isinstance(found, dict):
            raise ProviderAnswerInvalid("no JSON object")
        return found

    def get_json(self, url: str, *, access_token: str | None = None) -> Any:
        headers = {"Accept": "application/json"}
        if access_token is not None:
            headers["Authorization"] = f"Bearer {access_token}"
        answer = self._call("GET", url, headers, b"")
        if answer.status_code != 200:
            raise ProviderAnswerInvalid(f"status {answer.status_code}")
        try:
            return answer.json()
        except ValueError:
            raise ProviderAnswerInvalid("no JSON") from None

    def post(
        self,
        url: str,
        data: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        auth: Any = None,
    ) -> Answer:
        """What `OAuth2Client.fetch_token` calls."""
        body, sent = urlencode(data or {}), dict(headers or {})
        if auth is not None:
            url, sent, body = auth.prepare("POST", url, sent, body)
        return self._call("POST", url, sent, body.encode())

    def _call(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        check_endpoint(url)
        left = self._deadline - time.monotonic()
        if left <= 0.05:
            raise ProviderUnreachable("no time left")
        try:
            with _slots.taken(self.provider.pk, self.provider.environment_id or ""):
                got = client().request(
                    method,
                    url,
                    owner=self.provider.environment_id or "",
                    headers={**headers, "User-Agent": _USER_AGENT},
                    body=body,
                    limit=LIMIT,
                    connect=min(CONNECT, left),
                    total=min(PER_CALL, left),
                )
        except OutboundError as error:
            raise ProviderUnreachable(f"{type(error).__name__}: {error}") from None
        except ValueError:
            raise ProviderAnswerInvalid("a header that HTTP does not have") from None
        if got.is_cut:
            raise ProviderAnswerInvalid(f"more than {LIMIT} bytes")
        if got.status >= 500 or got.status == 429:
            raise ProviderUnreachable(f"status {got.status}")
        return Answer(got.status, got.body)


def check_endpoint(url: Any) -> str:
    """`url` if it may be called or a browser be sent there; https, but in development. Raises ProviderAnswerInvalid."""
    try:
        target = parse_url(url if isinstance(url, str) else "")
    except BadUrl as error:
        raise ProviderAnswerInvalid(f"an endpoint that is none: {error.code}") from None
    if target.scheme != "https" and settings.PRODUCTION:
        raise ProviderAnswerInvalid("an endpoint without TLS")
    return str(url)


def oauth_client(calls: Calls, *, auth_method: str, **options: Any) -> OAuth2Client:
    """Authlib's client of the provider, speaking through `calls`."""
    found = OAuth2Client(
        calls,
        client_id=calls.provider.client_id,
        client_secret=calls.provider.client_secret,
        token_endpoint_auth_method=auth_method,
        code_challenge_method="S256",
        **options,
    )
    found.register_client_auth_method((IdentityProvider.ClientAuth.BASIC.value, _basic))
    return found


def _basic(client: Any, method: str, uri: str, headers: dict[str, str], body: str) -> tuple[str, dict[str, str], str]:
    """HTTP Basic with id and secret form-encoded first, as RFC 6749 2.3.1 has it; Authlib leaves that out."""
    pair = f"{quote_plus(client.client_id)}:{quote_plus(client.client_secret or '')}"
    headers["Authorization"] = "Basic " + b64encode(pair.encode()).decode()
    return uri, headers, body
