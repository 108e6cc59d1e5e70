"""The state of one sign-in between the redirect to the provider and the callback, in a cookie of the browser. Nothing
is stored on the server, so that anonymous callers cannot fill a table. The cookie is sealed under the secret key and
the flow's `state`, so that it only opens with the returned `state` in the browser that started the flow: a callback
prepared by an attacker, or opened in another browser, has no valid cookie (login CSRF, RFC 9700 4.7). It also has the
nonce and the PKCE verifier for the provider, one of each per flow. Pure except for the clock and the secret."""

import re
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Final

import orjson
from django.conf import settings

from platform_site.security import keyring

LIFETIME: Final = 600
"""Seconds for a person to sign in at the provider."""
COOKIE_PATH: Final = "/v1/auth/"
MOST: Final = 6
"""Flows that one browser may have open; further ones drop the others, before the header grows too long."""
_PREFIX: Final = "oauth_flow_"
_PURPOSE: Final = "accounts.oauth_flow"
_STATE: Final = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)


class UnknownFlow(Exception):
    """No flow of this browser has this state, or its time is over."""


@dataclass(frozen=True, slots=True)
class Flow:
    """One sign-in under way."""

    provider_id: str
    environment_id: str | None
    redirect_uri: str
    """The application's, from its list."""
    client_state: str | None
    """The application's own, given back as it is."""
    code_challenge: str | None
    """The application's PKCE challenge, S256."""
    nonce: str
    code_verifier: str
    """Ours, towards the provider."""
    expires_at: int
    """Unix seconds."""
    links: bool = False
    """Nobody signs in: the application wants to link whoever comes back to an account (`accounts.oauth.proofs`)."""


def begin(
    *,
    provider_id: str,
    environment_id: str | None,
    redirect_uri: str,
    client_state: str | None,
    code_challenge: str | None,
    links: bool = False,
) -> tuple[Flow, str]:
    """A flow and its `state`, 256 random bits."""
    flow = Flow(
        provider_id=provider_id,
        environment_id=environment_id,
        redirect_uri=redirect_uri,
        client_state=client_state,
        code_challenge=code_challenge,
        nonce=secrets.token_urlsafe(32),
        code_verifier=secrets.token_urlsafe(48),
        expires_at=int(time.time()) + LIFETIME,
        links=links,
    )
    return flow, secrets.token_urlsafe(32)


def cookie_name(state: str) -> str:
    """The name of the cookie that goes with `state`; it does not tell the state."""
    return _PREFIX + sha256(state.encode()).hexdigest()[:16]


def surplus(cookies: Iterable[str]) -> list[str]:
    """The names of flow cookies to drop before another one is set."""
    flows = [name for name in cookies if name.startswith(_PREFIX)]
    return flows if len(flows) >= MOST else []


def seal(flow: Flow, state: str) -> str:
    """The value of the cookie."""
    text = keyring.seal_under(_key(state), orjson.dumps(asdict(flow)), purpose=_PURPOSE)
    return urlsafe_b64encode(text).decode().rstrip("=")


def open_sealed(state: str, cookies: dict[str, str]) -> Flow:
    """The flow of `state` as this browser's cookies have it. Raises UnknownFlow."""
    if not _STATE.fullmatch(state):
        raise UnknownFlow
    value = cookies.get(cookie_name(state), "")
    try:
        text = urlsafe_b64decode(value + "=" * (-len(value) % 4))
        flow = Flow(**orjson.loads(keyring.unseal_under(_key(state), text, purpose=_PURPOSE)))
    except (ValueError, TypeError, keyring.KeyringError):
        raise UnknownFlow from None
    if flow.expires_at < time.time():
        raise UnknownFlow
    return flow


def _key(state: str) -> bytes:
    return f"{settings.SECRET_KEY}\0{state}".encode()
