"""Format of a key: `sk_` or `pk_`, 32 random base62 characters (190 bits), 6 of a checksum. Pure computation. A server
key (`sk_`) is a secret. A publishable one (`pk_`) is used in web pages and only grants the rules of role `anonymous`.
The prefix decides, in the text as in the record, and cannot change. The record is `accounts.models.ServerKey`;
`accounts.users.service` issues and revokes keys."""

from typing import Final

from accounts.tokens import token_format
from platform_site.identity.callers import PUBLISHABLE_KEY_PREFIX

PREFIX: Final = "sk_"
PUBLISHABLE: Final = PUBLISHABLE_KEY_PREFIX
PREFIXES: Final = (PREFIX, PUBLISHABLE)
_LENGTH: Final = 32
_SHOWN: Final = 9


def make(prefix: str = PREFIX) -> str:
    """A fresh key's text, with one of PREFIXES. It is shown once and never stored."""
    return token_format.make(prefix, _LENGTH)


def parse(text: str) -> bytes | None:
    """The SHA-256 to look up, or None if `text` cannot be a key: checked by its checksum, without the database."""
    prefix = PUBLISHABLE if text[:3] == PUBLISHABLE else PREFIX
    return token_format.digest(text) if token_format.is_well_formed(prefix, _LENGTH, text) else None


def is_publishable(text: str) -> bool:
    """Whether a key, or the beginning of one that is stored (`shown`), is a publishable one."""
    return text.startswith(PUBLISHABLE)


def digest(secret: str) -> bytes:
    """What is stored of a secret."""
    return token_format.digest(secret)


def shown(secret: str) -> str:
    """The beginning of a secret, by which its owner recognises it in lists: `sk_` and six characters."""
    return secret[:_SHOWN]
