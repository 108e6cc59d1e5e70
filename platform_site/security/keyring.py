"""Secrets at rest: AES-256-GCM under the platform's keys (`seal`; the purpose is associated data, so a value cannot
move to another column), or under a key of a client's secret (`seal_under`); and MACs. The first of
`settings.ENCRYPTION_KEYS` seals, all unseal (docs/how-to/operations/rotation.md).

    sealed        = 0x01 | key id (8) | nonce (12) | ciphertext | tag (16)
    sealed under  = 0x02 | salt (16)  | nonce (12) | ciphertext | tag (16)"""

import hashlib
import hmac
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

_SEALED: Final = b"\x01"
_SEALED_UNDER: Final = b"\x02"
_KEY_ID: Final = 8
_SALT: Final = 16
_NONCE: Final = 12
_TAG: Final = 16
OVERHEAD: Final = 1 + _KEY_ID + _NONCE + _TAG
MAC: Final = 16


class KeyringError(Exception):
    pass


class UnknownKey(KeyringError):
    pass


class Tampered(KeyringError):
    """Changed, or sealed for another purpose or under another secret."""


@dataclass(frozen=True, slots=True)
class _Ring:
    sealing_id: bytes
    ciphers: dict[bytes, AESGCM]
    mac_keys: tuple[bytes, ...]


@lru_cache(maxsize=4)
def _ring(keys: tuple[str, ...]) -> _Ring:
    ciphers: dict[bytes, AESGCM] = {}
    mac_keys = []
    for index, text in enumerate(keys, 1):
        try:
            key = bytes.fromhex(text)
        except ValueError:
            key = b""
        if len(key) != 32:
            raise ImproperlyConfigured(f"ENCRYPTION_KEYS: entry {index} must be 64 hex digits (32 bytes)")
        ciphers[hashlib.sha256(b"backend-platform key id\0" + key).digest()[:_KEY_ID]] = AESGCM(key)
        mac_keys.append(HKDF(hashes.SHA256(), 32, salt=None, info=b"backend-platform mac").derive(key))
    if not ciphers:
        raise ImproperlyConfigured("ENCRYPTION_KEYS is empty: at least one key of 64 hex digits is needed")
    return _Ring(next(iter(ciphers)), ciphers, tuple(mac_keys))


def _current() -> _Ring:
    return _ring(tuple(settings.ENCRYPTION_KEYS))


def seal(plaintext: bytes, *, purpose: str) -> bytes:
    """`purpose` names the column (`accounts.signing_key`)."""
    ring = _current()
    header = _SEALED + ring.sealing_id
    nonce = os.urandom(_NONCE)
    return header + nonce + ring.ciphers[ring.sealing_id].encrypt(nonce, plaintext, header + purpose.encode())


def unseal(sealed: bytes | memoryview, *, purpose: str) -> bytes:
    """Raises UnknownKey or Tampered."""
    sealed = bytes(sealed)  # a database driver may hand over a memoryview
    if len(sealed) < OVERHEAD or sealed[:1] != _SEALED:
        raise Tampered(f"not a sealed value ({purpose})")
    header, nonce = sealed[: 1 + _KEY_ID], sealed[1 + _KEY_ID : 1 + _KEY_ID + _NONCE]
    cipher = _current().ciphers.get(header[1:])
    if cipher is None:
        raise UnknownKey(f"sealed with key {header[1:].hex()}, which is not in ENCRYPTION_KEYS ({purpose})")
    try:
        return cipher.decrypt(nonce, sealed[1 + _KEY_ID + _NONCE :], header + purpose.encode())
    except InvalidTag:
        raise Tampered(f"the sealed value does not open for this purpose ({purpose})") from None


def current_header() -> bytes:
    return _SEALED + _current().sealing_id


def rewrap(sealed: bytes, *, purpose: str) -> bytes:
    """Unchanged if the first platform key has sealed it. Raises as `unseal`."""
    if bytes(sealed).startswith(current_header()):
        return bytes(sealed)
    return seal(unseal(sealed, purpose=purpose), purpose=purpose)


def mac(message: bytes, *, purpose: str) -> bytes:
    return _mac(_current().mac_keys[0], message, purpose)


def is_mac(given: bytes, message: bytes, *, purpose: str) -> bool:
    """In constant time."""
    return any(hmac.compare_digest(given, known) for known in macs(message, purpose=purpose))


def macs(message: bytes, *, purpose: str) -> Iterator[bytes]:
    return (_mac(key, message, purpose) for key in _current().mac_keys)


def _mac(key: bytes, message: bytes, purpose: str) -> bytes:
    return hmac.digest(key, purpose.encode() + b"\0" + message, "sha256")[:MAC]


def _derived(secret: bytes, salt: bytes, purpose: str) -> AESGCM:
    info = b"backend-platform sealed under a secret\0" + purpose.encode()
    return AESGCM(HKDF(algorithm=hashes.SHA256(), length=32, salt=salt, info=info).derive(secret))


def seal_under(secret: bytes, plaintext: bytes, *, purpose: str) -> bytes:
    """HKDF does not slow guessing down."""
    salt, nonce = os.urandom(_SALT), os.urandom(_NONCE)
    header = _SEALED_UNDER + salt
    return header + nonce + _derived(secret, salt, purpose).encrypt(nonce, plaintext, header)


def unseal_under(secret: bytes, sealed: bytes, *, purpose: str) -> bytes:
    sealed = bytes(sealed)
    if len(sealed) < 1 + _SALT + _NONCE + _TAG or sealed[:1] != _SEALED_UNDER:
        raise Tampered(f"not a value sealed under a secret ({purpose})")
    header, nonce = sealed[: 1 + _SALT], sealed[1 + _SALT : 1 + _SALT + _NONCE]
    try:
        return _derived(secret, header[1:], purpose).decrypt(nonce, sealed[1 + _SALT + _NONCE :], header)
    except InvalidTag:
        raise Tampered(f"the value does not open with this secret ({purpose})") from None


@dataclass(frozen=True, slots=True)
class SealedField:
    model: str
    field: str
    purpose: str


sealed_fields: Final[list[SealedField]] = []


def register_sealed_field(model: str, field: str, *, purpose: str) -> None:
    sealed_fields.append(SealedField(model, field, purpose))
