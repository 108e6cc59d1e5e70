"""The console's page for a forgotten password: it calls `POST /v1/auth/password-reset`, and reveals as little."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from accounts.models import AccountEmail, User
from accounts.registration import email_outbox
from tests.accounts.conftest import PASSWORD
from tests.support.postbox import Postbox, token_in

pytestmark = pytest.mark.django_db(databases="__all__")

PAGE = "/admin/login/forgotten/"
BETTER = "a different horse"


@pytest.fixture
def boss(make_user: Callable[..., User]) -> User:
    return make_user("boss", email="boss@example.com", is_staff=True)


def test_the_sign_in_page_leads_to_a_link_that_works_once(boss: User, postbox: Postbox) -> None:
    browser = Client()
    assert PAGE in browser.get(reverse("admin:login")).content.decode()
    assert "boss@example.com" in browser.post(PAGE, {"email": "boss@example.com"}).content.decode()
    email_outbox.send_due()
    link = token_in(postbox.last("boss@example.com"))
    chosen = {"token": link, "password": BETTER, "again": BETTER}
    done = browser.post("/auth/reset-password", chosen)
    assert done.status_code == 200
    assert reverse("admin:index") in done.content.decode(), "staff find the way back"
    assert browser.post("/auth/reset-password", chosen).status_code == 400
    for password, status in ((PASSWORD, 200), (BETTER, 302)):
        answer = browser.post(reverse("admin:login"), {"username": boss.email, "password": password})
        assert answer.status_code == status


def test_others_find_the_way_back_to_their_console(make_user: Callable[..., User], postbox: Postbox) -> None:
    make_user("dev", email="dev@example.com")
    browser = Client()
    browser.post("/console/sign-in/forgotten", {"email": "dev@example.com"})
    email_outbox.send_due()
    link = token_in(postbox.last("dev@example.com"))
    done = browser.post("/auth/reset-password", {"token": link, "password": BETTER, "again": BETTER})
    assert reverse("developer_console:start") in done.content.decode()


def test_it_reveals_no_accounts(boss: User, postbox: Postbox) -> None:
    seen = []
    for email in ("boss@example.com", "nobo@example.com"):
        with CaptureQueriesContext(
            connection,
        ) as statements:
            page = Client().post(PAGE, {"email": email})
        assert page.status_code == 200
        shown = re.sub(r'nonce="[^"]*"', "", page.content.decode().replace(email, ""))
        seen.append((shown, len(statements)))
    assert seen[0] == seen[1]
    email_outbox.send_due()
    assert [message["To"] for message in postbox.messages] == ["boss@example.com"]


def test_it_counts_by_the_address_that_is_named(boss: User, settings: Any) -> None:
    settings.RATE_LIMIT_FACTOR = 1
    browser = Client()
    answers = [browser.post(PAGE, {"email": "Boss@example.com"}).status_code for _ in range(7)]
    assert answers == [200] * 6 + [429]
    assert "Too many attempts" in browser.post(PAGE, {"email": "boss@EXAMPLE.com"}).content.decode()


def test_what_is_no_address_is_said_beside_the_field() -> None:
    page = Client().post(PAGE, {"email": "boss at example"})
    assert page.status_code == 422
    assert "not a valid email" in page.content.decode()
    assert not AccountEmail.objects.exists()


def test_a_forged_form_is_refused() -> None:
    assert Client(enforce_csrf_checks=True).post(PAGE, {"email": "boss@example.com"}).status_code == 403
