"""Looks up the identity of a credential in one statement; `projects.api.authentication` caches it for
`platform_site.redis.round_trip.RECORD_TTL`, and `accounts.tokens.revocation` invalidates it."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import F, Q, QuerySet
from django.db.models.expressions import BaseExpression, Combinable
from django.db.models.functions import Now

from accounts.keys import server_keys
from accounts.models import ServerKey, Session
from accounts.tokens.credentials import Credential, KeyCredential
from platform_site.identity.callers import CallerKind

TOUCH_EVERY: Final = timedelta(minutes=1)
"""Precision of a key's `last_used_at`: not every request writes it."""
_OF_USER: Final = ("email", "name", "role", "claims")


@dataclass(frozen=True, slots=True)
class Identity:
    kind: CallerKind
    id: str
    expires_at: float | None
    """Unix seconds; None for a key without expiry."""
    session_id: str | None = None
    account_id: str | None = None
    """None for app users and environment keys."""
    environment_id: str | None = None
    """None for accounts and account keys."""
    email: str | None = None
    name: str | None = None
    role: str | None = None
    claims: dict[str, Any] = field(default_factory=dict)
    scopes: frozenset[str] = frozenset()
    """A key's scopes; empty for people, whose scopes follow from the environment."""
    touch_due: bool = False
    """`last_used_at` is a minute old: call `accounts.users.service.touch_key`."""


def _sessions(session_id: str) -> "QuerySet[Session, Any]":
    live = Session.objects.filter(
        pk=session_id, revoked_at__isnull=True, expires_at__gt=Now(), user__disabled_at__isnull=True
    )
    of_user = {name: F(f"user__{name}") for name in _OF_USER}
    return live.values("id", "user_id", "environment_id", "expires_at", pool_id=F("user__environment_id"), **of_user)


def _keys(secret_hash: bytes) -> "QuerySet[ServerKey, Any]":
    live = ServerKey.objects.live().filter(
        Q(account__isnull=True) | Q(account__disabled_at__isnull=True), secret_hash=secret_hash
    )
    return live.values(
        "id", "name", "prefix", "environment_id", "account_id", "scopes", "expires_at", "last_used_at", now=Now()
    )


def identify(
    credential: Credential, **annotations: BaseExpression | Combinable
) -> tuple[Identity, dict[str, Any]] | None:
    """The owner of a credential and the values of `annotations`, or None if it is not valid. One statement.
    `annotations` are expressions over `Session` or `ServerKey`, by which a higher layer reads the environment in the
    same round trip."""
    if isinstance(credential, KeyCredential):
        return _identify_key(_keys(credential.secret_hash).annotate(**annotations).first())
    claims = credential.claims
    row = _sessions(claims.session_id).annotate(**annotations).first()
    if row is None or row["user_id"] != claims.user_id or row["environment_id"] != claims.environment_id:
        return None
    return _identify_session(row)


def _identify_session(row: dict[str, Any]) -> tuple[Identity, dict[str, Any]]:
    user_id, is_account = row.pop("user_id"), row.pop("pool_id") is None
    expires_at: datetime = row.pop("expires_at")
    identity = Identity(
        kind="account" if is_account else "user",
        id=user_id,
        expires_at=expires_at.timestamp(),
        session_id=row.pop("id"),
        account_id=user_id if is_account else None,
        **{name: row.pop(name) for name in ("environment_id", *_OF_USER)},
    )
    return identity, row


def _identify_key(row: dict[str, Any] | None) -> tuple[Identity, dict[str, Any]] | None:
    if row is None:
        return None
    expires_at: datetime | None = row.pop("expires_at")
    last_used_at: datetime | None = row.pop("last_used_at")
    now: datetime = row.pop("now")
    is_publishable, name = server_keys.is_publishable(row.pop("prefix")), row.pop("name")
    identity = Identity(
        kind="anonymous" if is_publishable else "key",
        id=row.pop("id"),
        expires_at=expires_at.timestamp() if expires_at else None,
        account_id=row.pop("account_id"),
        environment_id=row.pop("environment_id"),
        name=None if is_publishable else name,  # the creator's note, and a publishable key is public
        scopes=frozenset(row.pop("scopes")),
        touch_due=last_used_at is None or now - last_used_at >= TOUCH_EVERY,
    )
    return identity, row
