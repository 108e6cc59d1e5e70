"""Format of a key: `sk_` or `pk_`, 32 random base62 characters (190 bits), 6 of a checksum. Pure computation. A server
key (`sk_`) is a secret; a publishable one (`pk_`) is public and only grants the rules of role `anonymous`."""

from typing import Final

from accounts.tokens import token_format
from platform_site.identity.callers import PUBLISHABLE_KEY_PREFIX

PREFIX: Final = "sk_"
PUBLISHABLE: Final = PUBLISHABLE_KEY_PREFIX
PREFIXES: Final = (PREFIX, PUBLISHABLE)
_LENGTH: Final = 32
_SHOWN: Final = 9
digest: Final = token_format.digest


def make(prefix: str = PREFIX) -> str:
    return token_format.make(prefix, _LENGTH)


def parse(text: str) -> bytes | None:
    """The SHA-256 to look up, or None if the checksum shows that `text` is no key."""
    prefix = PUBLISHABLE if text[:3] == PUBLISHABLE else PREFIX
    return token_format.digest(text) if token_format.is_well_formed(prefix, _LENGTH, text) else None


def is_publishable(text: str) -> bool:
    return text.startswith(PUBLISHABLE)


def shown(secret: str) -> str:
    return secret[:_SHOWN]
