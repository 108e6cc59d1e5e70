"""Looks up the identity of a credential in one statement; `projects.api.authentication` caches it for
`platform_site.redis.round_trip.RECORD_TTL`, and `accounts.tokens.revocation` invalidates it."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from django.db.models import F, Q
from django.db.models.expressions import BaseExpression, Combinable
from django.db.models.functions import Now

from accounts.keys import server_keys
from accounts.models import ServerKey, Session
from accounts.tokens.access_tokens import AccessClaims
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


Found = tuple[Identity, list[dict[str, Any]]] | None


def identify(credential: Credential, environments: BaseExpression | Combinable) -> Found:
    """The owner of a credential and the value of `environments`, or None if the credential is not valid. One statement.
    `environments` is an expression over `Session` or `ServerKey`, by which a higher layer reads the environment in the
    same round trip."""
    if isinstance(credential, KeyCredential):
        return _owner_of_key(credential.secret_hash, environments)
    return _owner_of_session(credential.claims, environments)


def _owner_of_session(claims: AccessClaims, environments: BaseExpression | Combinable) -> Found:
    live = Session.objects.filter(
        pk=claims.session_id, revoked_at__isnull=True, expires_at__gt=Now(), user__disabled_at__isnull=True
    )
    of_user = {name: F(f"user__{name}") for name in _OF_USER}
    columns = live.values("user_id", "environment_id", "expires_at", pool_id=F("user__environment_id"), **of_user)
    row: Any = columns.annotate(environments=environments).first()
    if row is None or row["user_id"] != claims.user_id or row["environment_id"] != claims.environment_id:
        return None
    is_account = row["pool_id"] is None
    identity = Identity(
        kind="account" if is_account else "user",
        id=claims.user_id,
        expires_at=row["expires_at"].timestamp(),
        session_id=claims.session_id,
        account_id=claims.user_id if is_account else None,
        environment_id=claims.environment_id,
        **{name: row[name] for name in _OF_USER},
    )
    return identity, row["environments"]


def _owner_of_key(secret_hash: bytes, environments: BaseExpression | Combinable) -> Found:
    live = ServerKey.objects.live().filter(
        Q(account__isnull=True) | Q(account__disabled_at__isnull=True), secret_hash=secret_hash
    )
    columns = live.values(
        "id", "name", "prefix", "environment_id", "account_id", "scopes", "expires_at", "last_used_at", now=Now()
    )
    row = columns.annotate(environments=environments).first()
    if row is None:
        return None
    is_publishable = server_keys.is_publishable(row["prefix"])
    identity = Identity(
        kind="anonymous" if is_publishable else "key",
        id=row["id"],
        expires_at=row["expires_at"].timestamp() if row["expires_at"] else None,
        account_id=row["account_id"],
        environment_id=row["environment_id"],
        name=None if is_publishable else row["name"],  # the creator's note, and a publishable key is public
        scopes=frozenset(row["scopes"]),
        touch_due=row["last_used_at"] is None or row["now"] - row["last_used_at"] >= TOUCH_EVERY,
    )
    return identity, row["environments"]
