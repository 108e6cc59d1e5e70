"""Format of secrets: `<prefix><random base62><6 characters of checksum>`, like GitHub's tokens. The checksum (CRC32)
lets scanners recognise a leaked secret, and mistyped ones be refused without the database. Pure computation."""

import hashlib
import secrets
from typing import Final
from zlib import crc32

_ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_CHECKSUM: Final = 6  # characters: 62^6 > 2^32


def characters(count: int) -> str:
    return spelled(secrets.randbelow(62**count), count)


def spelled(value: int, count: int) -> str:
    text = ""
    for _ in range(count):
        value, digit = divmod(value, 62)
        text = _ALPHABET[digit] + text
    return text


def _checksum(text: str) -> str:
    return spelled(crc32(text.encode()), _CHECKSUM)


def make(prefix: str, count: int) -> str:
    return checked(prefix + characters(count))


def checked(text: str) -> str:
    return text + _checksum(text)


def is_well_formed(prefix: str, count: int, text: str) -> bool:
    if len(text) != len(prefix) + count + _CHECKSUM or not text.isascii() or not text.startswith(prefix):
        return False
    return text[len(prefix) :].isalnum() and _checksum(text[:-_CHECKSUM]) == text[-_CHECKSUM:]


def digest(text: str) -> bytes:
    """The 32 stored bytes. A fast hash is enough for random secrets."""
    return hashlib.sha256(text.encode()).digest()
