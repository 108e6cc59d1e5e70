"""Requests to providers: Authlib's protocol code over the guarded HTTP client. Tenants choose the endpoints, so one
sign-in has SIGN_IN_SECONDS for all its requests, a process makes at most MAX_REQUESTS at a time, shared fairly between
applications (`platform_site.concurrency.fair_semaphore`), and a provider that timed out gets a growing cooldown."""

import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote_plus, urlencode

import orjson
from authlib.oauth2.client import OAuth2Client
from django.conf import settings

from accounts.models.oauth import IdentityProvider
from accounts.oauth import client_secrets
from accounts.oauth.errors import ProviderAnswerInvalid, ProviderUnreachable
from platform_site.concurrency.fair_semaphore import FairSemaphore, Full
from platform_site.concurrency.memo import Memo
from platform_site.outbound import BadUrl, Interruption, OutboundError, RequestTimedOut, client, parse_url

SIGN_IN_SECONDS: Final = 8.0
REQUEST_SECONDS: Final = 4.0
CONNECT_SECONDS: Final = 2.0
MAX_BYTES: Final = 64 * 1024
MAX_REQUESTS: Final = 8
MAX_REQUESTS_PER_OWNER: Final = 4
"""Of one application, over all its providers."""
SLOW_SECONDS: Final = 1.5
"""A request may always take this long; up to REQUEST_SECONDS if no other waits. A longer one makes its owner slow."""
WAIT_SECONDS: Final = 2.0
"""For a slot: longer than SLOW_SECONDS, after which one can be reclaimed."""
MAX_WAITING: Final = 4
"""Each waiting request blocks a thread."""
FIRST_COOLDOWN_SECONDS: Final = 3.0
MAX_COOLDOWN_SECONDS: Final = 300.0
_USER_AGENT: Final = "backend-platform"  # GitHub refuses callers without one


class Answer:
    """The part of the interface of `requests.Response` that Authlib uses."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status_code = status
        self._body = body

    def json(self) -> Any:
        return orjson.loads(self._body)

    def raise_for_status(self) -> None:
        if self.status_code >= 400:
            raise ProviderAnswerInvalid(f"status {self.status_code}")


_semaphore = FairSemaphore(
    MAX_REQUESTS, per_owner=MAX_REQUESTS_PER_OWNER, slow_after=SLOW_SECONDS, max_waiting=MAX_WAITING
)
_cooldowns: Final[Memo[str, tuple[int, float]]] = Memo(5_000)
"""By provider: the number of failures in a row, and the end of the cooldown."""


@contextmanager
def _slot(provider: IdentityProvider, wait: float) -> Iterator[Interruption]:
    """A slot for one call, and its interruption when others need the slot. Raises ProviderUnreachable."""
    _, until = _cooldowns.get(provider.pk) or (0, 0.0)
    if time.monotonic() < until:
        raise ProviderUnreachable("it was too slow a moment ago")
    ending = Interruption()
    try:
        with _semaphore.slot(provider.environment_id or "", wait=wait, on_reclaim=ending.interrupt) as slot:
            try:
                yield ending
            except OutboundError as error:
                if slot.is_reclaimed or isinstance(error, RequestTimedOut):
                    times, _ = _cooldowns.get(provider.pk) or (0, 0.0)
                    rest = min(MAX_COOLDOWN_SECONDS, FIRST_COOLDOWN_SECONDS * float(2 ** min(times, 20)))
                    _cooldowns.put(provider.pk, (times + 1, time.monotonic() + rest))
                raise
            if time.monotonic() - slot.since <= SLOW_SECONDS and _cooldowns.get(provider.pk):
                _cooldowns.put(provider.pk, (0, 0.0))
    except Full:
        raise ProviderUnreachable("too many calls to providers at once") from None


class Calls:
    def __init__(self, provider: IdentityProvider) -> None:
        self.provider = provider
        self._deadline = time.monotonic() + SIGN_IN_SECONDS

    def get_object(self, url: str, *, access_token: str | None = None) -> dict[str, Any]:
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
            with _slot(self.provider, min(WAIT_SECONDS, left)) as ending:
                left = self._deadline - time.monotonic()
                got = client().request(
                    method,
                    url,
                    owner=self.provider.environment_id or "",
                    headers={**headers, "User-Agent": _USER_AGENT},
                    body=body,
                    limit=MAX_BYTES,
                    connect=min(CONNECT_SECONDS, left),
                    total=min(REQUEST_SECONDS, left),
                    interruption=ending,
                )
        except OutboundError as error:
            raise ProviderUnreachable(f"{type(error).__name__}: {error}") from None
        except ValueError:
            raise ProviderAnswerInvalid("a malformed header") from None
        if got.is_cut:
            raise ProviderAnswerInvalid(f"more than {MAX_BYTES} bytes")
        if got.status >= 500 or got.status == 429:
            raise ProviderUnreachable(f"status {got.status}")
        return Answer(got.status, got.body)


def check_endpoint(url: Any) -> str:
    """`url` if it is valid and https (except in development). Raises ProviderAnswerInvalid."""
    try:
        target = parse_url(url if isinstance(url, str) else "")
    except BadUrl as error:
        raise ProviderAnswerInvalid(f"an invalid endpoint: {error.code}") from None
    if target.scheme != "https" and settings.PRODUCTION:
        raise ProviderAnswerInvalid("an endpoint without TLS")
    return str(url)


def oauth_client(calls: Calls, *, auth_method: str, **options: Any) -> OAuth2Client:
    found = OAuth2Client(
        calls,
        client_id=calls.provider.client_id,
        client_secret=client_secrets.of(calls.provider),
        token_endpoint_auth_method=auth_method,
        code_challenge_method="S256",
        **options,
    )
    found.register_client_auth_method((IdentityProvider.ClientAuth.BASIC.value, _basic))
    return found


def _basic(client: Any, method: str, uri: str, headers: dict[str, str], body: str) -> tuple[str, dict[str, str], str]:
    """HTTP Basic with id and secret form-encoded first (RFC 6749, 2.3.1), which Authlib omits."""
    pair = f"{quote_plus(client.client_id)}:{quote_plus(client.client_secret or '')}"
    headers["Authorization"] = "Basic " + b64encode(pair.encode()).decode()
    return uri, headers, body
