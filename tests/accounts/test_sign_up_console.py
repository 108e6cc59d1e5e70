"""The console's pages and the commands of sign-up: `sign_up_settings`, `invite_user`."""

import io
import json
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse

from accounts import audit
from accounts.models import AccountEmail, AuditEntry, PoolSettings, User
from accounts.registration import email_outbox, pool_settings, sign_up
from accounts.registration.pool_settings import Pool
from accounts.users import service as user_service
from projects.models import Environment
from tests.accounts.conftest import PASSWORD, branch_of
from tests.support.client import Api
from tests.support.postbox import Postbox, token_in

pytestmark = pytest.mark.django_db(databases="__all__")


def run(*arguments: str) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    call_command(*arguments, stdout=out, stderr=err, no_color=True)
    return out.getvalue(), err.getvalue()


def test_the_console_shows_emails_and_settings_and_nothing_secret(
    production: Environment, postbox: Postbox, client: Client
) -> None:
    pool_settings.change_settings(production.pk, actor=audit.SYSTEM, sign_up="open", app_name="Tracker")
    sign_up.request_sign_up(Pool(production.pk, production.pk), email="nia@example.com", password=PASSWORD, name="Nia")
    email_outbox.send_due()
    email = AccountEmail.objects.get()
    staff = user_service.create_user(
        pool_id=None, email="staff@example.com", password=None, is_staff=True, actor=audit.SYSTEM
    )
    client.force_login(staff)
    hidden = [
        token_in(postbox.last("nia@example.com")),
        email.details["password_hash"],
        "argon2",
        bytes(email.token_hash or b"").hex(),
    ]
    for path, word in (
        (reverse("admin:accounts_accountemail_changelist"), email.pk),
        (reverse("admin:accounts_accountemail_changelist") + "?state=sent", email.pk),
        (reverse("admin:accounts_accountemail_change", args=[email.pk]), "nia@example.com"),
        (reverse("admin:accounts_poolsettings_changelist"), "Tracker"),
        (reverse("admin:accounts_poolsettings_change", args=[PoolSettings.objects.get().pk]), "Tracker"),
    ):
        answer = client.get(path)
        assert answer.status_code == 200, path
        text = answer.content.decode()
        assert word in text
        assert not [secret for secret in hidden if secret in text]
    waiting = client.get(reverse("admin:accounts_accountemail_changelist") + "?state=waiting").content.decode()
    assert email.pk not in waiting


def test_sign_up_is_opened_and_shown_in_the_terminal(api: Api, production: Environment) -> None:
    out, _ = run("sign_up_settings", "--environment", production.pk, "--json")
    assert json.loads(out) == {
        "sign_up": "off", "app_name": "", "app_url": "", "link_urls": {}, "environment_id": production.pk
    }  # fmt: skip
    link = "reset_password=https://app.example.com/reset?t={token}"
    _, err = run(
        "sign_up_settings", "--environment", production.pk, "--sign-up", "open", "--app-name", "Tracker", "--link", link
    )
    assert "open" in err
    assert "https://app.example.com/reset?t={token}" in err
    found = PoolSettings.objects.get()
    assert (found.environment_id, found.sign_up, found.app_name) == (production.pk, "open", "Tracker")
    assert AuditEntry.objects.get(action="sign_up.changed").actor_kind == "system"
    body = {"email": "nia@example.com", "password": PASSWORD}
    assert api.post("/v1/auth/signup", json=body, environment=production.pk).status == 202


def test_platform_accounts_are_opened_by_the_operator_alone(api: Api) -> None:
    run("sign_up_settings", "--platform", "--sign-up", "open")
    assert api.post("/v1/auth/signup", json={"email": "nia@example.com", "password": PASSWORD}).status == 202


@pytest.mark.parametrize(
    "arguments",
    [
        ["--environment", "env_01k60000000000000000000000"],
        ["--sign-up", "open"],
        ["--platform", "--sign-up", "anybody"],
        ["--platform", "--app-url", "ftp://x"],
        ["--platform", "--link", "reset_password"],
        ["--platform", "--link", "other=https://x.example/{token}"],
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(arguments: list[str]) -> None:
    with pytest.raises(CommandError):
        run("sign_up_settings", *arguments)
    assert not PoolSettings.objects.exists()


def test_a_branch_has_no_settings_of_its_own(production: Environment) -> None:
    with pytest.raises(CommandError, match="branched"):
        run("sign_up_settings", "--environment", branch_of(production).pk, "--sign-up", "open")


def test_invitation_by_a_command(api: Api, production: Environment, postbox: Postbox) -> None:
    out, _ = run("invite_user", "nia@example.com", "--environment", production.pk, "--role", "editor", "--json")
    assert json.loads(out)["role"] == "editor"
    email_outbox.send_due()
    body: dict[str, Any] = {"token": token_in(postbox.last("nia@example.com")), "password": PASSWORD}
    assert api.post("/v1/auth/invitation/accept", json=body, environment=production.pk).status == 200
    assert User.objects.get(email="nia@example.com").role == "editor"
    with pytest.raises(CommandError, match="has this email"):
        run("invite_user", "nia@example.com", "--environment", production.pk)
