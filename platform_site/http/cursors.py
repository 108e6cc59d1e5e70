"""Cursors: values of a page's last row, encrypted and authenticated by AES-SIV (RFC 5297) under a key of SECRET_KEY.
Encrypted, because an order may use a hidden column; SIV is deterministic, so no nonce repeats. Kind and facts (table,
order, hash of `where`) are associated data: a cursor of another query does not open."""

import datetime as dt
import uuid
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

from platform_site.http.errors import ValidationFailed

Value = str | int | float | bool | None | dt.datetime | dt.date | dt.time | Decimal | uuid.UUID
Fact = str | int | bool | None | Sequence["Fact"]

MAX_CHARACTERS: Final = 8192
"""A request line is long enough for it."""
_INTEGERS: Final = range(-(2**63), 2**64)

_TAGGED: Final[tuple[tuple[str, type, Callable[[Any], str], Callable[[str], Any]], ...]] = (
    ("t", dt.datetime, dt.datetime.isoformat, dt.datetime.fromisoformat),
    ("d", dt.date, dt.date.isoformat, dt.date.fromisoformat),
    ("h", dt.time, dt.time.isoformat, dt.time.fromisoformat),
    ("n", Decimal, str, Decimal),
    ("u", uuid.UUID, str, uuid.UUID),
    ("i", int, str, int),  # beyond 64 bits; others are plain JSON
    ("f", float, repr, float),  # inf and nan; others are plain JSON
)
"""Values that are no JSON: tag, type, writer and reader."""
_READERS: Final = {tag: read for tag, _, _, read in _TAGGED}


class CursorTooLong(ValueError):
    pass


@lru_cache(maxsize=8)
def _cipher(secret: str) -> AESSIV:
    derive = HKDF(algorithm=hashes.SHA256(), length=64, salt=None, info=b"backend-platform cursors 1")
    return AESSIV(derive.derive(secret.encode()))


def _plain(value: Value) -> Any:
    kind = type(value)
    if kind is str or value is None or kind is bool:
        return value
    if kind is int and value in _INTEGERS:
        return value
    if kind is float and value - value == 0:  # type: ignore[operator]
        return value
    for tag, known, write, _ in _TAGGED:
        if isinstance(value, known):
            return [tag, write(value)]
    raise TypeError(f"a cursor cannot carry {kind.__name__}")


def encode(kind: str, facts: Sequence[Fact], values: Sequence[Value]) -> str:
    text = urlsafe_b64encode(
        _cipher(settings.SECRET_KEY).encrypt(
            orjson.dumps([_plain(value) for value in values]), [kind.encode(), orjson.dumps(facts)]
        )
    ).rstrip(b"=")
    if len(text) > MAX_CHARACTERS:
        raise CursorTooLong(f"a cursor of {len(text)} characters is longer than {MAX_CHARACTERS}")
    return text.decode()


def decode(kind: str, facts: Sequence[Fact], text: str) -> list[Value]:
    values = decode_if_of(kind, facts, text)
    if values is None:
        message = "This is not a next_cursor of this list, order and filter."
        raise ValidationFailed.of("cursor", "invalid_cursor", message)
    return values


def decode_if_of(kind: str, facts: Sequence[Fact], text: str) -> list[Value] | None:
    if len(text) > MAX_CHARACTERS:
        return None
    try:
        sealed = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return None
    if urlsafe_b64encode(sealed).rstrip(b"=") != text.encode():  # the decoder skips foreign characters and stray bits
        return None
    bound = [kind.encode(), orjson.dumps(facts)]
    for secret in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS):
        try:
            plain = _cipher(secret).decrypt(sealed, bound)
        except InvalidTag:
            continue
        return [_READERS[value[0]](value[1]) if type(value) is list else value for value in orjson.loads(plain)]
    return None
