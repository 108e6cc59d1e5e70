"""Proofs of a person's identity at a provider, to link it to the signed-in account: sealed, not stored. Linking also
needs a session, the PKCE verifier and `own_account.reauthenticate`, so a copied or injected proof links nothing (RFC
9700 4.5). Reuse within its lifetime is harmless: linking is idempotent."""

import time
from dataclasses import asdict, dataclass, field
from typing import Final

import orjson
from django.utils.http import urlsafe_base64_decode, urlsafe_base64_encode

from accounts.users import exchange_codes
from platform_site.http.errors import FieldError, InvalidGrant
from platform_site.security import keyring

PREFIX: Final = "oal_"
LIFETIME: Final = 60
MAX_LENGTH: Final = 4000
_PURPOSE: Final = "accounts.identity_proof"


@dataclass(frozen=True, slots=True)
class Proof:
    provider_id: str
    subject: str
    email: str | None
    environment_id: str | None
    code_challenge: str
    issuer: str | None
    expires_at: int = field(default_factory=lambda: int(time.time()) + LIFETIME)
    """Unix seconds."""


def seal(proof: Proof) -> str:
    return PREFIX + urlsafe_base64_encode(keyring.seal(orjson.dumps(asdict(proof)), purpose=_PURPOSE))


def read(text: str, *, environment_id: str | None, code_verifier: str) -> Proof:
    """The proof, if authentic, unexpired, and for this environment and verifier. Raises InvalidGrant."""
    try:
        sealed = urlsafe_base64_decode(text.removeprefix(PREFIX))
        proof = Proof(**orjson.loads(keyring.unseal(sealed, purpose=_PURPOSE)))
    except (ValueError, TypeError, keyring.KeyringError):
        raise refused() from None
    if (
        not text.startswith(PREFIX)
        or proof.expires_at < time.time()
        or proof.environment_id != environment_id
        or not exchange_codes.proves(code_verifier, proof.code_challenge)
    ):
        raise refused()
    return proof


def refused() -> InvalidGrant:
    return InvalidGrant(
        "The code is unknown, expired or belongs to another request.",
        fields=[FieldError("code", "unknown", "The code is not valid.")],
    )
