"""Cursors: values of a page's last row, encrypted and authenticated by AES-SIV (RFC 5297) under a key of SECRET_KEY.
Encrypted, because an order may use a hidden column; SIV is deterministic, so no nonce repeats. Kind and facts (table,
order, hash of `where`) are associated data: a cursor of another query does not open."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Final

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

from platform_site.http.errors import ValidationFailed

Value = str | int | None | datetime
Fact = str | int | bool | None | Sequence["Fact"]

MAX_CHARACTERS: Final = 8192
"""A request line is long enough for it."""
_TIME: Final = "t"
"""Marks a pair as a time, which JSON does not have."""


class CursorTooLong(ValueError):
    pass


@lru_cache(maxsize=8)
def _cipher(secret: str) -> AESSIV:
    derive = HKDF(algorithm=hashes.SHA256(), length=64, salt=None, info=b"backend-platform cursors 1")
    return AESSIV(derive.derive(secret.encode()))


def encode(kind: str, facts: Sequence[Fact], values: Sequence[Value]) -> str:
    plain = orjson.dumps([[_TIME, each.isoformat()] if isinstance(each, datetime) else each for each in values])
    sealed = _cipher(settings.SECRET_KEY).encrypt(plain, [kind.encode(), orjson.dumps(facts)])
    text = urlsafe_b64encode(sealed).rstrip(b"=")
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
        return [datetime.fromisoformat(each[1]) if type(each) is list else each for each in orjson.loads(plain)]
    return None
