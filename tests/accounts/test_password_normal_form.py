"""A password has one normal form (NFKC) at every entry point, and a blank one is refused at each of them."""

import io
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.hashers import Argon2PasswordHasher
from django.core.management import CommandError, call_command
from django.test import Client

from accounts import audit
from accounts.management import terminal
from accounts.models import ServerKey, User
from accounts.registration import email_outbox, pool_settings
from accounts.users import passwords
from projects.models import Environment
from tests.accounts.conftest import PASSWORD, SignedIn, session_of, token
from tests.support.client import Api
from tests.support.postbox import Postbox, token_in

pytestmark = pytest.mark.django_db(databases="__all__")

COMPOSED, DECOMPOSED = "caf\u00e9 horse battery", "cafe\u0301 horse battery"
BLANK = " " * 8
ZOE = "zoe@example.org"


@pytest.fixture
def manager(production: Environment, make_key: Callable[..., tuple[ServerKey, str]]) -> str:
    return make_key(production, "users:manage")[1]


def set_old_hash(user: User, password: str) -> None:
    """Store the hash that a version without normalisation made."""
    hasher = Argon2PasswordHasher()
    now = passwords.Argon2idHasher
    hasher.time_cost, hasher.memory_cost, hasher.parallelism = now.time_cost, now.memory_cost, now.parallelism
    User.objects.filter(pk=user.pk).update(password=hasher.encode(password, hasher.salt()))


@pytest.mark.parametrize(
    ("chosen", "offered"),
    [(COMPOSED, DECOMPOSED), (DECOMPOSED, COMPOSED), ("horse\u00a0battery \ufb01sh", "horse battery fish")],
)
def test_each_spelling_of_a_password_signs_in(
    api: Api, manager: str, production: Environment, chosen: str, offered: str
) -> None:
    assert api.post("/v1/users", token=manager, json={"email": ZOE, "password": chosen}).status == 201
    for password in (chosen, offered):
        assert token(api, email=ZOE, password=password, environment=production.pk).status == 200
    assert token(api, email=ZOE, password="cafe horse battery", environment=production.pk).error == "invalid_grant"


def test_a_hash_without_normal_form_signs_in_and_is_replaced(api: Api, una: User, production: Environment) -> None:
    set_old_hash(una, DECOMPOSED)
    assert token(api, email=una.email, password=COMPOSED, environment=production.pk).error == "invalid_grant"
    assert token(api, email=una.email, password=DECOMPOSED, environment=production.pk).status == 200
    una.refresh_from_db()
    assert not passwords.is_outdated(una.password, DECOMPOSED)
    assert token(api, email=una.email, password=COMPOSED, environment=production.pk).status == 200
    replaced = User.objects.get(pk=una.pk).password
    assert replaced == una.password, "a hash of the normal form was replaced again"


def test_a_password_is_measured_in_its_normal_form(api: Api, manager: str) -> None:
    for password, code in (
        ("e\u0301" * 7, "password_too_short"),
        ("\uff50\uff41\uff53\uff53\uff57\uff4f\uff52\uff441", "password_too_common"),  # full-width "password1"
        ("\ufdfa" * 56, "too_long"),  # 18 characters each
    ):
        answer = api.post("/v1/users", token=manager, json={"email": ZOE, "password": password})
        assert (answer.status, answer.fields) == (422, {"password": code})
    answer = api.post("/v1/users", token=manager, json={"email": ZOE, "password": "e\u0301" * 600})
    assert answer.status == 201


def test_sign_up_and_its_confirmation_read_either_spelling(api: Api, production: Environment, postbox: Postbox) -> None:
    pool_settings.change_settings(production.pk, actor=audit.SYSTEM, sign_up="open")
    api.post("/v1/auth/signup", environment=production.pk, json={"email": ZOE, "password": COMPOSED})
    email_outbox.send_due()
    body = {"token": token_in(postbox.last(ZOE)), "password": DECOMPOSED}
    assert api.post("/v1/auth/signup/confirm", environment=production.pk, json=body).status == 200


def test_own_account_reads_either_spelling_of_the_current_password(api: Api, una: User) -> None:
    User.objects.filter(pk=una.pk).update(password=passwords.hashed(COMPOSED))
    una.refresh_from_db()
    mine = session_of(una).access_token
    change = {"current_password": DECOMPOSED, "password": DECOMPOSED + "!"}
    assert api.request("PATCH", "/v1/auth/me", token=mine, json=change).status == 200
    delete = {"current_password": COMPOSED + "!"}
    assert api.post("/v1/auth/delete-account", token=mine, json=delete).status == 204


def test_the_console_reads_either_spelling(make_user: Callable[..., User]) -> None:
    staff = make_user("staff", is_staff=True)
    User.objects.filter(pk=staff.pk).update(password=passwords.hashed(COMPOSED))
    signed_in = Client().post("/admin/login/", {"username": staff.email, "password": DECOMPOSED})
    assert signed_in.status_code == 302
    staff.refresh_from_db()
    assert staff.check_password(DECOMPOSED)
    staff.set_password(DECOMPOSED)
    assert passwords.is_correct(COMPOSED, staff.password)


def test_the_terminal_accepts_two_spellings_of_one_password(monkeypatch: Any) -> None:
    typed = iter([COMPOSED, DECOMPOSED, COMPOSED, "another horse"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("getpass.getpass", lambda _: next(typed))
    options = {"password": None, "password_stdin": False}
    assert terminal.read_password(options) == COMPOSED
    with pytest.raises(CommandError, match="differ"):
        terminal.read_password(options)


@pytest.mark.parametrize("blank", [BLANK, "\u00a0" * 8, "\u3000\u2003\t\n" * 2, "\u200b\u2060" * 8])
def test_a_blank_password_is_refused_at_every_entry_point(
    api: Api, manager: str, una: User, production: Environment, postbox: Postbox, blank: str
) -> None:
    pool_settings.change_settings(production.pk, actor=audit.SYSTEM, sign_up="open")
    mine = session_of(una).access_token
    named = {"environment": production.pk}
    for answer in (
        api.post("/v1/users", token=manager, json={"email": "j@example.org", "password": blank}),
        api.request("PATCH", f"/v1/users/{una.pk}", token=manager, json={"password": blank}),
        api.request("PATCH", "/v1/auth/me", token=mine, json={"password": blank, "current_password": PASSWORD}),
        api.post("/v1/auth/signup", json={"email": "j@example.org", "password": blank}, **named),
        *(
            api.post(f"/v1/auth/{path}", json={"token": "lnk_x", "password": blank})
            for path in ("password-reset/confirm", "invitation/accept", "member-invitation/accept")
        ),
    ):
        assert (answer.status, answer.fields) == (422, {"password": "blank"})
    assert not User.objects.filter(email="j@example.org").exists()


def test_commands_and_the_console_refuse_a_blank_password(make_user: Callable[..., User]) -> None:
    with pytest.raises(CommandError, match="blank"):
        call_command("create_account", "j@example.org", password=BLANK, stderr=io.StringIO())
    staff = make_user("staff", is_staff=True)
    browser = Client()
    browser.force_login(staff)
    form = {"old_password": PASSWORD, "new_password1": BLANK, "new_password2": BLANK}
    page = browser.post("/admin/password_change/", form)
    assert page.status_code == 200
    assert "blank" in page.content.decode()
    staff.refresh_from_db()
    assert passwords.is_correct(PASSWORD, staff.password)


def test_a_user_can_be_created_without_a_password(
    api: Api, manager: str, production: Environment, postbox: Postbox, sign_in: Callable[..., SignedIn]
) -> None:
    made = api.post("/v1/users", token=manager, json={"email": "i@example.org"})
    assert made.status == 201
    user = User.objects.get(pk=made.json["id"])
    assert not user.has_usable_password()
    for password in (PASSWORD, user.password, "!"):
        refused = token(api, email="i@example.org", password=password, environment=production.pk)
        assert (refused.status, refused.error) == (400, "invalid_grant")
    api.post("/v1/auth/password-reset", environment=production.pk, json={"email": "i@example.org"})
    email_outbox.send_due()
    body = {"token": token_in(postbox.last("i@example.org")), "password": PASSWORD}
    assert api.post("/v1/auth/password-reset/confirm", environment=production.pk, json=body).status == 204
    assert sign_in(user).access_token
