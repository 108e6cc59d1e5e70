"""The pages behind the links of emails: opening one changes nothing, its form does; no script, no cookie, no leak."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from accounts import audit
from accounts.models import AccountEmail, Session, User
from accounts.registration import email_outbox, invitations, own_account, password_reset, pool_settings, sign_up
from accounts.registration.pool_settings import Pool
from projects.models import Environment
from tests.accounts.conftest import PASSWORD
from tests.support.postbox import Postbox, link_in, token_in

pytestmark = pytest.mark.django_db(databases="__all__")

BETTER = "a different horse"
NIA = "nia@example.com"


@pytest.fixture
def client() -> Client:
    """A browser: it would report a missing CSRF token."""
    return Client(enforce_csrf_checks=True, raise_request_exception=True)


@pytest.fixture
def pool(production: Environment) -> Pool:
    pool_settings.change_settings(
        production.pk, actor=audit.SYSTEM, sign_up="open", app_name="Tracker <3", app_url="https://app.example.com/"
    )
    return Pool(production.pk, production.pk)


@pytest.fixture
def page(pool: Pool, una: User, postbox: Postbox) -> Callable[[str], str]:
    """Requests a link of this kind; returns its path on this site."""

    def send(kind: str) -> str:
        match kind:
            case "sign_up":
                sign_up.request_sign_up(pool, email=NIA, password=PASSWORD)
            case "invitation":
                invitations.invite(pool_id=pool.id, email=NIA, actor=audit.SYSTEM, name="Nia")
            case "verify_email":
                own_account.request_verification(una)
            case "reset_password":
                password_reset.request_reset(pool, email=una.email)
            case "change_email":
                own_account.request_email_change(una, email=NIA, current_password=PASSWORD)
        email_outbox.send_due()
        return link_in(postbox.messages[-1]).removeprefix("http://127.0.0.1:8000")

    return send


FILLED: dict[str, dict[str, str]] = {
    "sign_up": {"password": PASSWORD},
    "invitation": {"name": "Nía", "password": BETTER, "again": BETTER},
    "verify_email": {},
    "reset_password": {"password": BETTER, "again": BETTER},
    "change_email": {"password": PASSWORD},
}
KINDS = pytest.mark.parametrize("kind", list(FILLED))


def submit(client: Client, address: str, **values: str) -> Any:
    return client.post(address.partition("?")[0], {"token": token_in(address)} | values)


@KINDS
def test_a_page_does_what_its_link_says_once(
    client: Client, page: Callable[[str], str], una: User, pool: Pool, kind: str
) -> None:
    address = page(kind)
    opened = client.get(address)
    assert opened.status_code == 200
    done = submit(client, address, **FILLED[kind])
    assert done.status_code == 200, done.content
    text = done.content.decode()
    assert "Go to Tracker &lt;3" in text
    assert 'href="https://app.example.com/"' in text
    una.refresh_from_db()
    match kind:
        case "sign_up" | "invitation":
            made = User.objects.get(environment_id=pool.id, email=NIA)
            assert made.check_password(FILLED[kind]["password"])
        case "verify_email":
            assert una.email_verified_at is not None
        case "reset_password":
            assert una.check_password(BETTER)
        case "change_email":
            assert una.email == NIA
    assert not Session.objects.exists(), "no page signs a user in"
    assert submit(client, address, **FILLED[kind]).status_code == 400


def test_an_old_invitations_name_can_stay_and_a_new_one_follows_the_rule(
    client: Client, page: Callable[[str], str], pool: Pool
) -> None:
    address = page("invitation")
    AccountEmail.objects.update(details={**AccountEmail.objects.get().details, "name": "N\x1bia"})
    wrong = submit(client, address, **FILLED["invitation"] | {"name": "N\x1bina"})
    assert "Must not have control characters." in wrong.content.decode()
    assert submit(client, address, **FILLED["invitation"] | {"name": "N\x1bia"}).status_code == 200
    assert User.objects.get(environment_id=pool.id, email=NIA).name == "N\x1bia"


@KINDS
def test_opening_a_page_changes_nothing_however_often(client: Client, page: Callable[[str], str], kind: str) -> None:
    """Mailboxes open links to look for viruses."""
    address = page(kind)
    before = AccountEmail.objects.values().get()
    users = list(User.objects.order_by("pk").values())
    assert [client.get(address).status_code for _ in range(2)] == [200, 200]
    assert client.head(address).status_code == 200
    assert client.post(address).status_code == 400, "the form contains its token"
    assert AccountEmail.objects.values().get() == before
    assert list(User.objects.order_by("pk").values()) == users


@KINDS
def test_a_page_is_kept_nowhere_and_runs_nothing(client: Client, page: Callable[[str], str], kind: str) -> None:
    answer = client.get(page(kind))
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["X-Frame-Options"] == "DENY"
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "form-action 'self'" in policy
    assert not answer.cookies
    text = answer.content.decode()
    assert "<script" not in text
    assert not re.search(r"\son\w+=|javascript:", text)
    assert "Tracker <3" not in text
    # Each field has its label, and what it is for.
    for field in re.findall(r'<input[^>]* id="(\w+)"', text):
        assert f'<label for="{field}">' in text
    assert text.count("<h1>") == 1
    assert '<html lang="en">' in text


@pytest.mark.parametrize(
    "query", ["", "?token=", "?token=x", "?token=lnk_" + "0" * 49, "?token=%00", "?token=" + "x" * 5000, "?token[]=x"]
)
@KINDS
def test_an_address_without_a_link_says_so(client: Client, pool: Pool, kind: str, query: str) -> None:
    from django.urls import reverse

    for answer in (client.get(reverse(f"page_{kind}") + query), client.post(reverse(f"page_{kind}"), {"token": query})):
        assert answer.status_code == 400
        assert "no longer works" in answer.content.decode()


@pytest.mark.parametrize("kind", ["verify_email", "reset_password", "change_email"])
def test_the_page_of_a_disabled_user_says_so_too(
    client: Client, page: Callable[[str], str], una: User, kind: str
) -> None:
    address = page(kind)
    User.objects.filter(pk=una.pk).update(disabled_at="2026-01-01T00:00Z")
    assert "no longer works" in client.get(address).content.decode()


def test_what_is_wrong_is_said_beside_its_field_and_the_link_stays(
    client: Client, page: Callable[[str], str], una: User
) -> None:
    address = page("reset_password")
    for values, word in (
        ({"password": BETTER, "again": BETTER + "?"}, "The two passwords differ."),
        ({"password": "1234567", "again": "1234567"}, "too short"),
        ({"password": "password1", "again": "password1"}, "too common"),
        ({"password": "x" * 1001, "again": "x" * 1001}, "at most 1000 characters"),
        ({}, "This field is required."),
    ):
        answer = submit(client, address, **values)
        text = answer.content.decode()
        assert answer.status_code == 422
        assert word in text
        assert 'aria-invalid="true"' in text
        assert 'role="alert"' in text
        for value in values.values():
            assert value not in text, "a password comes back in the page"
    una.refresh_from_db()
    assert una.check_password(PASSWORD)
    assert submit(client, address, password=BETTER, again=BETTER).status_code == 200


def test_a_wrong_password_is_counted_on_the_page_too(client: Client, page: Callable[[str], str]) -> None:
    address = page("change_email")
    assert [submit(client, address, password="a guess").status_code for _ in range(6)] == [422] * 4 + [400] * 2


def test_page_works_on_each_platform_host_with_relative_links(
    client: Client, page: Callable[[str], str], settings: Any
) -> None:
    address = page("verify_email")
    settings.ALLOWED_HOSTS = ["*"]
    text = client.get(address + "&next=https://evil.example", headers={"Host": "evil.example"}).content.decode()
    assert "evil.example" not in text


def test_tries_are_counted(client: Client, pool: Pool, settings: Any) -> None:
    settings.RATE_LIMIT_FACTOR = 0.01  # three of 300
    statuses = [client.get("/auth/verify-email?token=x", REMOTE_ADDR="2001:db8:77::1").status_code for _ in range(8)]
    assert 429 in statuses


def test_other_methods_are_none(client: Client) -> None:
    assert client.put("/auth/verify-email").status_code == 405
