"""Reads an access token or an API key from the `Authorization` header, without the database. The first step of
`projects.api.authentication`. `read` refuses what cannot be a credential (by form, checksum or signature) and names the
cache entry under which the record of the rest is kept. Contract section 5.1-5.3."""

from dataclasses import dataclass
from typing import Final

from accounts.keys import server_keys
from accounts.tokens import access_tokens, refresh_tokens
from accounts.tokens.access_tokens import AccessClaims
from platform_site.http.errors import Unauthorized

_SCHEME: Final = "bearer"
_EXPECTED: Final = 'Send "Authorization: Bearer …" with an access token (eyJ…) or a key (sk_… or pk_…).'
"""What an answer may say of a credential is what follows from its form: whether there is such a key or session is not
told in words, and neither is why it ended."""


@dataclass(frozen=True, slots=True)
class SessionCredential:
    """A verified access token: its signature holds, whether its session lives is yet to be asked."""

    claims: AccessClaims

    @property
    def cache_name(self) -> str:
        return session_cache_name(self.claims.session_id)


@dataclass(frozen=True, slots=True)
class KeyCredential:
    """A text in the form of a key: whether there is such a key is yet to be asked."""

    secret_hash: bytes
    is_publishable: bool = False

    @property
    def cache_name(self) -> str:
        return key_cache_name(self.secret_hash)


Credential = SessionCredential | KeyCredential


def session_cache_name(session_id: str) -> str:
    return f"who:{session_id}"


def key_cache_name(secret_hash: bytes) -> str:
    # Half the hash names it well enough, and a dump of the cache is not even the stored hash.
    return f"who:key:{secret_hash[:16].hex()}"


def missing() -> Unauthorized:
    """The answer to a request without an `Authorization` header."""
    return Unauthorized(f"The header Authorization is missing. {_EXPECTED}")


def bearer(header: str | None) -> str:
    """The token of `Authorization: Bearer <token>`. Raises Unauthorized for a missing, other or doubled one."""
    if not header:
        raise missing()
    scheme, _, token = header.partition(" ")
    token = token.strip()
    if scheme.lower() != _SCHEME or not token or not token.isascii() or " " in token or "," in token:
        raise Unauthorized(f"The header Authorization cannot be read. {_EXPECTED}")
    return token


def read(header: str | None) -> Credential:
    """The credential that an `Authorization` header shows. Raises Unauthorized; no statement for what is junk. Two
    `Authorization` headers arrive as one, joined by a comma, and are refused."""
    token = bearer(header)
    prefix = token[:3]  # every prefix has three characters
    if prefix in server_keys.PREFIXES:
        secret_hash = server_keys.parse(token)
        if secret_hash is None:
            raise Unauthorized("This is no whole key: a character is missing or mistyped.")
        return KeyCredential(secret_hash, prefix == server_keys.PUBLISHABLE)
    if prefix == refresh_tokens.PREFIX:
        raise Unauthorized("This is a refresh token. POST /v1/auth/token makes an access token of it.")
    if token.count(".") != 2:
        raise Unauthorized(f"The token is malformed or was not issued by this platform. {_EXPECTED}")
    return SessionCredential(access_tokens.verify_access_token(token))
