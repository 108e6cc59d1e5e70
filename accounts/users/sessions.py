"""Sessions: signing in, refreshing, revocation. One row per session, locked while its refresh token rotates. Until the
successor is used, its predecessor returns it again (two tabs, a lost response); any other reuse means theft and ends
the session. Ending a session also marks its cache entry (`accounts.tokens.revocation`). Contract 4.5, 5.6."""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, Final, Literal

from django.db import DEFAULT_DB_ALIAS, transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now

from accounts import audit
from accounts.audit import Actor
from accounts.directory import environments as environment_directory
from accounts.models import AuditEntry, Session, User
from accounts.tokens import access_tokens, refresh_tokens, revocation, signing_keys
from accounts.tokens.credentials import session_cache_name
from accounts.tokens.refresh_tokens import RefreshToken
from accounts.users import passwords
from platform_site.http.errors import InvalidGrant
from platform_site.identity.callers import Caller
from platform_site.postgres import prepared, sql_files
from platform_site.postgres.sql_files import PreparedStatement, Value
from platform_site.postgres.statements import delete_in_batches
from platform_site.security import keyring

LIFETIME: Final = timedelta(days=30)
RETENTION: Final = timedelta(days=30)
"""After `expires_at`."""
_SUCCESSOR: Final = "accounts.refresh_successor"

Reason = Literal[
    "signed_out",
    "refresh_token_reused",
    "authorization_code_reused",
    "password_changed",
    "identity_unlinked",
    "user_disabled",
    "user_deleted",
    "environment_deleted",
    "revoked_by_staff",
    "revoked_by_manager",
]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Device:
    user_agent: str = ""
    ip_address: str | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    access_token: str
    refresh_token: str
    expires_in: int
    user: User
    session_id: str


def _grant(session: Session, user: User, refresh_token: RefreshToken) -> Grant:
    access_token = access_tokens.make_access_token(
        user_id=user.pk, session_id=session.pk, environment_id=session.environment_id
    )
    return Grant(access_token, refresh_token.text, int(access_tokens.LIFETIME.total_seconds()), user, session.pk)


def sign_in(*, pool_id: str | None, environment_id: str | None, email: str, password: str, device: Device) -> Grant:
    """Start a session with email and password. `pool_id` has the user (None: platform accounts), `environment_id` is
    signed in to; they differ for a preview branch. Raises as `authenticate`."""
    user = authenticate(pool_id=pool_id, environment_id=environment_id, email=email, password=password)
    is_outdated = passwords.is_outdated(user.password, password, pool_id)
    better = passwords.hashed(password, pool_id) if is_outdated else None
    return start(user, environment_id=environment_id, device=device, method="password", password_hash=better)


def authenticate(*, pool_id: str | None, environment_id: str | None, email: str, password: str) -> User:
    """Raises InvalidGrant, after the same work for unknown, disabled and password-less users, and RateLimited."""
    user = User.objects.with_email(pool_id, email).first()
    encoded = user.password if user and user.disabled_at is None else None
    is_correct = passwords.is_correct(password, encoded, pool_id)
    if user is None or not is_correct:
        log.info("sign-in refused", extra={"environment_id": environment_id, "user_id": user.pk if user else None})
        raise InvalidGrant("The email or the password is wrong.")
    return user


def start(
    user: User, *, environment_id: str | None, device: Device, method: str, password_hash: str | None = None
) -> Grant:
    """Start a session for `user`, just authenticated by `method`. `password_hash` replaces an outdated one. Raises
    InvalidGrant if the user was disabled or got another password since it was read."""
    signing_keys.current_signing_key()  # creates the first key outside of the transaction
    first = refresh_tokens.first()
    with transaction.atomic():
        # The UPDATE locks the user's row until commit, so that ending all sessions includes this one.
        claimed = User.objects.filter(pk=user.pk, disabled_at__isnull=True, password=user.password).update(
            last_login=Now(), password=password_hash or user.password
        )
        if claimed != 1:
            raise InvalidGrant
        session = Session.objects.create(
            user=user,
            environment_id=environment_id,
            family_hash=first.family_hash,
            refresh_hash=first.hash,
            expires_at=Now() + LIFETIME,
            user_agent=device.user_agent[:300],
            ip_address=device.ip_address,
        )
        audit.record("session.started", session, actor=Actor.of(user), method=method)
    return _grant(session, user, first)


def refresh(text: str, *, device: Device) -> Grant:
    """Exchange a refresh token for its successor and an access token. Raises InvalidGrant; reuse ends the session.
    Raises ProjectSuspended, and the token stays valid."""
    offered = refresh_tokens.parse(text)
    if offered is None:
        raise InvalidGrant(
            "Malformed refresh token: it must begin with rt_, and no character may be missing or mistyped."
        )
    signing_keys.current_signing_key()
    return _rotate(offered) or _refresh_in_transaction(offered, device)


def _rotate(offered: RefreshToken) -> Grant | None:
    """One statement. None if the token is not the current one of a session, or its project is suspended."""
    successor = offered.successor()
    sealed = keyring.seal_under(offered.text.encode(), successor.text.encode(), purpose=_SUCCESSOR)
    parameters: dict[str, Value] = {
        "family_hash": offered.family_hash.hex(),
        "hash": offered.hash.hex(),
        "successor_hash": successor.hash.hex(),
        "sealed_successor": sealed.hex(),
        "lifetime": f"{LIFETIME.total_seconds()} s",
    }
    for row in prepared.run(DEFAULT_DB_ALIAS, *_rotation().bind(parameters)):
        cells: list[Any] = [None if cell is None else cell.decode() for cell in row]
        session_id, environment_id, user_id, email, name = cells
        session = Session(pk=session_id, environment_id=environment_id)
        return _grant(session, User(pk=user_id, email=email, name=name), successor)
    return None


@cache
def _rotation() -> PreparedStatement:
    suspended, _ = environment_directory.directory().suspended().query.sql_with_params()
    return PreparedStatement(sql_files.load(__file__, suspended=suspended)["rotate"])


def _refresh_in_transaction(offered: RefreshToken, device: Device) -> Grant:
    """Refresh with a token that was not the current one, or whose project was suspended."""
    found = None
    with transaction.atomic():
        session = (
            Session.objects.select_for_update(of=("self",))
            .select_related("user")
            .annotate(is_live=Q(revoked_at__isnull=True, expires_at__gt=Now(), user__disabled_at__isnull=True))
            .filter(family_hash=offered.family_hash)
            .first()
        )
        if session is not None and session.is_live:
            if bytes(session.refresh_hash) == offered.hash:
                environment_directory.require_active(session.environment_id)
                found = _rotate(offered)
            elif session.previous_hash and bytes(session.previous_hash) == offered.hash:
                environment_directory.require_active(session.environment_id)
                sealed = bytes(session.sealed_successor or b"")
                text = keyring.unseal_under(offered.text.encode(), sealed, purpose=_SUCCESSOR).decode()
                found = _grant(session, session.user, RefreshToken(text))
            else:
                end_reused(session, "refresh_token_reused", device)
    # Outside of the transaction, which must commit the end of a reused session.
    if found is None:
        raise InvalidGrant("The refresh token is unknown, expired, revoked or was used before.")
    return found


STATES: Final = ("live", "ended", "all")


def of_user(user_id: str, state: str = "live") -> "QuerySet[Session]":
    live = Q(revoked_at__isnull=True, expires_at__gt=Now())
    wanted = {"live": live, "ended": ~live, "all": Q()}[state]
    found = Session.objects.filter(wanted, user_id=user_id).annotate(has_expired=Q(expires_at__lte=Now()))
    return found.order_by("-id")


def methods_of(session_ids: Collection[str]) -> dict[str, str]:
    started = AuditEntry.objects.filter(action="session.started", target_id__in=session_ids)
    return {str(session_id): method for session_id, method in started.values_list("target_id", "detail__method")}


def _end(session_ids: Sequence[str], reason: Reason) -> None:
    Session.objects.filter(pk__in=session_ids).update(
        revoked_at=Now(), revoked_reason=reason, previous_hash=None, sealed_successor=None
    )
    revocation.revoke(session_cache_name(session_id) for session_id in session_ids)


def end_reused(session: Session, reason: Reason, device: Device) -> None:
    """End a locked session whose refresh token or code was used again, perhaps by a thief."""
    _end([session.pk], reason)
    audit.record(
        "session.revoked",
        session,
        actor=audit.SYSTEM,
        reason=reason,
        user_id=session.user_id,
        reused_from=device.ip_address,
    )
    log.warning("session ended: %s", reason, extra={"session_id": session.pk, "user_id": session.user_id})


def end_where(condition: Q, reason: Reason) -> int:
    """End the live sessions that meet `condition`, in the current transaction; returns how many."""
    with transaction.atomic():
        live = Session.objects.filter(condition, revoked_at__isnull=True).select_for_update(of=("self",)).order_by("pk")
        session_ids = list(live.values_list("pk", flat=True))
        for start_at in range(0, len(session_ids), 1000):
            _end(session_ids[start_at : start_at + 1000], reason)
    return len(session_ids)


@transaction.atomic
def revoke(
    condition: Q, *, actor: Caller | Actor, user_id: str, reason: Reason = "signed_out", scope: str | None = None
) -> int:
    count = end_where(Q(user_id=user_id) & condition, reason)
    if count:
        audit.record("session.revoked", user_id, actor=actor, reason=reason, count=count, scope=scope)
    return count


def purge() -> int:
    return delete_in_batches(Session.objects.filter(expires_at__lt=Now() - RETENTION).order_by("expires_at"))
