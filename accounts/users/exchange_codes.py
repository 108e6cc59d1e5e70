"""One-time codes, exchanged once for the tokens of a session. `oac_`, 43 random characters (256 bits), 6 of a checksum;
stored as SHA-256. A code is bound to environment, redirect URI and PKCE challenge. A refused exchange leaves it valid;
reuse after GRACE ends its session (RFC 6749 4.1.2). Contract 4.5; RFC 7636, RFC 9700 2.1.1."""

import hmac
import logging
import re
from datetime import timedelta
from typing import Final

from authlib.oauth2.rfc7636 import create_s256_code_challenge
from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from accounts.audit import Actor
from accounts.directory import environments as environment_directory
from accounts.models import Session, User
from accounts.models.oauth import AuthorizationCode
from accounts.tokens import signing_keys, token_format
from accounts.users import sessions
from accounts.users.sessions import Device, Grant, Reason
from platform_site.http.errors import InvalidGrant
from platform_site.identity.callers import Caller

PREFIX: Final = "oac_"
LIFETIME: Final = timedelta(seconds=60)
GRACE: Final = timedelta(seconds=10)
"""A retry within this time does not end the session."""
RETENTION: Final = timedelta(hours=1)
"""After `expires_at`."""
_LENGTH: Final = 43
_CHALLENGE: Final = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
_VERIFIER: Final = re.compile(r"[A-Za-z0-9._~-]{43,128}", re.ASCII)
_REFUSED: Final = "The code is unknown, expired, was used before or belongs to another request."

log = logging.getLogger("platform.oauth")


def is_challenge(text: str) -> bool:
    """Whether this can be an S256 challenge (RFC 7636 4.2)."""
    return _CHALLENGE.fullmatch(text) is not None


def issue(user: User, *, environment_id: str | None, redirect_uri: str, code_challenge: str | None, method: str) -> str:
    text = token_format.make(PREFIX, _LENGTH)
    AuthorizationCode.objects.create(
        code_hash=token_format.digest(text),
        user=user,
        environment_id=environment_id,
        method=method[:60],
        redirect_uri=redirect_uri,
        code_challenge=code_challenge,
        expires_at=Now() + LIFETIME,
    )
    return text


def exchange(
    text: str, *, environment_id: str | None, redirect_uri: str | None, code_verifier: str | None, device: Device
) -> Grant:
    """Start the session of a code. Raises InvalidGrant, and ProjectSuspended (the code stays valid)."""
    if not token_format.is_well_formed(PREFIX, _LENGTH, text):
        raise InvalidGrant(_REFUSED)
    code = AuthorizationCode.objects.select_related("user").filter(pk=token_format.digest(text)).first()
    if code is None or code.environment_id != environment_id:
        raise InvalidGrant(_REFUSED)
    environment_directory.require_active(code.environment_id)
    if code.used_at is not None:
        _end_if_replayed(code, device)
        raise InvalidGrant(_REFUSED)
    if redirect_uri not in (None, code.redirect_uri) or not proves(code_verifier, code.code_challenge):
        log.info("code refused", extra={"environment_id": environment_id, "user_id": code.user_id})
        raise InvalidGrant(_REFUSED)
    signing_keys.current_signing_key()  # creates the first key outside of the transaction
    with transaction.atomic():
        claimed = AuthorizationCode.objects.filter(pk=code.pk, used_at__isnull=True, expires_at__gt=Now()).update(
            used_at=Now()
        )
        if claimed != 1:
            raise InvalidGrant(_REFUSED)
        grant = sessions.start(code.user, environment_id=environment_id, device=device, method=code.method)
        AuthorizationCode.objects.filter(pk=code.pk).update(session_id=grant.session_id)
    return grant


def withdraw(user_id: str, within: Q = Q()) -> None:  # noqa: B008 - immutable
    """Withdraw the user's unused codes, in the current transaction. An exchange that has claimed its code before has
    committed its session when this returns."""
    AuthorizationCode.objects.filter(within, user_id=user_id, used_at__isnull=True).delete()


@transaction.atomic
def end_sessions(
    user_id: str,
    *,
    actor: Caller | Actor,
    reason: Reason,
    scope: str | None = None,
    within: Q = Q(),  # noqa: B008
    kept_session_id: str | None = None,
) -> None:
    """End the user's sessions but the kept one, and first withdraw the codes that could still start one. `within`
    limits both to an environment."""
    withdraw(user_id, within)
    sessions.revoke(within & ~Q(pk=kept_session_id or ""), actor=actor, user_id=user_id, reason=reason, scope=scope)


def proves(code_verifier: str | None, challenge: str | None) -> bool:
    """Whether the verifier matches the challenge (RFC 7636 4.6), or both are missing."""
    if challenge is None:
        # A verifier without a challenge: the challenge was removed from the request (RFC 9700 4.8.2).
        return code_verifier is None
    if code_verifier is None or not _VERIFIER.fullmatch(code_verifier):
        return False
    return hmac.compare_digest(create_s256_code_challenge(code_verifier), challenge)


def _end_if_replayed(code: AuthorizationCode, device: Device) -> None:
    with transaction.atomic():
        replayed = AuthorizationCode.objects.filter(pk=code.pk, used_at__lt=Now() - GRACE).values("session_id")
        session = Session.objects.select_for_update().filter(pk__in=replayed, revoked_at__isnull=True).first()
        if session is not None:
            sessions.end_reused(session, "authorization_code_reused", device)


def purge() -> int:
    return AuthorizationCode.objects.filter(expires_at__lt=Now() - RETENTION).delete()[0]
