"""Email outbox: emails are written in the transaction of their cause and sent by a worker, at least once. `write` does
not look up the recipient, so its duration does not reveal accounts. `claim` determines the user and makes the link's
token; an email that is sent again has a new token."""

import logging
import random
import smtplib
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from django.core.mail import get_connection
from django.core.mail.backends.base import BaseEmailBackend
from django.db import Error, transaction
from django.db.models import DurationField, F, Min, Q, QuerySet, Value, Window
from django.db.models.functions import Now, RowNumber

from accounts.directory import environments as environment_directory
from accounts.directory import locks as account_locks
from accounts.models import User
from accounts.models.registration import AccountEmail
from accounts.registration import email_templates, one_time_links, pool_settings
from accounts.registration.email_templates import NOTICES
from accounts.tokens.token_format import digest
from accounts.users.emails import normalize
from platform_site.background import dispatch
from platform_site.concurrency.fair_semaphore import FairSemaphore, Full
from platform_site.http.errors import NotFound
from platform_site.postgres.statements import delete_in_batches
from platform_site.redis import rate_limits

Kind = AccountEmail.Kind
LEASE: Final = timedelta(minutes=2)
_PER_RUN: Final = 1_000
_slots: Final = FairSemaphore(12, per_owner=4, slow_after=300.0)
"""Of the 32 threads of a worker: a tenant that sends many emails must not delay those of others."""
_REFUSED_FOR_NOW: Final = "refused for now"
_WAITS: Final = tuple(timedelta(seconds=seconds) for seconds in (10, 30, 120, 600, 1800, 3600))
"""Delays before the second, third, … attempt; the last one repeats until the email expires."""
_ANONYMOUS_REQUESTS: Final = frozenset({Kind.SIGN_UP, Kind.RESET_PASSWORD})
"""Several can be open for one email: an anonymous request must not invalidate an earlier link."""
_OF_A_USER: Final = frozenset({Kind.VERIFY_EMAIL, Kind.CHANGE_EMAIL})
_TO_USERS: Final = NOTICES | {Kind.RESET_PASSWORD}

log = logging.getLogger("platform.accounts")


def write(
    kind: Kind,
    *,
    pool_id: str | None,
    recipient: str,
    subject: str | None = None,
    user: User | None = None,
    email_id: str | None = None,
    project_id: str | None = None,
    **details: Any,
) -> AccountEmail:
    """Write an email, in the current transaction or its own. `subject` defaults to the recipient. Except for anonymous
    requests, it replaces the last email of its kind about `subject`. The number of statements is constant."""
    subject = subject or normalize(recipient)
    with transaction.atomic():
        if kind not in _ANONYMOUS_REQUESTS:
            account_locks.hold(f"email {kind} {pool_id} {subject}")
            AccountEmail.objects.filter(environment_id=pool_id, kind=kind, subject=subject).delete()
        email = AccountEmail(
            environment_id=pool_id,
            project_id=project_id,
            kind=kind,
            subject=subject,
            recipient=recipient,
            user=user,
            details=details,
            bound_to=one_time_links.bound_to(kind, user) if user is not None and kind in _OF_A_USER else None,
            expires_at=Now() + email_templates.LIFETIMES[kind],
        )
        if email_id is not None:
            email.pk = email_id
        email.save(force_insert=True)
        dispatch.send("accounts.send_account_email", email.pk)
    return email


def notify(user: User, kind: Kind, *, subject: str | None = None, **details: str) -> None:
    if user.email_verified_at is not None:
        write(kind, pool_id=user.environment_id, recipient=user.email, subject=subject, user=user, **details)


def withdraw(pool_id: str | None, address: str, kinds: Iterable[Kind]) -> None:
    AccountEmail.objects.filter(environment_id=pool_id, kind__in=list(kinds), subject=normalize(address)).delete()


def postpone(project_id: str, pool_ids: Iterable[str], since: datetime, until: datetime) -> None:
    """Extend the expiry of a project's emails and links by the time of its suspension. One statement."""
    theirs = Q(environment_id__in=list(pool_ids)) | Q(project_id=project_id)
    AccountEmail.objects.filter(theirs, expires_at__gt=since).update(
        expires_at=F("expires_at") + Value(until - since, output_field=DurationField())
    )


@dataclass(frozen=True, slots=True)
class ClaimedEmail:
    email: AccountEmail
    token: str | None
    template: str | None = None
    """Instead of the template of its kind."""


def _due() -> "QuerySet[AccountEmail]":
    """Without unknown kinds, which workers of a newer version send, and emails of suspended projects."""
    return AccountEmail.objects.exclude(_of_suspended()).filter(
        kind__in=Kind.values,
        sent_at__isnull=True,
        failed_at__isnull=True,
        next_attempt_at__lte=Now(),
        expires_at__gt=Now(),
    )


def claim(email_id: str) -> ClaimedEmail | None:
    """Claim a due email for LEASE. None if it is not to be sent now: another worker has claimed it, it has no recipient
    and is deleted, or it waits for the pool's limit."""
    with transaction.atomic():
        email: AccountEmail | None = _due().select_for_update(skip_locked=True).filter(pk=email_id).first()
        if email is None:
            return None
        claimed = _resolve(email)
        if claimed is None:
            email.delete()
            return None
        if email.attempts == 0 and (wait := _wait_for_room(email)) is not None:
            AccountEmail.objects.filter(pk=email.pk).update(
                next_attempt_at=Now() + wait,
                expires_at=Now() + wait + email_templates.LIFETIMES[Kind(email.kind)],
                last_error="waits: the hourly limit of emails is reached",
            )
            return None
        email.attempts += 1
        email.next_attempt_at = Now() + LEASE
        email.token_hash = digest(claimed.token) if claimed.token else None
        email.save(update_fields=["attempts", "next_attempt_at", "token_hash", "bound_to", "user", "recipient"])
    return claimed


def _of_suspended() -> Q:
    known = environment_directory.directory()
    return Q(environment_id__in=known.suspended()) | Q(project_id__in=known.suspended_projects())


def _wait_for_room(email: AccountEmail) -> timedelta | None:
    """How long an email to an account must wait for its limit; others are limited at the request."""
    if email.kind not in _TO_USERS:
        return None
    pool_id = email.environment_id
    try:
        plan = pool_settings.plan_of(pool_id)
    except NotFound:  # the environment is being deleted, and this with it
        return None
    seconds = rate_limits.wait_to_send(kind=email.kind, pool_id=pool_id, recipient=email.recipient, plan=plan)
    return None if seconds is None else timedelta(seconds=seconds)


def _resolve(email: AccountEmail) -> ClaimedEmail | None:
    """Determine the user: here the lookup's duration cannot be measured."""
    kind = Kind(email.kind)
    if kind in NOTICES:
        return ClaimedEmail(email, None)
    token = one_time_links.make_token()
    if kind == Kind.MEMBER_INVITATION:  # a person with an account can use it, too
        may_invite = environment_directory.directory().may_invite(email.project_id, email.details["invited_by"])
        return ClaimedEmail(email, token) if may_invite else None
    if kind in (Kind.SIGN_UP, Kind.INVITATION):
        taken = User.objects.with_email(email.environment_id, email.recipient).first()
        if taken is None:
            return ClaimedEmail(email, token)
        if kind == Kind.INVITATION or taken.disabled_at is not None:
            return None
        email.recipient = taken.email
        return ClaimedEmail(email, None, template=email_templates.ACCOUNT_EXISTS)
    if kind == Kind.RESET_PASSWORD:
        email.user = User.objects.with_email(email.environment_id, email.subject).first()
        if email.user is not None:
            email.recipient = email.user.email  # as stored, not as entered (CVE-2019-19844)
    user = email.user
    if user is None or user.disabled_at is not None:
        return None
    others = User.objects.with_email(email.environment_id, email.recipient).exclude(pk=user.pk)
    if kind == Kind.CHANGE_EMAIL and others.exists():
        return None
    bound_to = one_time_links.bound_to(kind, user)
    if email.bound_to is not None and bytes(email.bound_to) != bound_to:
        return None  # the password or the email changed after the request
    email.bound_to = bound_to
    return ClaimedEmail(email, token)


def send(email_id: str) -> None:
    """Send a new email, then others that are due of the same pool and project. Without a free slot nothing is sent:
    whoever has a slot for these goes on with it, or `send_due` sends it."""
    found = AccountEmail.objects.filter(pk=email_id).values("environment_id", "project_id").first()
    if found is None:
        return
    with suppress(Full), _slots.slot(found["project_id"] or found["environment_id"] or "", wait=0):
        others = _due().filter(**found).exclude(pk=email_id).order_by("next_attempt_at").values_list("pk", flat=True)
        _send_each([email_id, *others[:_PER_RUN]])


def send_due() -> int:
    """Send due emails, at most _PER_RUN; returns how many. Pools and projects take turns."""
    turn = Window(RowNumber(), partition_by=["environment_id", "project_id"], order_by="next_attempt_at")
    due = _due().annotate(turn=turn).order_by("turn", "next_attempt_at").values_list("pk", flat=True)
    return _send_each(due[:_PER_RUN])


def _send_each(email_ids: Iterable[str]) -> int:
    """Returns how many were sent. Stops if the mail server is unavailable."""
    sent = 0
    with closing(get_connection()) as server:
        for email_id in list(email_ids):
            if claimed := claim(email_id):
                outcome = _deliver(claimed, server)
                if outcome == "server_unavailable":
                    break
                if outcome == "sent":
                    sent += 1
    return sent


def _deliver(claimed: ClaimedEmail, server: BaseEmailBackend) -> Literal["sent", "not_sent", "server_unavailable"]:
    email = claimed.email
    try:
        made = email_templates.message(email, claimed.token, template=claimed.template)
        made.connection = server
        server.open()  # stays open for the next one
        made.send()
    except (smtplib.SMTPRecipientsRefused, smtplib.SMTPDataError) as error:
        _note_refusal(email, error)
        return "not_sent"
    except (OSError, smtplib.SMTPException) as error:  # OSError: no route, no answer, TLS that does not work
        _retry_later(email, type(error).__name__)
        return "server_unavailable"
    except Error:
        raise
    except Exception as error:  # an error of this email only: later ones must not wait for it
        log.exception("an email could not be composed", extra={"email_id": email.pk, "kind": email.kind})
        _retry_later(email, type(error).__name__)
        return "not_sent"
    # The link is valid from now on. Attempts do not prolong it, or an email that no server takes would never expire.
    _record(email, sent_at=Now(), expires_at=Now() + email_templates.LIFETIMES[Kind(email.kind)], last_error="")
    log.info("email sent", extra={"email_id": email.pk, "kind": email.kind, "environment_id": email.environment_id})
    return "sent"


def _note_refusal(email: AccountEmail, error: smtplib.SMTPRecipientsRefused | smtplib.SMTPDataError) -> None:
    """Record a refusal: 5xx is permanent, 4xx (greylisting, a full mailbox) temporary."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        code = max((int(answer[0]) for answer in error.recipients.values()), default=400)
    else:
        code = error.smtp_code
    if code < 500:
        _retry_later(email, f"{_REFUSED_FOR_NOW} ({code})")
        return
    _record(email, failed_at=Now(), last_error=f"refused ({code})")
    log.warning("email refused", extra={"email_id": email.pk, "kind": email.kind, "code": code})


def _retry_later(email: AccountEmail, why: str) -> None:
    wait = _WAITS[min(email.attempts, len(_WAITS)) - 1] * random.uniform(0.8, 1.2)  # noqa: S311
    _record(email, next_attempt_at=Now() + wait, last_error=why)
    log.warning("email not sent yet", extra={"email_id": email.pk, "attempts": email.attempts, "why": why})


def _record(email: AccountEmail, **outcome: Any) -> None:
    """Record the outcome, unless another worker or a newer email has taken over."""
    AccountEmail.objects.filter(pk=email.pk, attempts=email.attempts).update(**outcome)


def age_of_oldest_failing() -> float | None:
    """Seconds since the oldest email was written that failed before, but not because of its recipient."""
    failing = AccountEmail.objects.exclude(_of_suspended()).filter(
        attempts__gt=0, sent_at__isnull=True, failed_at__isnull=True, expires_at__gt=Now()
    )
    failing = failing.exclude(last_error="").exclude(last_error__startswith="waits:")
    age = failing.exclude(last_error__startswith=_REFUSED_FOR_NOW).aggregate(age=Now() - Min("created_at"))["age"]
    return None if age is None else max(0.0, age.total_seconds())


def purge() -> int:
    expired = AccountEmail.objects.filter(expires_at__lt=Now()).exclude(_of_suspended())
    return delete_in_batches(expired.order_by("expires_at"))
