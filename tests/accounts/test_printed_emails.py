"""Emails without a mail server: what people at the terminal of `manage.py up` see."""

from io import StringIO

import pytest

from accounts.models.registration import AccountEmail
from accounts.registration import email_templates
from accounts.registration.console_email_backend import EmailBackend

pytestmark = pytest.mark.django_db


def test_a_terminal_shows_the_text_and_its_link_and_no_markup() -> None:
    email = AccountEmail(kind=AccountEmail.Kind.SIGN_UP, recipient="nia@example.com", details={})
    seen = StringIO()
    assert EmailBackend(stream=seen).send_messages([email_templates.message(email, "lnk_token")]) == 1
    first, *text = seen.getvalue().splitlines()
    assert first.startswith("email to nia@example.com: Confirm your email")
    assert any("/auth/confirm-sign-up?token=lnk_token" in line for line in text)
    assert "<" not in seen.getvalue()
