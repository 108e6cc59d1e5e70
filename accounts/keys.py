"""The form of a server key: `sk_`, 32 random base62 characters (190 bits), 6 of checksum. Pure computation.

The record is `accounts.models.ServerKey`; issuing and revoking are verbs of `accounts.services`. Design section 4.
"""

from typing import Final

from accounts import opaque

PREFIX: Final = "sk_"
_LENGTH: Final = 32
_SHOWN: Final = 9


def make() -> str:
    """A fresh secret. It is shown once and never stored."""
    return opaque.make(PREFIX, _LENGTH)


def parse(text: str) -> bytes | None:
    """The SHA-256 to look up, or None if `text` cannot be a key: checked by its checksum, without the database."""
    return opaque.digest(text) if opaque.is_well_formed(PREFIX, _LENGTH, text) else None


def digest(secret: str) -> bytes:
    """What is stored of a secret."""
    return opaque.digest(secret)


def shown(secret: str) -> str:
    """The beginning of a secret, by which its owner recognises it in lists: `sk_` and six characters."""
    return secret[:_SHOWN]
