"""Changes of the own account: name, password, email, deletion. A new password or email and deletion need the current
password, so that a stolen access token is not enough; without a password, deletion needs a session younger than
REAUTHENTICATION_SECONDS."""

from collections.abc import Callable
from datetime import timedelta
from typing import Final

from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from accounts.audit import Actor
from accounts.directory import environments as environment_directory
from accounts.models import Session, User
from accounts.models.registration import AccountEmail
from accounts.registration import email_outbox, one_time_links
from accounts.registration.sign_up import wrong_password
from accounts.users import emails, passwords
from accounts.users import service as user_service
from platform_site.http.errors import Forbidden, NotFound, ValidationFailed, first_or
from platform_site.identity.callers import Caller

REAUTHENTICATION_SECONDS: Final = timedelta(minutes=10)
Kind = AccountEmail.Kind


def user_of(caller: Caller) -> User:
    return first_or(User.objects.filter(pk=caller.id), NotFound)


def user_to_change(caller: Caller) -> User:
    """As `user_of`. Raises Forbidden in a preview branch."""
    environment_directory.require_own_pool(caller)
    return user_of(caller)


def pending_email(user: User) -> str | None:
    waiting = AccountEmail.objects.filter(kind=Kind.CHANGE_EMAIL, user=user, expires_at__gt=Now(), failed_at=None)
    link = waiting.first()
    return link.recipient if link is not None and one_time_links.is_bound(link, user) else None


def change(
    user: User,
    *,
    actor: Caller,
    name: str | None = None,
    password: str | None = None,
    current_password: str | None = None,
) -> User:
    """Change name or password. A new password needs the current one, and ends all other sessions. Raises
    ValidationFailed naming `current_password` or `password`."""
    values: user_service.UserChanges = {} if name is None else {"name": name}
    known = None
    if password is not None:
        known = _known_password(user, current_password)
        passwords.check_chosen(password, user)
        values["password_hash"] = passwords.hashed(password, user.environment_id)
    with transaction.atomic():
        changed = user_service.change_user(
            user, actor=actor, known_password_hash=known, kept_session_id=actor.session_id, **values
        )
        if password is not None:
            email_outbox.notify(changed, Kind.PASSWORD_CHANGED)
    return changed


def _known_password(user: User, offered: str | None) -> str:
    """The hash of the user's password, if `offered` is right. Raises ValidationFailed, RateLimited."""
    if not user.has_usable_password():
        raise ValidationFailed.of(
            "current_password", "none", "This account has no password. Request a password reset to set one."
        )
    if offered is None:
        raise ValidationFailed.of("current_password", "required", "This field is required.")
    if not passwords.is_correct(offered, user.password, user.environment_id):
        raise user_service.wrong_current_password()
    return user.password


def request_verification(user: User, *, check_limit: Callable[[], None] = lambda: None) -> None:
    """Send a verification link, unless the email is verified. `check_limit`: as in `sign_up.request_sign_up`."""
    if user.email_verified_at is None:
        check_limit()
        email_outbox.write(
            Kind.VERIFY_EMAIL, pool_id=user.environment_id, subject=user.pk, recipient=user.email, user=user
        )  # fmt: skip


def verify(link: AccountEmail) -> User:
    if link.user is None:
        raise one_time_links.invalid_link()
    with transaction.atomic():
        one_time_links.use_up(link)
        return user_service.change_user(
            link.user, actor=Actor.of(link.user), is_email_verified=True, via="email_verification"
        )


def request_email_change(
    user: User, *, email: str, current_password: str | None, check_limit: Callable[[], None] = lambda: None
) -> None:
    """Send a link to the new email, without revealing whether it is taken. `check_limit`: as in
    `sign_up.request_sign_up`. Raises ValidationFailed naming `email` or `current_password`, RateLimited."""
    recipient = emails.check(email)
    _known_password(user, current_password)
    if recipient == emails.normalize(user.email):
        raise ValidationFailed.of("email", "unchanged", "This is already the account's email.")
    check_limit()
    email_outbox.write(Kind.CHANGE_EMAIL, pool_id=user.environment_id, subject=user.pk, recipient=recipient, user=user)


def change_email(link: AccountEmail, password: str) -> User:
    """Change the email by its link and the account's password, which a recipient of a mistyped email lacks. Notifies
    the old email. Raises InvalidGrant, ValidationFailed (email taken), RateLimited."""
    before = link.user
    if before is None:
        raise one_time_links.invalid_link()
    if not passwords.is_correct(password, before.password, before.environment_id):
        one_time_links.count_wrong_password(link)
        raise wrong_password()
    with transaction.atomic():
        one_time_links.use_up(link)
        changed = user_service.change_user(
            before, actor=Actor.of(before), email=link.recipient, is_email_verified=True, via="email_change"
        )
        email_outbox.notify(before, Kind.EMAIL_CHANGED, new_email=link.recipient)
    return changed


def reauthenticate(user: User, *, actor: Caller, current_password: str | None) -> None:
    """Prove that the account's owner is present. Raises ValidationFailed naming `current_password`, RateLimited, and
    Forbidden without a password if the session is older than REAUTHENTICATION_SECONDS."""
    if user.has_usable_password():
        _known_password(user, current_password)
    elif not Session.objects.filter(Q(pk=actor.session_id), created_at__gt=Now() - REAUTHENTICATION_SECONDS).exists():
        minutes = int(REAUTHENTICATION_SECONDS.total_seconds()) // 60
        raise Forbidden(f"Sign in again first: this requires a session younger than {minutes} minutes.")
