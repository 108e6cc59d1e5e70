"""Password reset. Also sets the first password of users who signed up with a provider."""

from django.db import transaction
from django.http import HttpRequest

from accounts.audit import Actor
from accounts.models import User
from accounts.models.registration import AccountEmail
from accounts.registration import email_outbox, email_templates, one_time_links
from accounts.registration.pool_settings import PLATFORM, Pool
from accounts.users import emails, passwords
from accounts.users import service as user_service
from platform_site.redis import rate_limits

Kind = AccountEmail.Kind


def request_reset(pool: Pool, *, email: str) -> None:
    """Request a password reset; a worker looks up the account. Raises ValidationFailed for an invalid email."""
    email_outbox.write(Kind.RESET_PASSWORD, pool_id=pool.id, recipient=emails.check(email))


def request_reset_on_page(request: HttpRequest, email: str) -> dict[str, str]:
    """Request a reset for a platform account on a page of a console. Returns the context of the page's confirmation.
    Raises ValidationFailed, RateLimited."""
    kind = Kind.RESET_PASSWORD
    rate_limits.count_email_request(request, kind=kind, pool_id=None, email=email, plan=PLATFORM.plan)
    request_reset(PLATFORM, email=email)
    return {"sent_to": email, "lifetime": email_templates.words(email_templates.LIFETIMES[kind])}


def reset(link: AccountEmail, password: str) -> User:
    """Set the new password and verify the email. Raises InvalidGrant, ValidationFailed (keeps the link),
    RateLimited."""
    if link.user is None:
        raise one_time_links.invalid_link()
    passwords.check_chosen(password, link.user)
    password_hash = passwords.hashed(password, link.environment_id)
    with transaction.atomic():
        one_time_links.use_up(link)
        user = user_service.change_user(
            link.user,
            actor=Actor.of(link.user),
            password_hash=password_hash,
            is_email_verified=True,
            via="password_reset",
        )
        email_outbox.withdraw(link.environment_id, user.email, [Kind.RESET_PASSWORD])
        email_outbox.write(Kind.PASSWORD_CHANGED, pool_id=user.environment_id, recipient=user.email, user=user)
    return user
