"""The cast of sign-in by other providers: a provider, a browser that goes where it is sent, and what an application hears.

`identity_provider` is the provider; here the application's, the browser's and the person's parts are played over HTTP.
"""

from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from threading import Barrier
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from django.db import connections
from django.test import Client

from accounts import audit
from accounts.models import IdentityProvider as ProviderRecord
from accounts.models.registration import PoolSettings
from accounts.oauth import providers, redirects
from accounts.oauth.client import metadata, transport
from platform_site.concurrency.fair_semaphore import FairSemaphore
from projects.models import Environment
from tests.accounts.conftest import token
from tests.support.client import Answer, Api
from tests.support.identity_provider import (
    CLIENT_ID,
    CLIENT_SECRET,
    IdentityProvider,
    running,
    sign_in_at,
)

HOST = "127.0.0.1:8000"  # BASE_URL's
APP = "https://app.example.com/signed-in"


def forget_providers() -> None:
    metadata._documents.clear()
    metadata._key_sets.clear()


@pytest.fixture(autouse=True)
def loopback(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The provider may be called, and a machine that is busy elsewhere is no slow provider."""
    settings.OUTBOUND_ALLOWED_NETWORKS = ["127.0.0.0/8"]
    for seconds in ("SIGN_IN_SECONDS", "REQUEST_SECONDS", "CONNECT_SECONDS"):
        monkeypatch.setattr(transport, seconds, 60.0)
    semaphore = FairSemaphore(
        transport.MAX_REQUESTS,
        per_owner=transport.MAX_REQUESTS_PER_OWNER,
        slow_after=60.0,
        max_waiting=transport.MAX_WAITING,
    )
    monkeypatch.setattr(transport, "_semaphore", semaphore)
    transport._cooldowns.clear()
    forget_providers()
    yield
    forget_providers()


@pytest.fixture
def idp() -> Iterator[IdentityProvider]:
    with running() as provider:
        yield provider


@pytest.fixture
def provider(idp: IdentityProvider, production: Environment) -> ProviderRecord:
    """The provider as configured in production; its application is APP, and sign-up is open."""
    idp.register(f"http://{HOST}/v1/auth/callback")
    open_pool(production.pk)
    allow(production.pk, APP)
    return add(production.pk, "acme", issuer=idp.issuer)


def add(pool_id: str | None, name: str, **fields: Any) -> ProviderRecord:
    given = {"client_id": CLIENT_ID, "client_secret": CLIENT_SECRET} | fields
    return providers.add(pool_id, name=name, actor=audit.SYSTEM, **given)


def open_pool(pool_id: str | None, sign_up: str = "open") -> None:
    PoolSettings.objects.update_or_create(environment_id=pool_id, defaults={"sign_up": sign_up})


def allow(environment_id: str | None, *uris: str) -> None:
    redirects.replace(environment_id, uris, actor=audit.SYSTEM)


def s256(verifier: str) -> str:
    return urlsafe_b64encode(sha256(verifier.encode()).digest()).decode().rstrip("=")


class Browser:
    """A browser as far as sign-in needs one: it keeps cookies and goes where it is sent."""

    def __init__(self) -> None:
        self.client = Client(raise_request_exception=False)

    def get(self, path: str, *, accept: str = "*/*", host: str = HOST) -> Any:
        return self.client.get(path, headers={"Host": host, "Accept": accept})

    def begin(self, environment: Environment | None, *, accept: str = "*/*", **asked: Any) -> Any:
        query = {"redirect_uri": APP} | ({"environment": environment.pk} if environment else {}) | asked
        return self.get(
            "/v1/auth/authorize?" + urlencode({k: v for k, v in query.items() if v is not None}), accept=accept
        )

    def arrive(self, address: str, **how: Any) -> Any:
        """Come back from the provider to `address`."""
        parts = urlsplit(address)
        assert parts.netloc == HOST
        return self.get(f"{parts.path}?{parts.query}", **how)

    def sign_in(self, environment: Environment | None, login: str, answer: str = "yes", **asked: Any) -> Any:
        """The whole way: the last redirect, to the application."""
        begun = self.begin(environment, **asked)
        assert begun.status_code == 303, begun.content
        assert "error" not in told(begun), told(begun)
        return self.arrive(sign_in_at(begun["Location"], login, answer))


def told(response: Any) -> dict[str, str]:
    """What the application hears."""
    assert response.status_code == 303, response.content
    return dict(parse_qsl(urlsplit(response["Location"]).query))


def code_for(environment: Environment | None, login: str, **asked: Any) -> str:
    heard = told(Browser().sign_in(environment, login, **asked))
    assert "error" not in heard, heard
    return heard["code"]


def exchange(api: Api, code: str, environment: Environment | None = None, **more: Any) -> Answer:
    return token(
        api, grant_type="authorization_code", code=code, environment=environment.pk if environment else None, **more
    )


def in_parallel(*calls: Callable[[], Any]) -> list[Any]:
    """What each call returned; all of them begin at once."""
    barrier = Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        barrier.wait()
        try:
            return call()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))
