"""What a person brings back from a provider to have it linked to the account that they are signed in to.

Nothing is stored: a proof is a sealed statement of ours that says which person at which provider was here. It opens
nothing by itself. To link it takes a session of the account, the PKCE verifier of whoever began, and what
`accounts.registration.own_account.prove` asks for; so one that is copied, or slipped to somebody else's application,
links nothing (RFC 9700 4.5). It may come twice within its time: linking twice is linking once. Pure but for the clock.
"""

import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import asdict, dataclass
from typing import Final

import orjson

from accounts.users import exchange_codes
from platform_site.http.errors import FieldError, InvalidGrant
from platform_site.security import keyring

PREFIX: Final = "oal_"
LIFETIME: Final = 60
"""Seconds."""
LONGEST: Final = 4000
_PURPOSE: Final = "accounts.identity_proof"


@dataclass(frozen=True, slots=True)
class Proof:
    """A person at a provider, who came to `environment_id` (None: platform accounts)."""

    provider_id: str
    subject: str
    email: str | None
    environment_id: str | None
    code_challenge: str
    expires_at: int
    """Unix seconds."""


def made(*, provider_id: str, subject: str, email: str | None, environment_id: str | None, code_challenge: str) -> str:
    """The proof as the application gets it, in the place of a code."""
    proof = Proof(provider_id, subject, email, environment_id, code_challenge, int(time.time()) + LIFETIME)
    sealed = keyring.seal(orjson.dumps(asdict(proof)), purpose=_PURPOSE)
    return PREFIX + urlsafe_b64encode(sealed).decode().rstrip("=")


def opened(text: str, *, environment_id: str | None, code_verifier: str) -> Proof:
    """The proof, if it is ours, in its time, and brought to where it was asked for by whoever asked. Raises
    InvalidGrant, with one answer for all reasons."""
    value = text.removeprefix(PREFIX)
    try:
        sealed = urlsafe_b64decode(value + "=" * (-len(value) % 4))
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
        fields=[FieldError("code", "unknown", "There is no such code any more.")],
    )
