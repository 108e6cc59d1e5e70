"""Reads an access token or an API key from the `Authorization` header, without the database: refuses what cannot be a
credential, and names the cache entry of its record. Contract section 5.1-5.3."""

from dataclasses import dataclass
from typing import Final

from accounts.keys import server_keys
from accounts.tokens import access_tokens, refresh_tokens
from accounts.tokens.access_tokens import AccessClaims
from platform_site.http.errors import Unauthorized

_EXPECTED: Final = 'Send "Authorization: Bearer …" with an access token (eyJ…) or a key (sk_… or pk_…).'
"""Responses only say what follows from a credential's form, not whether it exists or why it ended."""


@dataclass(frozen=True, slots=True)
class SessionCredential:
    claims: AccessClaims

    @property
    def cache_name(self) -> str:
        return session_cache_name(self.claims.session_id)


@dataclass(frozen=True, slots=True)
class KeyCredential:
    secret_hash: bytes
    is_publishable: bool = False

    @property
    def cache_name(self) -> str:
        return key_cache_name(self.secret_hash)


Credential = SessionCredential | KeyCredential


def session_cache_name(session_id: str) -> str:
    return f"who:{session_id}"


def key_cache_name(secret_hash: bytes) -> str:
    # Half of the hash is unique enough, and a dump of the cache does not reveal the stored hash.
    return f"who:key:{secret_hash[:16].hex()}"


def missing() -> Unauthorized:
    return Unauthorized(f"The header Authorization is missing. {_EXPECTED}")


def read(header: str) -> Credential:
    """The credential of an `Authorization` header. Raises Unauthorized, also for duplicate headers."""
    scheme, _, token = header.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or not token.isascii() or " " in token or "," in token:
        raise Unauthorized(f"The header Authorization cannot be read. {_EXPECTED}")
    prefix = token[:3]  # every prefix has three characters
    if prefix in server_keys.PREFIXES:
        secret_hash = server_keys.parse(token)
        if secret_hash is None:
            raise Unauthorized("Malformed API key: a character is missing or mistyped.")
        return KeyCredential(secret_hash, prefix == server_keys.PUBLISHABLE)
    if prefix == refresh_tokens.PREFIX:
        raise Unauthorized("This is a refresh token. Exchange it for an access token with POST /v1/auth/token.")
    if token.count(".") != 2:
        raise Unauthorized(f"The token is malformed or was not issued by this platform. {_EXPECTED}")
    return SessionCredential(access_tokens.verify_access_token(token))
