"""Signatures after the Standard Webhooks specification (https://www.standardwebhooks.com). Pure."""

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from typing import Final

SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - the prefix of one
SECRET_BYTES: Final = 32


class InvalidSecret(ValueError):
    """A signing secret that is not `whsec_` and base64 of 24 to 64 bytes."""


def new_secret() -> str:
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def decode_secret(text: str) -> bytes:
    """The key bytes of a `whsec_…` secret. Raises InvalidSecret."""
    try:
        key = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidSecret("a signing secret is whsec_ and base64") from None
    if not text.startswith(SECRET_PREFIX) or not 24 <= len(key) <= 64:
        raise InvalidSecret("a signing secret is whsec_ and base64 of 24 to 64 bytes")
    return key


def sign(secret: bytes, message_id: str, sent_at: int, body: bytes) -> str:
    """One `v1,<base64>` signature: HMAC-SHA256 over `message_id.sent_at.body`. `secret` is decoded (24-64 bytes);
    `sent_at` is Unix seconds of this attempt; `body` the bytes sent. Raises InvalidSecret."""
    if not 24 <= len(secret) <= 64:
        raise InvalidSecret("a signing secret has 24 to 64 bytes")
    digest = hmac.new(secret, f"{message_id}.{sent_at}.".encode() + body, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def headers(keys: Sequence[bytes], message_id: str, sent_at: int, body: bytes) -> dict[str, str]:
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(sent_at),
        "webhook-signature": " ".join(sign(key, message_id, sent_at, body) for key in keys),
    }
