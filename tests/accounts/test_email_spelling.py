"""Emails have one spelling (lower case, NFC) wherever they come in."""

import io
import json
from collections.abc import Callable
from importlib import import_module
from typing import Any
from urllib.parse import urlencode

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connection

from accounts import audit
from accounts.models import AccountEmail, Identity, IdentityProvider, ServerKey, User
from accounts.registration import email_outbox, pool_settings
from accounts.users import passwords
from projects.models import Environment
from tests.accounts.conftest import PASSWORD, make_environment, session_of, token
from tests.accounts.postbox import Postbox, token_in
from tests.client import Api

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


def test_the_migration_keeps_addresses_that_conflict(api: Api, alice: User, production: Environment) -> None:
    other = make_environment(alice)
    stored = {
        "capitals": (production.pk, TYPED),
        "elsewhere": (other.pk, OTTO),
        "composed": (production.pk, "jos\u00e9@example.com"),
        "decomposed": (production.pk, "jose\u0301@example.com"),
        "alone": (other.pk, "Rene\u0301@example.com"),
    }
    users = {
        name: User.objects.create(environment_id=pool, email=email, password=passwords.hashed(f"{PASSWORD} {name}"))
        for name, (pool, email) in stored.items()
    }
    provider = IdentityProvider.objects.create(
        environment_id=production.pk, name="x", kind="oidc", issuer="https://id.example.com"
    )
    identity = Identity.objects.create(user=users["capitals"], provider=provider, subject="1", email=TYPED)

    with connection.schema_editor(atomic=False) as editor:
        import_module("accounts.migrations.0011_email_spelling").normalise(apps, editor)

    found = {name: User.objects.get(pk=user.pk).email for name, user in users.items()}
    assert found == {
        "capitals": OTTO,
        "elsewhere": OTTO,
        "composed": "jos\u00e9@example.com",
        "decomposed": "jose\u0301@example.com",
        "alone": "ren\u00e9@example.com",
    }
    identity.refresh_from_db()
    assert identity.email == OTTO
    for name in ("composed", "decomposed"):
        entered = token(api, email=found[name], password=f"{PASSWORD} {name}", environment=production.pk)
        assert entered.json["user"]["id"] == users[name].pk
    out = io.StringIO()
    call_command("email_conflicts", json=True, stdout=out)
    assert {each["id"] for each in json.loads(out.getvalue())} == {users["composed"].pk, users["decomposed"].pk}
    lines: Any = io.StringIO()
    call_command("email_conflicts", stdout=lines, stderr=io.StringIO())
    assert len(lines.getvalue().splitlines()) == 2
