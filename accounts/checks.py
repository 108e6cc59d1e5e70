from collections.abc import Sequence
from email.utils import parseaddr
from typing import Any

from django import db
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register

from accounts.models import SigningKey
from accounts.tokens import signing_keys
from accounts.users import emails
from platform_site.checks import READABLE, STORED
from platform_site.http.errors import ValidationFailed
from platform_site.security import keyring

_SMTP = "django.core.mail.backends.smtp.EmailBackend"
_THIS_MACHINE = {"localhost", "127.0.0.1", "::1"}


@register(Tags.security, READABLE)
def check_email_settings(**_: Any) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    if settings.EMAIL_USE_TLS and settings.EMAIL_USE_SSL:
        found.append(Error("EMAIL_USE_TLS and EMAIL_USE_SSL exclude each other.", id="accounts.E001"))
    address = parseaddr(settings.DEFAULT_FROM_EMAIL)[1]
    if address == f"no-reply@{settings.PLATFORM_DOMAIN}":  # the default, also for a domain that is an IP address
        return found
    try:
        emails.check(address.replace("@localhost", "@localhost.example"))
    except ValidationFailed:
        found.append(Error("DEFAULT_FROM_EMAIL has no valid email address.", id="accounts.E002"))
    return found


@register(Tags.security, STORED, deploy=True)
def check_stored_signing_keys(*, databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """With foreign ENCRYPTION_KEYS, a server would encrypt new secrets so that no other process can decrypt them."""
    if not settings.PRODUCTION or not databases:
        return []
    try:
        stored = [bytes(sealed) for sealed in SigningKey.objects.values_list("sealed_private", flat=True)[:100]]
    except db.Error:  # it is unavailable, or not migrated yet
        return []
    if not stored or any(map(_can_be_decrypted, stored)):
        return []
    message = "ENCRYPTION_KEYS decrypts no signing key of this control database. Set the keys that it was used with."
    return [Error(message, id="accounts.E003")]


def _can_be_decrypted(sealed: bytes) -> bool:
    try:
        keyring.unseal(sealed, purpose=signing_keys.PURPOSE)
    except keyring.KeyringError:
        return False
    return True


@register(Tags.security, deploy=True)
def check_email_in_production(**_: Any) -> list[CheckMessage]:
    """In production emails go to a named server, over TLS unless it is on this machine."""
    if not settings.PRODUCTION:
        return []
    found: list[CheckMessage] = []
    if settings.EMAIL_BACKEND != _SMTP:
        if settings.EMAIL_BACKEND.startswith(("django.core.mail.backends.", "accounts.")):
            found.append(Warning(f"EMAIL_BACKEND {settings.EMAIL_BACKEND} delivers nothing.", id="accounts.W001"))
        return found
    if not settings.EMAIL_HOST:
        found.append(
            Warning("EMAIL_HOST is not set: no sign-up, invitation or forgotten password works.", id="accounts.W003")
        )
    elif settings.EMAIL_HOST not in _THIS_MACHINE and not (settings.EMAIL_USE_TLS or settings.EMAIL_USE_SSL):
        found.append(Warning("Emails, and the links in them, go to EMAIL_HOST unencrypted.", id="accounts.W002"))
    return found
