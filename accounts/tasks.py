"""E-mails that are due, and housekeeping: what ended long ago is deleted, in batches, once an hour."""

import logging
from typing import Final

from celery import shared_task
from django.conf import settings

from accounts import services, sessions, signing_keys
from accounts.lifecycle import outbox
from accounts.oauth import codes
from platform_site.api.sweeps import apart, sweep

EVERY_SECONDS: Final = 3600

log = logging.getLogger("platform.accounts")


@sweep(every=EVERY_SECONDS)
def forget_what_ended() -> None:
    """Sessions and server keys that ended a while ago, signing keys that no token can name any more."""
    counts = {}
    for what, purge in (
        ("sessions", sessions.purge),
        ("server_keys", services.purge_keys),
        ("signing_keys", signing_keys.remove_retired),
        ("codes", codes.purge),
        ("emails", outbox.purge),
    ):
        with apart(f"the {what} that ended"):
            counts[what] = purge()
    if any(counts.values()):
        log.info("forgot what ended", extra=counts)


@shared_task(name="accounts.send_account_email")
def send_account_email(email_id: str) -> None:
    """Nudged by `accounts.lifecycle.outbox.write`."""
    outbox.send(email_id)


@sweep(every=settings.EMAIL_SWEEP_SECONDS)
def send_due_emails() -> None:
    """E-mails that nobody was nudged for, whose worker died, or that the mail server did not take the last time."""
    outbox.send_due()
