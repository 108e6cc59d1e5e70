"""Signing secrets, sealed in the database, and signatures after the Standard Webhooks specification
(https://www.standardwebhooks.com), by its library."""

import base64
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from standardwebhooks import Webhook as Signer

from platform_site.security import keyring

SECRET_BYTES: Final = 32
SECRET_PURPOSE: Final = "webhooks.secret"  # noqa: S105 - a purpose, not a secret


@dataclass(frozen=True, slots=True)
class PreviousSecret:
    text: str
    until: datetime


def new_secret() -> str:
    return "whsec_" + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def seal(secret: str) -> bytes:
    return keyring.seal(secret.encode(), purpose=SECRET_PURPOSE)


def unseal(sealed: bytes | memoryview) -> str:
    """Raises KeyringError."""
    return keyring.unseal(sealed, purpose=SECRET_PURPOSE).decode()


def seal_previous(previous: Sequence[PreviousSecret]) -> bytes:
    return seal(json.dumps([[secret.text, secret.until.isoformat()] for secret in previous]))


def unseal_previous(sealed: bytes | memoryview | None, until: datetime | None, now: datetime) -> list[PreviousSecret]:
    """Those that still sign at `now`, newest first. `until` is the newest one's end. Raises KeyringError."""
    if sealed is None or until is None or until <= now:
        return []
    listed = [PreviousSecret(text, datetime.fromisoformat(end)) for text, end in json.loads(unseal(sealed))]
    return [secret for secret in listed if secret.until > now]


def headers(signing_secrets: Sequence[str], message_id: str, sent_at: datetime, body: str) -> dict[str, str]:
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(sent_at.timestamp())),
        "webhook-signature": " ".join(Signer(secret).sign(message_id, sent_at, body) for secret in signing_secrets),
    }
