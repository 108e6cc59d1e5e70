"""Sign-up: requesting an account, and confirming the email. There is no user until the link was used together with the
chosen password: so nobody can reserve another person's email or leave a "pre-hijacked" account."""

from collections.abc import Callable
from typing import Final, TypeVar

from django.db import transaction

from accounts.models import User
from accounts.models.registration import AccountEmail, SignUpMode
from accounts.registration import email_outbox, one_time_links, pool_settings
from accounts.registration.pool_settings import Pool
from accounts.users import emails, passwords
from accounts.users import service as user_service
from platform_site.http.errors import FieldError, Forbidden, InvalidGrant

Kind = AccountEmail.Kind
Created = TypeVar("Created")


def request_sign_up(
    pool: Pool, *, email: str, password: str, name: str = "", check_limit: Callable[[], None] = lambda: None
) -> None:
    """Request an account. Does the same work if the email has one. `check_limit` is called when all else is valid.
    Raises Forbidden (sign-up closed), ValidationFailed, QuotaExceeded, RateLimited."""
    _check_mode(pool.id)
    recipient = emails.check(email)
    passwords.check_chosen(password, User(email=recipient, name=name))
    if pool.most_users is not None:
        user_service.check_room(pool.id, pool.most_users)
    check_limit()
    password_hash = passwords.hashed(password, pool.id)
    email_outbox.write(Kind.SIGN_UP, pool_id=pool.id, recipient=recipient, name=name, password_hash=password_hash)


_SIGN_UP_DISABLED: Final = "`sign_up` of PATCH /v1/auth/settings is off."
_NO_ENVIRONMENT: Final = (
    "no environment is named, so a platform account is meant. An application's users sign up with the header "
    "X-Environment."
)


def _check_mode(pool_id: str | None) -> None:
    mode = pool_settings.settings_of(pool_id).sign_up
    if mode == SignUpMode.INVITED:
        raise Forbidden("Accounts are created by invitation only.")
    if mode != SignUpMode.OPEN:
        raise Forbidden(f"Sign-up is disabled here: {_SIGN_UP_DISABLED if pool_id else _NO_ENVIRONMENT}")


def confirm(link: AccountEmail, password: str, on_created: Callable[[User], Created]) -> Created:
    """Create the user by the link and the chosen password. Returns what `on_created` returns, which is called in the
    same transaction. Raises InvalidGrant naming `token` or `password`, Forbidden (sign-up closed; the link stays
    valid), ValidationFailed (email taken), QuotaExceeded, RateLimited."""
    _check_mode(link.environment_id)  # closing sign-up also stops those that are in progress
    if not passwords.is_correct(password, link.details["password_hash"], link.environment_id):
        one_time_links.count_wrong_password(link)
        raise wrong_password()
    with transaction.atomic():
        details = link.details
        user = make_user(link, password_hash=details["password_hash"], name=details["name"], via="sign_up")
        return on_created(user)


def wrong_password() -> InvalidGrant:
    message = "This is not the password of the account that the link is for."
    return InvalidGrant(message, fields=[FieldError("password", "wrong", message)])


def make_user(link: AccountEmail, *, password_hash: str, name: str, via: str) -> User:
    """Use up the link and create its user, in one transaction."""
    with transaction.atomic():
        one_time_links.use_up(link)
        user = user_service.create_user(
            pool_id=link.environment_id,
            email=link.recipient,
            password_hash=password_hash,
            name=name,
            role=link.details.get("role"),
            claims=link.details.get("claims"),
            most=pool_settings.most_users(link.environment_id),
            is_email_verified=True,
            actor=None,
            via=via,
        )
        # Other open links that would create an account for this email.
        email_outbox.withdraw(link.environment_id, link.recipient, (Kind.SIGN_UP, Kind.INVITATION))
    return user
