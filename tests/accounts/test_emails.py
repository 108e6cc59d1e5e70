"""Emails: written with what they are about, sent at least once, by whichever worker, to a real SMTP server.

PostgreSQL stores the queue, and a periodic job finds emails for which no worker was notified.
"""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.core.checks import run_checks
from django.db import connection, transaction
from django.db.models.functions import Now

from accounts import audit, tasks
from accounts.models import AccountEmail, User
from accounts.registration import email_outbox, email_templates, one_time_links, pool_settings
from platform_site.background.periodic import all_jobs
from platform_site.concurrency.fair_semaphore import FairSemaphore
from platform_site.http.errors import InvalidGrant
from projects.models import Environment, Project
from tests.support.postbox import Postbox, html_of, link_in, text_of, token_in

pytestmark = pytest.mark.django_db(databases="__all__")

Kind = AccountEmail.Kind
UNA = "una@example.com"


@pytest.fixture(autouse=True)
def _una(una: User) -> None:
    """She is there."""


def write(production: Environment, recipient: str = UNA, kind: Kind = Kind.RESET_PASSWORD) -> AccountEmail:
    return email_outbox.write(kind, pool_id=production.pk, recipient=recipient)


def due_again() -> None:
    AccountEmail.objects.filter(sent_at=None).update(next_attempt_at="2026-01-01T00:00:00Z")


def test_email_without_notification_is_found_by_the_periodic_job(production: Environment, postbox: Postbox) -> None:
    [sweep] = [one for one in all_jobs() if one.function is tasks.send_due_emails]
    email = write(production)
    sweep.run()
    assert [message["To"] for message in postbox.messages] == [UNA]
    email.refresh_from_db()
    assert email.sent_at is not None
    sweep.run()
    assert len(postbox.messages) == 1


def test_an_email_of_a_transaction_that_rolled_back_is_not_there(production: Environment, postbox: Postbox) -> None:
    with transaction.atomic():
        write(production)
        transaction.set_rollback(True)
    assert email_outbox.send_due() == 0
    assert postbox.messages == []


def test_notified_worker_sends_that_email(production: Environment, postbox: Postbox) -> None:
    email = write(production)
    tasks.send_account_email(email.pk)
    tasks.send_account_email(email.pk)  # a message may come twice
    tasks.send_account_email("eml_01k60000000000000000000000")
    assert len(postbox.messages) == 1


def test_job_of_a_killed_mail_worker_is_retried_and_newest_link_works(
    production: Environment, postbox: Postbox
) -> None:
    email = write(production)
    first = email_outbox.claim(email.pk)
    assert first is not None
    email_templates.message(first.email, first.token).send()
    # Killed here, before it could note that the email was sent.
    assert email_outbox.claim(email.pk) is None, "its lease holds"
    due_again()
    assert email_outbox.send_due() == 1
    old, new = (token_in(message) for message in postbox.to(UNA))
    assert {message["Message-ID"] for message in postbox.to(UNA)} == {postbox.last(UNA)["Message-ID"]}
    with pytest.raises(InvalidGrant):
        one_time_links.find(old, Kind.RESET_PASSWORD)
    assert one_time_links.find(new, Kind.RESET_PASSWORD)
    # The dead one comes back to life: what it notes is no longer its business.
    email_outbox._record(first.email, failed_at="2026-01-01T00:00:00Z")
    assert AccountEmail.objects.get().failed_at is None


@pytest.mark.django_db(databases="__all__", transaction=True)
def test_parallel_workers_send_each_email_once(production: Environment, postbox: Postbox) -> None:
    recipients = [f"n{number}@example.com" for number in range(12)]
    for recipient in recipients:
        write(production, recipient, Kind.INVITATION).__class__.objects.filter(recipient=recipient).update(
            details={"name": "", "role": None, "claims": {}}
        )
    ready = threading.Barrier(4)

    def work(_: int) -> int:
        try:
            ready.wait(20)
            return email_outbox.send_due()
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, range(4))) == 12
    assert sorted(message["To"] for message in postbox.messages) == sorted(recipients)


def test_pools_take_turns(production: Environment, alice: User, postbox: Postbox) -> None:
    for _ in range(3):
        write(production)
    email_outbox.write(Kind.RESET_PASSWORD, pool_id=None, recipient=alice.email)
    assert email_outbox.send_due() == 4
    assert [message["To"] for message in postbox.messages] == [UNA, alice.email, UNA, UNA]


def test_a_pool_with_many_emails_leaves_slots_to_others(
    production: Environment, alice: User, postbox: Postbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = FairSemaphore(4, per_owner=1, slow_after=300)
    monkeypatch.setattr(email_outbox, "_slots", slots)
    waiting, another = write(production), email_outbox.write(Kind.RESET_PASSWORD, pool_id=None, recipient=alice.email)
    with slots.slot(production.pk, wait=0):
        tasks.send_account_email(waiting.pk)
        tasks.send_account_email(another.pk)
        assert [message["To"] for message in postbox.messages] == [alice.email]
    tasks.send_account_email(write(production).pk)
    assert len(postbox.to(UNA)) == 2, "who gets the slot goes on with what had none"


# ── The mail server ──


def test_an_address_that_is_refused_for_good_is_not_tried_again(production: Environment, postbox: Postbox) -> None:
    write(production, "n@example.com", Kind.INVITATION)
    write(production)
    postbox.answers.append("550 5.1.1 no such user")
    assert email_outbox.send_due() == 1, "the next one goes out over the same connection"
    refused = AccountEmail.objects.exclude(failed_at=None).get()
    assert refused.last_error == "refused (550)"
    due_again()
    assert email_outbox.send_due() == 0
    assert len(postbox.messages) == 1


def test_email_that_cannot_be_rendered_delays_no_other(production: Environment, postbox: Postbox) -> None:
    write(production, "n@example.com\nBcc: m@example.com", Kind.INVITATION)  # refused by every form and endpoint
    write(production)
    assert email_outbox.send_due() == 1
    assert [message["To"] for message in postbox.messages] == [UNA]
    left = AccountEmail.objects.get(sent_at=None)
    assert (left.failed_at, left.last_error) == (None, "ValueError")


def test_an_email_of_a_kind_of_a_newer_release_is_left_to_its_workers(
    production: Environment, postbox: Postbox
) -> None:
    newer = write(production, "n@example.com")
    AccountEmail.objects.filter(pk=newer.pk).update(kind="of_tomorrow")
    write(production)
    assert email_outbox.send_due() == 1, "an upgrade that rolls along must not stop what an older worker can send"
    tasks.send_account_email(newer.pk)
    assert AccountEmail.objects.filter(pk=newer.pk, sent_at=None, attempts=0).exists()


def test_a_full_mailbox_is_tried_again_later(production: Environment, postbox: Postbox) -> None:
    email = write(production)
    postbox.answers.append("452 4.2.2 mailbox full")
    assert email_outbox.send_due() == 0
    email.refresh_from_db()
    assert (email.sent_at, email.failed_at, email.attempts, email.last_error) == (
        None,
        None,
        1,
        "refused for now (452)",
    )
    assert email_outbox.send_due() == 0, "not before its time"
    due_again()
    assert email_outbox.send_due() == 1


@pytest.fixture
def nowhere(postbox: Postbox, settings: Any) -> Iterator[None]:
    """An unavailable mail server: the port is taken, and no process listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        settings.EMAIL_PORT = taken.getsockname()[1]
        yield


def test_unavailable_mail_server_loses_nothing(
    production: Environment, postbox: Postbox, nowhere: None, settings: Any
) -> None:
    for number in range(3):
        write(production, f"n{number}@example.com", Kind.INVITATION)
    assert email_outbox.send_due() == 0
    assert sorted(AccountEmail.objects.values_list("attempts", flat=True)) == [0, 0, 1], "the others wait"
    settings.EMAIL_PORT = postbox.port
    due_again()
    assert email_outbox.send_due() == 3


def test_a_mail_server_that_says_nothing_is_given_up_in_time(production: Environment, settings: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = silent.getsockname()
        settings.EMAIL_USE_TLS, settings.EMAIL_TIMEOUT = False, 0.3
        email = write(production)
        assert email_outbox.send_due() == 0
    email.refresh_from_db()
    assert (email.attempts, email.sent_at, email.failed_at) == (1, None, None)
    assert email.last_error in ("TimeoutError", "SMTPServerDisconnected")


def test_missing_mail_server_is_an_unavailable_one(production: Environment, settings: Any) -> None:
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_USE_TLS = "", True
    email = write(production)
    assert email_outbox.send_due() == 0
    email.refresh_from_db()
    assert (email.attempts, email.sent_at, email.failed_at) == (1, None, None)


def test_attempts_do_not_prolong_an_email(production: Environment, postbox: Postbox) -> None:
    email = write(production)
    written = email_templates.LIFETIMES[Kind(email.kind)]
    AccountEmail.objects.update(expires_at=Now() + written / 2)
    before = AccountEmail.objects.get().expires_at
    postbox.answers.append("451 later")
    assert email_outbox.send_due() == 0
    assert AccountEmail.objects.get().expires_at == before
    due_again()
    assert email_outbox.send_due() == 1
    sent = AccountEmail.objects.get()
    assert sent.sent_at is not None
    assert sent.expires_at - sent.sent_at == written


def test_the_oldest_email_that_the_server_does_not_take(
    production: Environment, postbox: Postbox, nowhere: None, settings: Any
) -> None:
    assert email_outbox.age_of_oldest_failing() is None
    for number in range(2):
        write(production, f"n{number}@example.com", Kind.INVITATION)
    assert email_outbox.age_of_oldest_failing() is None, "not yet tried"
    for reason in ("", "waits: the hourly limit of emails is reached"):
        AccountEmail.objects.update(attempts=1, last_error=reason)
        assert email_outbox.age_of_oldest_failing() is None, "claimed, not refused"
    AccountEmail.objects.update(attempts=0, last_error="")
    assert email_outbox.send_due() == 0
    AccountEmail.objects.update(created_at=Now() - timedelta(hours=1))
    assert 3600 <= (email_outbox.age_of_oldest_failing() or 0) < 3700
    settings.EMAIL_PORT = postbox.port
    postbox.answers += ["452 mailbox full", "452 mailbox full"]
    due_again()
    assert email_outbox.send_due() == 0
    assert email_outbox.age_of_oldest_failing() is None, "a full mailbox is no failure of the server"


def test_waits_grow_up_to_an_hour(production: Environment, postbox: Postbox) -> None:
    email = write(production)
    waits = []
    for _ in range(8):
        postbox.answers.append("451 later")
        due_again()
        email_outbox.send_due()
        email.refresh_from_db()
        with connection.cursor() as cursor:
            cursor.execute("SELECT extract(epoch FROM next_attempt_at - now()) FROM accounts_accountemail")
            waits.append(float(cursor.fetchone()[0]))
    for wait, expected in zip(waits, (10, 30, 120, 600, 1800, 3600, 3600, 3600), strict=True):
        assert 0.75 * expected - 5 <= wait <= 1.25 * expected + 5


def test_expired_email_is_deleted_and_not_sent(production: Environment, postbox: Postbox) -> None:
    write(production)
    AccountEmail.objects.update(expires_at="2026-01-01T00:00:00Z")
    assert email_outbox.send_due() == 0
    tasks.purge_expired()
    assert not AccountEmail.objects.exists()
    assert postbox.messages == []


# ── What emails say ──


@pytest.mark.parametrize(
    ("project", "said"),
    [("Shop", "Shop"), ("A\r\nBcc: x@example.com \u202e", "A Bcc: x@example.com"), ("\u202e", "the application")],
)
def test_by_default_emails_name_the_project(production: Environment, postbox: Postbox, project: str, said: str) -> None:
    Project.objects.filter(pk=production.project_id).update(name=project)
    write(production)
    email_outbox.send_due()
    assert postbox.last(UNA)["Subject"] == f"Choose a new password for {said}"
    assert pool_settings.settings_of(production.pk).app_name == ""


def test_every_kind_has_a_text_and_html_that_say_the_same(production: Environment, una: User, postbox: Postbox) -> None:
    pool_settings.change_settings(
        production.pk, actor=audit.SYSTEM, app_name="Tom & Jerry's <b>", app_url="https://app.example.com/?a=1&b=2"
    )
    says = [*Kind.values, email_templates.ACCOUNT_EXISTS]
    for name in says:
        kind = Kind(name) if name in Kind.values else Kind.SIGN_UP
        email = AccountEmail(
            environment_id=production.pk, kind=kind, recipient=UNA, details={"new_email": "new@example.com"}
        )
        with_link = kind in pool_settings.LINKS and name != email_templates.ACCOUNT_EXISTS
        made = email_templates.message(email, "lnk_" + "0" * 49 if with_link else None, template=name)
        made.send()
        message = postbox.last(UNA)
        assert "Tom & Jerry's <b>" in message["Subject"]
        assert "Tom & Jerry's <b>" in text_of(message)
        assert "Tom &amp; Jerry&#x27;s &lt;b&gt;" in html_of(message)
        assert ("lnk_" in text_of(message)) is with_link
        assert max(len(line) for line in message.as_bytes().splitlines()) <= 998
        assert "{{" not in text_of(message) + html_of(message)
        if with_link:
            assert link_in(message).startswith("http://127.0.0.1:8000/auth/")
    assert len(postbox.messages) == len(says)


# ── Settings ──


def found(*, deploy: bool = False) -> list[str]:
    messages = run_checks(include_deployment_checks=deploy)
    return [str(message.id) for message in messages if str(message.id).startswith("accounts.")]


@pytest.mark.parametrize(
    ("changes", "ids"),
    [
        ({}, []),
        ({"EMAIL_USE_TLS": True, "EMAIL_USE_SSL": True}, ["accounts.E001"]),
        ({"DEFAULT_FROM_EMAIL": "the platform"}, ["accounts.E002"]),
        ({"DEFAULT_FROM_EMAIL": "Platform <no-reply@platform.example>"}, []),
        ({"PLATFORM_DOMAIN": "10.0.0.12", "DEFAULT_FROM_EMAIL": "no-reply@10.0.0.12"}, []),
    ],
)
def test_settings_that_cannot_work_are_named(settings: Any, changes: dict[str, Any], ids: list[str]) -> None:
    for name, value in changes.items():
        setattr(settings, name, value)
    assert found() == ids


@pytest.mark.parametrize(
    ("changes", "ids"),
    [
        ({"EMAIL_HOST": "smtp.example.com", "EMAIL_USE_TLS": True}, []),
        ({"EMAIL_HOST": "smtp.example.com", "EMAIL_USE_TLS": False, "EMAIL_USE_SSL": True}, []),
        ({"EMAIL_HOST": "localhost", "EMAIL_USE_TLS": False}, []),
        ({"EMAIL_HOST": "smtp.example.com", "EMAIL_USE_TLS": False}, ["accounts.W002"]),
        ({"EMAIL_HOST": ""}, ["accounts.W003"]),
        ({"EMAIL_BACKEND": "django.core.mail.backends.console.EmailBackend"}, ["accounts.W001"]),
        ({"EMAIL_BACKEND": "accounts.registration.console_email_backend.EmailBackend"}, ["accounts.W001"]),
    ],
)
def test_production_check_reports_missing_email_settings(
    settings: Any, changes: dict[str, Any], ids: list[str]
) -> None:
    settings.PRODUCTION = True
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    for name, value in changes.items():
        setattr(settings, name, value)
    assert [one for one in found(deploy=True) if one.startswith("accounts.W00")] == ids
