"""Email templates (templates/accounts/emails). No email contains text that another person entered, except the
application's name and URLs (its owner's) and the reason of a suspension (the operators')."""

from datetime import timedelta
from typing import Final

from django.conf import settings
from django.core.mail import EmailMultiAlternatives
from django.template.loader import render_to_string
from django.urls import reverse

from accounts.models.registration import AccountEmail
from accounts.registration import pool_settings

Kind = AccountEmail.Kind
ACCOUNT_EXISTS: Final = "account_exists"
NOTICES: Final = frozenset(
    {Kind.EMAIL_CHANGED, Kind.PASSWORD_CHANGED, Kind.IDENTITY_LINKED, Kind.PROJECT_SUSPENDED, Kind.PROJECT_RESUMED}
)
LIFETIMES: Final = {
    Kind.SIGN_UP: timedelta(hours=24),
    Kind.INVITATION: timedelta(days=7),
    Kind.MEMBER_INVITATION: timedelta(days=7),
    Kind.VERIFY_EMAIL: timedelta(hours=24),
    Kind.RESET_PASSWORD: timedelta(hours=1),
    Kind.CHANGE_EMAIL: timedelta(hours=1),
    **dict.fromkeys(NOTICES, timedelta(days=2)),
}
"""Validity of a link after sending, and of an unsent email."""

_SUBJECTS: Final = {
    Kind.SIGN_UP: "Confirm your email for {app}",
    ACCOUNT_EXISTS: "You already have an account at {app}",
    Kind.INVITATION: "You are invited to {app}",
    Kind.MEMBER_INVITATION: "You are invited to a project at {app}",
    Kind.VERIFY_EMAIL: "Confirm your email for {app}",
    Kind.RESET_PASSWORD: "Choose a new password for {app}",
    Kind.CHANGE_EMAIL: "Confirm your new email for {app}",
    Kind.EMAIL_CHANGED: "Your email at {app} was changed",
    Kind.PASSWORD_CHANGED: "Your password at {app} was changed",
    Kind.IDENTITY_LINKED: "A way to sign in was added to your account at {app}",
    Kind.PROJECT_SUSPENDED: "Your project {project} at {app} is suspended",
    Kind.PROJECT_RESUMED: "Your project {project} at {app} is no longer suspended",
}


def link(email: AccountEmail, token: str) -> str:
    own = pool_settings.settings_of(email.environment_id).link_urls.get(email.kind)
    if own:
        return str(own).replace(pool_settings.TOKEN, token)
    return f"{settings.BASE_URL}{reverse(f'page_{email.kind}')}?token={token}"


def message(email: AccountEmail, token: str | None, *, template: str | None = None) -> EmailMultiAlternatives:
    """The email to send; `template` replaces the one of its kind. A repeated email has the same Message-ID. At most 2
    queries."""
    name = template or email.kind
    found = pool_settings.settings_of(email.environment_id)
    context = {
        "app": pool_settings.app_name(found),
        "app_url": found.app_url,
        "link": link(email, token) if token else None,
        "lifetime": words(LIFETIMES[Kind(email.kind)]),
        "recipient": email.recipient,
        **{name: email.details.get(name) for name in ("new_email", "provider", "project", "reason", "member_role")},
    }
    made = EmailMultiAlternatives(
        subject=_SUBJECTS[name].format(app=context["app"], project=context["project"]),
        body=render_to_string(f"accounts/emails/{name}.txt", context),
        to=[email.recipient],
        headers={
            "Message-ID": f"<{email.pk}@{settings.PLATFORM_DOMAIN}>",
            "Auto-Submitted": "auto-generated",  # RFC 3834: no out-of-office answers
        },
    )
    made.attach_alternative(render_to_string(f"accounts/emails/{name}.html", context), "text/html")
    return made


def words(lifetime: timedelta) -> str:
    hours = int(lifetime.total_seconds()) // 3600
    if hours >= 48:
        return f"{hours // 24} days"
    return "1 hour" if hours == 1 else f"{hours} hours"
