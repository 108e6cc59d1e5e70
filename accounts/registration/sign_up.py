"""Making an account of one's own: asking for it, and proving the address.

No user exists until the link in the e-mail was used together with the password that was chosen: an address that
nobody proved takes no place in the pool, and somebody who signs up with a stranger's address leaves nothing behind that
the stranger could confirm by accident (an account "pre-hijacked", its password known to another).
"""

from collections.abc import Callable
from typing import Final, TypeVar

from django.db import transaction

from accounts.models import User
from accounts.models.registration import AccountEmail, SignUpMode
from accounts.registration import email_outbox, one_time_links, pool_settings
from accounts.registration.pool_settings import Pool
from accounts.users import emails, passwords
from accounts.users import service as user_service
from accounts.users.service import UNSET, Unset
from platform_site.http.errors import FieldError, Forbidden, InvalidGrant

Kind = AccountEmail.Kind
Made = TypeVar("Made")


def ask(pool: Pool, *, email: str, password: str, name: str = "", admit: Callable[[], None] = lambda: None) -> None:
    """Somebody wants an account. The same work for an address that has one: its owner is told by e-mail.

    `admit` is called when all else is right, and may refuse by raising (a limit that nothing refused shall use up).
    Raises Forbidden where the pool does not take sign-ups, ValidationFailed (the address is none, the password not good
    enough), QuotaExceeded, RateLimited (too many passwords being hashed).
    """
    _check_open(pool)
    recipient = emails.check(email)
    passwords.check_chosen(password, User(email=recipient, name=name))
    if pool.most_users is not None:
        user_service.check_room(pool.id, pool.most_users)
    admit()
    email_outbox.write(
        Kind.SIGN_UP,
        pool_id=pool.id,
        recipient=recipient,
        name=name,
        password_hash=passwords.hashed(password),
    )


_WHO_SAYS: Final = "`sign_up` of PATCH /v1/auth/settings is off."
_NO_ENVIRONMENT: Final = (
    "no environment is named, so a platform account is meant. An application's users sign up with the header "
    "X-Environment."
)


def _check_open(pool: Pool) -> None:
    if pool.is_branch:
        raise Forbidden(f"These users belong to {pool.id}, from which this environment branched. Sign up there.")
    _check_mode(pool.id)


def _check_mode(pool_id: str | None) -> None:
    mode = pool_settings.settings_of(pool_id).sign_up
    if mode == SignUpMode.INVITED:
        raise Forbidden("Accounts are made by invitation here.")
    if mode != SignUpMode.OPEN:
        raise Forbidden(f"Nobody can sign up here by themselves: {_WHO_SAYS if pool_id else _NO_ENVIRONMENT}")


def confirm(token: str, password: str, then: Callable[[User], Made], *, pool_id: str | None | Unset = UNSET) -> Made:
    """The address is theirs, and the password the one they chose: make the user, its address verified. Returns what
    `then` makes of the user, in the same transaction: the link is used up if both are done.

    Raises InvalidGrant (`token` or `password` named), Forbidden if the pool takes no sign-ups by now (the link works
    again once it does), ValidationFailed if the address got an account meanwhile, QuotaExceeded, RateLimited.
    """
    found = one_time_links.find(token, Kind.SIGN_UP, pool_id=pool_id)
    _check_mode(found.environment_id)  # who closes the door stops those who are on their way, too
    if not passwords.is_right(password, found.details["password_hash"]):
        one_time_links.count_wrong_password(found)
        raise wrong_password()
    with transaction.atomic():
        return then(
            make_user(found, password_hash=found.details["password_hash"], name=found.details["name"], via="sign_up")
        )


def wrong_password() -> InvalidGrant:
    return InvalidGrant(
        "This is not the password that goes with the link.",
        fields=[FieldError("password", "wrong", "This is not the password that goes with the link.")],
    )


def make_user(found: AccountEmail, *, password_hash: str, name: str, via: str) -> User:
    """Use the link up and make the user that it stands for, in one transaction."""
    with transaction.atomic():
        one_time_links.use_up(found)
        user = user_service.create_user(
            pool_id=found.environment_id,
            email=found.recipient,
            password=None,
            password_hash=password_hash,
            name=name,
            role=found.details.get("role"),
            claims=found.details.get("claims"),
            most=pool_settings.most_users(found.environment_id),
            is_email_verified=True,
            actor=user_service.THEMSELVES,
            via=via,
        )
        # What else was on its way to make an account of this address.
        email_outbox.withdraw(found.environment_id, found.recipient, (Kind.SIGN_UP, Kind.INVITATION))
    return user
