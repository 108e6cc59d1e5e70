"""Access tokens: ES256 JWTs of 900 s, by djangorestframework-simplejwt's codec with keys of our own table (its rotation
has a race; sessions are in `accounts.users.sessions`). A verified signature (83 µs) is cached by the token's SHA-256
until it expires; the session is checked on every request. Contract section 5.6; ASVS 9.1, 9.2."""

import hashlib
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import jwt
from django.db import Error
from rest_framework_simplejwt.backends import TokenBackend
from rest_framework_simplejwt.exceptions import ExpiredTokenError, TokenBackendError, TokenBackendExpiredToken
from rest_framework_simplejwt.settings import api_settings
from rest_framework_simplejwt.tokens import AccessToken as SimpleAccessToken

from accounts.tokens import signing_keys
from platform_site.concurrency.memo import Memo
from platform_site.http.errors import Unauthorized
from platform_site.identity import ids

ALGORITHM: Final = "ES256"
TOKEN_TYPE: Final = "access"  # noqa: S105 - the claim `typ`
LIFETIME: Final = timedelta(seconds=900)
_MAX_LENGTH: Final = 2048
_REQUIRED: Final = ("typ", "sub", "sid", "iat", "nbf", "exp", "iss", "aud", "jti")


@dataclass(frozen=True, slots=True)
class AccessClaims:
    user_id: str
    session_id: str
    environment_id: str | None
    not_before: int
    expires_at: int
    key_id: str


class KeyTableBackend(TokenBackend):
    def __init__(self) -> None:
        super().__init__(
            ALGORITHM, audience=api_settings.AUDIENCE, issuer=api_settings.ISSUER, leeway=api_settings.LEEWAY
        )

    def encode(self, payload: dict[str, Any]) -> str:
        kid, private = signing_keys.current_signing_key()
        claims = payload | {"aud": self.audience, "iss": self.issuer}
        return jwt.encode(claims, private, algorithm=ALGORITHM, headers={"kid": kid})

    def get_verifying_key(self, token: Any) -> Any:
        """The public key that `kid` names; `jwk`, `jku` and `x5u` are ignored."""
        kid = jwt.get_unverified_header(token).get("kid")
        # Cheap checks first, so that invalid tokens do not cause a read of the key table.
        key = signing_keys.verifying(kid) if isinstance(kid, str) and len(kid) == 43 else None
        if key is None:
            raise TokenBackendError("the header names an unknown key")
        return key

    def decode(self, token: Any, verify: bool = True) -> dict[str, Any]:
        """The claims of `token`, if its signature and time are valid. Raises TokenBackendError."""
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                self.get_verifying_key(token),
                algorithms=[ALGORITHM],
                audience=self.audience,
                issuer=self.issuer,
                leeway=self.get_leeway(),
                options={"require": list(_REQUIRED), "strict_aud": True, "verify_signature": verify},
            )
        except jwt.ExpiredSignatureError as error:
            raise TokenBackendExpiredToken("expired") from error
        except jwt.InvalidTokenError as error:
            raise TokenBackendError("invalid") from error
        return claims


class AccessToken(SimpleAccessToken):
    token_type = TOKEN_TYPE
    lifetime = LIFETIME

    def get_token_backend(self) -> KeyTableBackend:
        return KeyTableBackend()

    @classmethod
    def for_session(cls, *, user_id: str, session_id: str, environment_id: str | None) -> "AccessToken":
        token = cls()
        token.payload |= {"nbf": token["iat"], "sub": user_id, "sid": session_id, "env": environment_id}
        return token

    def claims(self, key_id: str) -> AccessClaims:
        environment_id = self.payload["env"]  # null is a value here, so the codec's `require` would not do
        for prefix, name in (("usr", "sub"), ("ses", "sid")):
            if not ids.matches(prefix, self.payload[name]):
                raise ValueError(name)
        if environment_id is not None and not ids.matches("env", environment_id):
            raise ValueError("env")
        return AccessClaims(
            user_id=self.payload["sub"],
            session_id=self.payload["sid"],
            environment_id=environment_id,
            not_before=int(self.payload["nbf"]),
            expires_at=int(self.payload["exp"]),
            key_id=key_id,
        )


def make_access_token(*, user_id: str, session_id: str, environment_id: str | None) -> str:
    return str(AccessToken.for_session(user_id=user_id, session_id=session_id, environment_id=environment_id))


_verified_tokens: Final[Memo[bytes, AccessClaims]] = Memo(10_000)


def verify_access_token(text: str) -> AccessClaims:
    """The claims of an access token. Raises Unauthorized for any other text. No statement except reading the key table
    every 30 s; 0.5 µs for a cached token, about 150 µs for a new one."""
    if len(text) > _MAX_LENGTH:
        raise Unauthorized
    mark = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    claims = _verified_tokens.get(mark)
    if claims is None:
        claims = _verify(text)
        _verified_tokens.put(mark, claims)
        return claims
    now = time.time()
    # A withdrawn key invalidates its tokens, cached or not.
    if claims.expires_at + api_settings.LEEWAY <= now or claims.key_id not in signing_keys.current().verifying:
        raise expired()
    # Verified before the clock was set back: others reject it as not yet valid.
    if claims.not_before - api_settings.LEEWAY > now:
        raise Unauthorized
    return claims


def expired() -> Unauthorized:
    return Unauthorized("The access token has expired. Send the refresh token to POST /v1/auth/token.")


def _verify(text: str) -> AccessClaims:
    try:
        token = AccessToken(text)  # type: ignore[arg-type]  # simplejwt's annotation is wrong: it takes the text
        return token.claims(str(jwt.get_unverified_header(text)["kid"]))
    except Error:
        raise  # a platform error, not the caller's
    except ExpiredTokenError:
        raise expired() from None
    except Exception:  # untrusted input: any exception of the codec means an invalid token
        raise Unauthorized from None
