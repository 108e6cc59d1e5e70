"""The state of one sign-in between redirect and callback, in a cookie: nothing is stored on the server. The cookie is
sealed under the secret key and the flow's `state`, so a callback in another browser is refused (login CSRF, RFC 9700
4.7). It also has the nonce and the PKCE verifier for the provider."""

import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import partial
from hashlib import sha256
from typing import Final

import orjson
from django.conf import settings
from django.utils.http import urlsafe_base64_decode, urlsafe_base64_encode

from platform_site.security import keyring

LIFETIME: Final = 600
COOKIE_PATH: Final = "/v1/auth/"
MAX_FLOWS: Final = 6
"""Open flows of one browser; further ones replace the oldest, so that the header stays short."""
_PREFIX: Final = "oauth_flow_"
_PURPOSE: Final = "accounts.oauth_flow"
_STATE: Final = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Flow:
    provider_id: str
    environment_id: str | None
    redirect_uri: str
    client_state: str | None
    code_challenge: str | None
    """S256."""
    links: bool = False
    """Link an identity to an account, instead of signing in (`accounts.oauth.proofs`)."""
    nonce: str = field(default_factory=partial(secrets.token_urlsafe, 32))
    code_verifier: str = field(default_factory=partial(secrets.token_urlsafe, 48))
    expires_at: int = field(default_factory=lambda: int(time.time()) + LIFETIME)
    """Unix seconds."""


def cookie_name(state: str) -> str:
    return _PREFIX + sha256(state.encode()).hexdigest()[:16]


def surplus(cookies: Iterable[str]) -> list[str]:
    flows = [name for name in cookies if name.startswith(_PREFIX)]
    return flows if len(flows) >= MAX_FLOWS else []


def seal(flow: Flow, state: str) -> str:
    return urlsafe_base64_encode(keyring.seal_under(_key(state), orjson.dumps(asdict(flow)), purpose=_PURPOSE))


def open_sealed(state: str, cookies: dict[str, str]) -> Flow | None:
    if not _STATE.fullmatch(state):
        return None
    try:
        sealed = urlsafe_base64_decode(cookies.get(cookie_name(state), ""))
        flow = Flow(**orjson.loads(keyring.unseal_under(_key(state), sealed, purpose=_PURPOSE)))
    except (ValueError, TypeError, keyring.KeyringError):
        return None
    return flow if flow.expires_at >= time.time() else None


def _key(state: str) -> bytes:
    return f"{settings.SECRET_KEY}\0{state}".encode()
