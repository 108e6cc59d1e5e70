"""Opaque secrets: `<prefix><random base62><6 characters of checksum>`, as GitHub writes its tokens. The checksum is the
CRC32 of prefix and random part, in base62. It guards nothing: it lets a scanner recognise a leaked secret, and lets us
refuse a mistyped or invented one without asking the database. Pure computation."""

import hashlib
import secrets
from typing import Final
from zlib import crc32

_ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_CHECKSUM: Final = 6  # characters: 62^6 > 2^32


def characters(count: int) -> str:
    """Random base62 characters, 5.95 bits each."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(count))


def spelled(value: int, count: int) -> str:
    """The last `count` digits of the number in base62."""
    text = ""
    for _ in range(count):
        value, digit = divmod(value, 62)
        text = _ALPHABET[digit] + text
    return text


def _checksum(text: str) -> str:
    return spelled(crc32(text.encode()), _CHECKSUM)


def make(prefix: str, count: int) -> str:
    """A fresh secret with `count` random characters between prefix and checksum."""
    return checked(prefix + characters(count))


def checked(text: str) -> str:
    """A secret of these characters: with its checksum."""
    return text + _checksum(text)


def is_well_formed(prefix: str, count: int, text: str) -> bool:
    """Whether `text` has the form of a secret made with this prefix and count, checksum included."""
    if len(text) != len(prefix) + count + _CHECKSUM or not text.isascii() or not text.startswith(prefix):
        return False
    return text[len(prefix) :].isalnum() and _checksum(text[:-_CHECKSUM]) == text[-_CHECKSUM:]


def digest(text: str) -> bytes:
    """The 32 bytes that are stored in its place. A fast hash will do: the secrets are random, not chosen by people."""
    return hashlib.sha256(text.encode()).digest()
