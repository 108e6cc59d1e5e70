"""Celery tasks and periodic jobs of `accounts`: due emails, and the hourly deletion of expired records in batches."""

import logging
from typing import Final

from celery import shared_task
from django.conf import settings

from accounts.registration import email_outbox
from accounts.staff import sessions as console_sessions
from accounts.tokens import signing_keys
from accounts.users import exchange_codes, sessions
from accounts.users import service as user_service
from platform_site.background.periodic import log_failures, periodic_job

EVERY_SECONDS: Final = 3600

log = logging.getLogger("platform.accounts")


@periodic_job(every=EVERY_SECONDS)
def purge_expired() -> None:
    """Deletes sessions, server keys, codes and emails some time after their end, expired sessions of the admin, and
    signing keys that no valid token names."""
    counts = {}
    for what, purge in (
        ("sessions", sessions.purge),
        ("console_sessions", console_sessions.purge),
        ("server_keys", user_service.purge_keys),
        ("signing_keys", signing_keys.remove_retired),
        ("codes", exchange_codes.purge),
        ("emails", email_outbox.purge),
    ):
        with log_failures(f"the ended {what}"):
            counts[what] = purge()
    if any(counts.values()):
        log.info("deleted ended records", extra=counts)


@shared_task(name="accounts.send_account_email")
def send_account_email(email_id: str) -> None:
    email_outbox.send(email_id)


@periodic_job(every=settings.EMAIL_JOB_SECONDS)
def send_due_emails() -> None:
    """Sends emails whose notification was lost, whose worker died, or that the server refused temporarily."""
    email_outbox.send_due()
