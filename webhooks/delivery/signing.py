"""Signatures after the Standard Webhooks specification (https://www.standardwebhooks.com), by its library."""

import base64
import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from standardwebhooks import Webhook as Signer

SECRET_BYTES: Final = 32


def new_secret() -> str:
    return "whsec_" + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def headers(signing_secrets: Sequence[str], message_id: str, sent_at: datetime, body: str) -> dict[str, str]:
    """The signature headers of an attempt. `sent_at`: its time in UTC; `body`: the text that is sent."""
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(sent_at.timestamp())),
        "webhook-signature": " ".join(Signer(secret).sign(message_id, sent_at, body) for secret in signing_secrets),
    }
