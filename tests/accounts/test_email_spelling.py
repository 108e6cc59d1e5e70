"""Emails have one spelling (lower case, NFC) wherever they come in."""

import io
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest
from django.core.management import call_command

from accounts import audit
from accounts.models import AccountEmail, ServerKey, User
from accounts.registration import email_outbox, pool_settings
from projects.models import Environment
from tests.accounts.conftest import PASSWORD, session_of, token
from tests.support.client import Api
from tests.support.postbox import Postbox, token_in

pytestmark = pytest.mark.django_db(databases="__all__")

OTTO, TYPED = "otto@example.com", "OTTO@Example.com"


@pytest.fixture
def manager(production: Environment, make_key: Callable[..., tuple[ServerKey, str]]) -> str:
    return make_key(production, "users:manage")[1]


def test_an_email_that_signs_up_in_capitals_is_stored_in_lower_case(
    api: Api, production: Environment, postbox: Postbox
) -> None:
    pool_settings.change_settings(production.pk, actor=audit.SYSTEM, sign_up="open")
    api.post("/v1/auth/signup", environment=production.pk, json={"email": TYPED, "password": PASSWORD})
    email_outbox.send_due()
    body = {"token": token_in(postbox.last(OTTO)), "password": PASSWORD}
    entered = api.post("/v1/auth/signup/confirm", environment=production.pk, json=body)
    assert entered.json["user"]["email"] == OTTO
    assert api.get("/v1/auth/me", token=entered.json["access_token"]).json["email"] == OTTO
    assert token(api, email=TYPED, password=PASSWORD, environment=production.pk).json["user"]["email"] == OTTO


def test_users_are_created_changed_and_found_in_any_spelling(api: Api, manager: str, una: User) -> None:
    made = api.post("/v1/users", token=manager, json={"email": TYPED})
    assert made.json["email"] == OTTO
    for email in (OTTO, TYPED):
        assert api.post("/v1/users", token=manager, json={"email": email}).fields == {"email": "taken"}
        query = urlencode({"email": email})
        [found] = api.get(f"/v1/users?{query}", token=manager).json["data"]
        assert found["id"] == made.json["id"]
    changed = api.request("PATCH", f"/v1/users/{una.pk}", token=manager, json={"email": "Una.New@EXAMPLE.com"})
    assert changed.json["email"] == "una.new@example.com"


def test_invitations_and_email_changes_show_the_stored_spelling(
    api: Api, alice: User, una: User, production: Environment, manager: str, postbox: Postbox
) -> None:
    pool_settings.change_settings(None, actor=audit.SYSTEM, sign_up="invited")
    assert api.post("/v1/invitations", token=manager, json={"email": TYPED}).json["email"] == OTTO
    owner = session_of(alice).access_token
    path = f"/v1/projects/{production.project_id}/members"
    for email in (TYPED, OTTO):
        assert api.post(path, token=owner, json={"email": email, "role": "viewer"}).json["email"] == OTTO
    assert AccountEmail.objects.filter(project_id=production.project_id).count() == 1
    mine = session_of(una).access_token
    api.post("/v1/auth/email-change", token=mine, json={"email": "New@Example.com", "current_password": PASSWORD})
    assert api.get("/v1/auth/me", token=mine).json["pending_email"] == "new@example.com"


def test_commands_store_lower_case(production: Environment) -> None:
    call_command("create_account", TYPED, no_password=True, stderr=io.StringIO())
    call_command("create_user", production.pk, TYPED, no_password=True, stderr=io.StringIO())
    User.objects.create_superuser("Root@Example.com", PASSWORD)
    stored = User.objects.filter(email__iendswith="@example.com").exclude(email="alice@example.com")
    assert sorted(stored.values_list("email", flat=True)) == [OTTO, OTTO, "root@example.com"]


def test_email_conflicts_lists_emails_that_differ_in_spelling(production: Environment) -> None:
    """Direct SQL can store them; the API cannot."""
    spellings = ("jos\u00e9@example.com", "jose\u0301@example.com")
    conflicting = {User.objects.create(environment_id=production.pk, email=email).pk for email in spellings}
    User.objects.create(environment_id=production.pk, email="alone@example.com")
    out = io.StringIO()
    call_command("email_conflicts", json=True, stdout=out)
    assert {each["id"] for each in json.loads(out.getvalue())} == conflicting
    lines: Any = io.StringIO()
    call_command("email_conflicts", stdout=lines, stderr=io.StringIO())
    assert len(lines.getvalue().splitlines()) == 2
