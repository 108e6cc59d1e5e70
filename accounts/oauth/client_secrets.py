"""Client secrets as Apple wants them: JWTs signed with the team's key, a new one per token request."""

import re
import time
from typing import Final

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey

from accounts.models.oauth import IdentityProvider
from platform_site.http.errors import FieldError

LIFETIME: Final = 300
MAX_KEY_LENGTH: Final = 2_000
"""Characters. A P-256 key as PEM has about 250."""
SIGNING_KEY: Final = ("team_id", "key_id", "private_key")
_KEY_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,50}", re.ASCII)
_ALGORITHM: Final = "ES256"


def of(provider: IdentityProvider) -> str | None:
    key = provider.private_key
    if key is None:
        return provider.client_secret
    now = int(time.time())
    claims = {
        "iss": provider.team_id,
        "sub": provider.client_id,
        "aud": provider.issuer,
        "iat": now,
        "exp": now + LIFETIME,
    }
    return jwt.encode({"alg": _ALGORITHM, "kid": provider.key_id}, claims, ECKey.import_key(key))


def problems(
    team_id: str | None, key_id: str | None, private_key: str | None, *, issuer: str | None, has_secret: bool
) -> list[FieldError]:
    values = dict(zip(SIGNING_KEY, (team_id, key_id, private_key), strict=True))
    if not any(values.values()):
        return []
    wrong = [
        FieldError(name, "required", "Needed to sign client secrets: team_id, key_id and private_key.")
        for name, value in values.items()
        if not value
    ]
    for name in ("team_id", "key_id"):
        if values[name] and not _KEY_NAME.fullmatch(str(values[name])):
            wrong.append(FieldError(name, "invalid", "Must be 1-50 letters, digits, hyphens and underscores."))
    if private_key:
        wrong += _problems_of_key(private_key)
    if has_secret:
        wrong.append(
            FieldError("client_secret", "contradiction", "The private key signs client secrets: omit this one.")
        )
    if issuer is None:
        wrong.append(FieldError("private_key", "not_with_endpoints", "Only for OpenID Connect."))
    return wrong


def _problems_of_key(private_key: str) -> list[FieldError]:
    """The error of a private key. No message repeats a part of it."""
    wrong = [
        FieldError("private_key", "invalid_key", "Must be an unencrypted P-256 private key as PEM, such as a .p8 file.")
    ]
    if len(private_key) > MAX_KEY_LENGTH or "PRIVATE KEY-----" not in private_key:
        return wrong
    try:
        key = ECKey.import_key(private_key)
        jwt.encode({"alg": _ALGORITHM}, {}, key)
    except (JoseError, ValueError, TypeError):
        return wrong
    return [] if key.is_private and key.curve_name == "P-256" else wrong
