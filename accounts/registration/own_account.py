"""What people change of their own account: name, password, address, and its end.

Whatever could take an account from its owner (a new password, another address, deleting it) asks for the current
password, so that a stolen access token is not enough. Who has none signed in through a provider: a link from "forgotten
password" gives them one; deleting takes a session that is younger than FRESH instead.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Final

from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from accounts.audit import Actor
from accounts.models import Session, User
from accounts.models.registration import AccountEmail
from accounts.registration import email_outbox, one_time_links
from accounts.registration.sign_up import wrong_password
from accounts.users import emails, passwords
from accounts.users import service as user_service
from accounts.users.service import UNSET, Unset
from platform_site.http.errors import Forbidden, NotFound, ValidationFailed
from platform_site.identity.callers import Caller

FRESH: Final = timedelta(minutes=10)
Kind = AccountEmail.Kind


def of(caller: Caller) -> User:
    """The user behind a session. One query. Raises NotFound if it was deleted a moment ago."""
    user = User.objects.filter(pk=caller.id).first()
    if user is None:
        raise NotFound
    return user


def pending_email(user: User) -> str | None:
    """The address that the user asked to change to, while its link can confirm it. One query."""
    waiting = AccountEmail.objects.filter(kind=Kind.CHANGE_EMAIL, user=user, expires_at__gt=Now(), failed_at=None)
    found = waiting.first()
    return found.recipient if found is not None and one_time_links.is_bound(found, user) else None


def change(
    user: User,
    *,
    actor: Caller,
    name: str | Unset = UNSET,
    password: str | Unset = UNSET,
    current_password: str | None = None,
) -> User:
    """Change one's own name or password. A new password needs the current one, and ends all other sessions.

    Raises ValidationFailed naming `current_password` or `password`.
    """
    known: str | Unset = UNSET
    password_hash: str | Unset = UNSET
    if not isinstance(password, Unset):
        known = _known_password(user, current_password)
        passwords.check_chosen(password, user)
        password_hash = passwords.hashed(password)
    with transaction.atomic():
        changed = user_service.change_user(
            user,
            actor=actor,
            name=name,
            password_hash=password_hash,
            known_password_hash=known,
            kept_session_id=actor.session_id,
        )
        if not isinstance(password, Unset):
            email_outbox.tell(changed, Kind.PASSWORD_CHANGED, recipient=changed.email)
    return changed


def _known_password(user: User, offered: str | None) -> str:
    """The hash of the user's password, if `offered` is that password. Raises ValidationFailed, RateLimited."""
    if not user.has_usable_password():
        raise ValidationFailed.of(
            "current_password", "none", "This account has no password. Ask for one as if it was forgotten."
        )
    if offered is None:
        raise ValidationFailed.of("current_password", "required", "This field is required.")
    if not passwords.is_right(offered, user.password):
        raise user_service.wrong_password()
    return user.password


# ── The address ──


def ask_to_verify(user: User, *, admit: Callable[[], None] = lambda: None) -> None:
    """Send a link to the user's address. Nothing is sent if it is verified already. `admit` as in `sign_up.ask`."""
    if user.email_verified_at is None:
        admit()
        email_outbox.write(
            Kind.VERIFY_EMAIL, pool_id=user.environment_id, subject=user.pk, recipient=user.email, user=user
        )  # fmt: skip


def verify(token: str, *, pool_id: str | None | Unset = UNSET) -> User:
    """The link reached the address: it is the user's. Raises InvalidGrant."""
    found = one_time_links.find(token, Kind.VERIFY_EMAIL, pool_id=pool_id)
    if found.user is None:
        raise one_time_links.dead()
    with transaction.atomic():
        one_time_links.use_up(found)
        return user_service.change_user(
            found.user, actor=Actor.of(found.user), is_email_verified=True, via="email_verification"
        )


def ask_for_email(
    user: User, *, email: str, current_password: str | None, admit: Callable[[], None] = lambda: None
) -> None:
    """Send a link to the new address. Whether another user has it is not told.

    `admit` as in `sign_up.ask`. Raises ValidationFailed naming `email` or `current_password`, RateLimited.
    """
    recipient = emails.check(email)
    _known_password(user, current_password)
    if recipient == emails.normalised(user.email):
        raise ValidationFailed.of("email", "unchanged", "This is the address of the account already.")
    admit()
    email_outbox.write(Kind.CHANGE_EMAIL, pool_id=user.environment_id, subject=user.pk, recipient=recipient, user=user)


def change_email(token: str, password: str, *, pool_id: str | None | Unset = UNSET) -> User:
    """The link reached the new address, and whoever holds it knows the account's password: change the address.

    Without the password a link to a mistyped address would hand the account to whoever has that one. The old address is
    told. Raises InvalidGrant, ValidationFailed if another user got the address meanwhile, RateLimited.
    """
    found = one_time_links.find(token, Kind.CHANGE_EMAIL, pool_id=pool_id)
    if found.user is None:
        raise one_time_links.dead()
    if not passwords.is_right(password, found.user.password):
        one_time_links.count_wrong_password(found)
        raise wrong_password()
    with transaction.atomic():
        before = one_time_links.use_up(found).user
        if before is None:
            raise one_time_links.dead()
        changed = user_service.change_user(
            before, actor=Actor.of(before), email=found.recipient, is_email_verified=True, via="email_change"
        )
        email_outbox.tell(before, Kind.EMAIL_CHANGED, recipient=before.email, new_email=found.recipient)
    return changed


# ── The end ──


def delete(user: User, *, actor: Caller, current_password: str | None) -> None:
    """Delete one's own account, for good, with its sessions. Rows that name the user follow their columns' policies.

    Raises as `prove`, and Conflict for the only owner of a project.
    """
    prove(user, actor=actor, current_password=current_password)
    user_service.delete_user(user, actor=actor)


def prove(user: User, *, actor: Caller, current_password: str | None) -> None:
    """That the owner of the account is here, and not only somebody with a token of theirs.

    Raises ValidationFailed naming `current_password`, RateLimited; Forbidden for a user without a password whose
    session is not FRESH.
    """
    if user.has_usable_password():
        _known_password(user, current_password)
    elif not Session.objects.filter(Q(pk=actor.session_id), created_at__gt=Now() - FRESH).exists():
        minutes = int(FRESH.total_seconds()) // 60
        raise Forbidden(f"Sign in again first: this takes a session that is younger than {minutes} minutes.")
