"""The ES256 key pairs that sign access tokens: created on first use, sealed, rotated with an overlap. A new key is
public PUBLISHED_AHEAD before it signs, and verifies OVERLAP longer than it signs. Each process caches the table for
REFRESH_SECONDS, or until an unknown key appears. ASVS 9.1.3 (keys only from our own table, by their exact id)."""

import threading
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric import ec
from django.db import DEFAULT_DB_ALIAS, transaction
from django.db.models import Q
from django.db.models.functions import Now
from joserfc.jwk import ECKey

from accounts import audit
from accounts.directory import locks as account_locks
from accounts.models import SigningKey
from platform_site.concurrency import loop_requests
from platform_site.postgres import sql_functions
from platform_site.security import keyring

PURPOSE: Final = "accounts.signing_key"
REFRESH_SECONDS: Final = 30
PUBLISHED_AHEAD: Final = timedelta(minutes=10)
"""Twice the `max-age` of the JWKS."""
OVERLAP: Final = timedelta(minutes=16)
"""The 900 s of an access token, and clock differences."""
_RELOAD_SPACING: Final = 0.1


@dataclass(frozen=True, slots=True)
class Keys:
    verifying: dict[str, ec.EllipticCurvePublicKey]
    public: list[dict[str, Any]]
    signing: tuple[str, bytes] | None
    """`kid` and sealed private half of the current key; None before the first one."""
    loaded_at: float


_NONE = Keys({}, [], None, float("-inf"))
_keys = _NONE
_lock = threading.Lock()


@lru_cache(maxsize=1)
def _private_key(sealed: bytes) -> ec.EllipticCurvePrivateKey:
    key = ECKey.import_key(keyring.unseal(sealed, purpose=PURPOSE)).private_key
    if key is None:
        raise TypeError("a signing key has no private half")
    return key


def _load() -> Keys:
    rows = list(
        SigningKey.objects.annotate(signs=Q(signs_from__lte=Now()))
        .filter(Q(retires_at__isnull=True) | Q(retires_at__gt=Now()))
        .order_by("-signs_from", "-kid")
    )
    signing = next((row for row in rows if row.signs), None)
    return Keys(
        verifying={
            row.kid: _keys.verifying.get(row.kid) or ECKey.import_key(row.public_jwk).public_key for row in rows
        },
        public=[row.public_jwk for row in rows],
        signing=(signing.kid, bytes(signing.sealed_private)) if signing else None,
        loaded_at=time.monotonic(),
    )


def _reload(older_than: float) -> Keys:
    global _keys
    loop_requests.require_thread()  # the event loop must not wait for the database or the lock
    with _lock:
        if time.monotonic() - _keys.loaded_at >= older_than:
            _keys = _load()
        return _keys


def current() -> Keys:
    """The table, at most REFRESH_SECONDS old."""
    if time.monotonic() - _keys.loaded_at < REFRESH_SECONDS:
        return _keys
    return _reload(REFRESH_SECONDS)


def verifying(kid: str) -> ec.EllipticCurvePublicKey | None:
    """The public key with this id, or None. An unknown id reloads the table, at most ten times a second."""
    known = current().verifying.get(kid)
    return known or _reload(_RELOAD_SPACING if _keys.verifying else 0).verifying.get(kid)


def current_signing_key() -> tuple[str, ec.EllipticCurvePrivateKey]:
    """`kid` and private key to sign with; makes the first one. Call it outside a transaction that may roll back."""
    signing = current().signing
    if signing is None:
        make_first()
        signing = _reload(0).signing
    if signing is None:
        raise RuntimeError("there is no signing key although one was just made")
    kid, sealed = signing
    return kid, _private_key(sealed)


def forget() -> None:
    global _keys
    _keys = _NONE
    _private_key.cache_clear()


def _make(signs_from: datetime) -> SigningKey:
    key = ECKey.generate_key("P-256")
    kid = key.thumbprint()  # RFC 7638: anyone can recompute it from the public key
    return SigningKey.objects.create(
        kid=kid,
        sealed_private=keyring.seal(key.as_der(private=True), purpose=PURPOSE),
        public_jwk=key.as_dict(private=False, kid=kid, use="sig", alg="ES256"),
        signs_from=signs_from,
    )


@transaction.atomic
def make_first() -> None:
    """Make a first key that signs at once; of concurrent processes one makes it."""
    account_locks.hold("signing keys")
    if not SigningKey.objects.filter(retires_at__isnull=True).exists():
        key = _make(sql_functions.now(DEFAULT_DB_ALIAS))
        audit.record("signing_key.made", key, actor=audit.SYSTEM)


@transaction.atomic
def rotate(*, actor: audit.Actor, immediately: bool = False) -> SigningKey:
    """Make a new key and set the end of all others: it signs after PUBLISHED_AHEAD, they verify OVERLAP longer.
    `immediately`, for a leaked key, ends all access tokens in use; other processes follow within REFRESH_SECONDS."""
    account_locks.hold("signing keys")
    now = sql_functions.now(DEFAULT_DB_ALIAS)
    signs_from = now if immediately or not SigningKey.objects.exists() else now + PUBLISHED_AHEAD
    retires_at = now if immediately else signs_from + OVERLAP
    SigningKey.objects.filter(Q(retires_at__isnull=True) | Q(retires_at__gt=retires_at)).update(retires_at=retires_at)
    key = _make(signs_from)
    audit.record("signing_key.rotated", key, actor=actor, immediately=immediately)
    transaction.on_commit(forget)
    return key


def remove_retired() -> int:
    return SigningKey.objects.filter(retires_at__lt=Now() - timedelta(days=1)).delete()[0]
