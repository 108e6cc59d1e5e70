"""The commands: `create_account`, `create_user`, `issue_key`, `revoke_key`, `rotate_signing_key`."""

import fcntl
import json
import os
import pty
import subprocess
import sys
import termios
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.sessions.models import Session as ConsoleSession
from django.core.management import CommandError, call_command
from django.db import OperationalError
from django.db.models.functions import Now
from django.test import Client
from django.utils import timezone

from accounts import audit, tasks
from accounts.checks import check_stored_signing_keys
from accounts.keys import server_keys
from accounts.models import AuditEntry, ServerKey, Session, SigningKey, User
from accounts.models.registration import AccountEmail
from accounts.tokens import signing_keys
from accounts.users import sessions
from platform_site.identity.callers import ACCOUNT_SCOPES, PUBLISHABLE_SCOPES
from projects.models import Environment
from tests.accounts.conftest import PASSWORD, SignedIn, token
from tests.support.client import Api
from tests.support.commands import run

pytestmark = pytest.mark.django_db(databases="__all__")


def test_create_account_makes_someone_who_signs_in(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = run(
        "create_account",
        "zoe@example.com",
        "--name",
        "Zoë",
        "--password-stdin",
        stdin=f"{PASSWORD}\n",
        monkeypatch=monkeypatch,
    )
    user = User.objects.get()
    assert out == ""
    assert user.pk in err
    assert (user.environment_id, user.is_staff, user.name) == (None, False, "Zoë")
    assert token(api, email="zoe@example.com", password=PASSWORD).status == 200
    entry = AuditEntry.objects.get(action="user.created")
    assert (entry.actor_kind, entry.actor_id) == ("system", None)


def test_create_account_for_the_console(client: Any) -> None:
    out, _ = run("create_account", "staff@example.com", "--staff", "--password", PASSWORD, "--json")
    assert json.loads(out) == {
        "id": User.objects.get().pk,
        "email": "staff@example.com",
        "name": "",
        "staff": True,
    }
    assert client.login(username="staff@example.com", password=PASSWORD)


def test_create_user_fills_the_environments_pool(api: Api, production: Environment) -> None:
    out, _ = run(
        "create_user", production.pk, "vic@example.com", "--role", "editor", "--claims", '{"team": "a"}', "--password", PASSWORD, "--json"
    )  # fmt: skip
    made = json.loads(out)
    user = User.objects.get(pk=made["id"])
    assert (user.environment_id, user.role, user.claims) == (production.pk, "editor", {"team": "a"})
    assert token(api, email="vic@example.com", password=PASSWORD, environment=production.pk).status == 200


def test_without_a_terminal_a_command_names_the_ways_that_it_has(una: User, monkeypatch: pytest.MonkeyPatch) -> None:
    for command, ways in (
        (("create_account", "new@example.com"), "--password-stdin or --password or --no-password."),
        (("set_password", una.pk), "--password-stdin or --password."),
    ):
        with pytest.raises(CommandError, match=f"pass {ways}$"):
            run(*command, stdin="", monkeypatch=monkeypatch)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["create_account", "nonsense", "--password", PASSWORD], "email"),
        (["create_account", "a@example.com", "--password", "short"], "password"),
        (["create_account", "alice@example.com", "--password", PASSWORD], "Another user has this email"),
        (["create_account", "a@example.com", "--password", PASSWORD, "--name", "x" * 201], "name"),
        (["create_account"], "email"),
        (["create_user", "env_01k60000000000000000000000", "a@example.com", "--no-password"], "no environment"),
        (
            ["create_user", "prj_01k60000000000000000000000/production", "a@example.com", "--no-password"],
            "no environment",
        ),
        (["create_user", "{project}/staging", "a@example.com", "--no-password"], "no environment"),
        (["create_user", "{production}", "a@example.com", "--no-password", "--role", "server"], "role"),
        (["create_user", "{production}", "a@example.com", "--no-password", "--claims", "[]"], "object"),
        (["create_user", "{production}", "a@example.com", "--no-password", "--claims", "{"], "JSON"),
        (["create_user", "{production}", "a@example.com", "--no-password", "--claims", '{"a": NaN}'], "NaN"),
        (["create_user", "{production}", "a@example.com", "--no-password", "--claims", '{"a": "\\u0000"}'], "NUL"),
        (["issue_key", "CI"], "required"),
        (["issue_key", "CI", "--environment", "{production}"], "--scopes"),
        (["issue_key", "CI", "--account", "alice@example.com"], "--scopes"),
        (["issue_key", "CI", "--environment", "{production}", "--scopes", "all", "rows:read"], "cannot hold all"),
        (["issue_key", "CI", "--environment", "env_01k60000000000000000000000"], "no environment"),
        (["issue_key", "CI", "--account", "nobody@example.com"], "no platform account"),
        (["issue_key", "CI", "--environment", "{production}", "--scopes", "everything"], "scopes"),
        (["issue_key", "CI", "--environment", "{production}", "--scopes", "projects:create"], "scopes"),
        (["issue_key", "CI", "--environment", "{production}", "--publishable", "--scopes", "users:manage"], "scopes"),
        (["issue_key", "CI", "--account", "alice@example.com", "--publishable"], "publishable"),
        (["issue_key", "x" * 101, "--environment", "{production}", "--scopes", "rows:read"], "name"),
        (["issue_key", "CI", "--environment", "{production}", "--expires-in-days", "0"], "days"),
        (["revoke_key", "key_01k60000000000000000000000"], "no key"),
        (["revoke_key", "sk_x"], "no key"),
    ],
)
def test_a_wrong_argument_is_a_sentence_and_changes_nothing(
    alice: User, production: Environment, arguments: list[str], said: str
) -> None:
    before = (User.objects.count(), ServerKey.objects.count(), AuditEntry.objects.count())
    environments = {"{production}": production.pk, "{project}/staging": f"{production.project_id}/staging"}
    with pytest.raises((CommandError, SystemExit)) as refused:
        run(*[environments.get(argument, argument) for argument in arguments])
    assert said in str(refused.value)
    assert (User.objects.count(), ServerKey.objects.count(), AuditEntry.objects.count()) == before


def test_issue_key_prints_the_secret_once_and_alone(api: Api, production: Environment) -> None:
    out, err = run("issue_key", "CI", "--environment", production.pk, "--scopes", "rows:read", "users:manage")
    secret = out.strip()
    assert server_keys.parse(secret)
    assert secret not in err
    key = ServerKey.objects.get()
    assert key.pk in err
    assert key.scopes == ["rows:read", "users:manage"]
    assert api.get("/v1/users", token=secret).status == 200
    out, _ = run(
        "issue_key", "All", "--environment", production.pk, "--scopes", "all", "--expires-in-days", "1", "--json"
    )
    made = json.loads(out)
    assert len(made["scopes"]) == 16
    assert made["expires_at"] is not None
    assert api.get("/v1/auth/me", token=made["secret"]).json["id"] == made["id"]


def test_an_environment_may_be_named_by_its_project_and_name(api: Api, production: Environment) -> None:
    path = f"{production.project_id}/production"
    secret = run("issue_key", "CI", "--environment", path, "--scopes", "rows:read")[0].strip()
    assert ServerKey.objects.get().environment_id == production.pk
    assert api.get("/v1/auth/me", token=secret).json["environment_id"] == production.pk
    made, _ = run("create_user", path, "vic@example.com", "--no-password", "--json")
    assert json.loads(made)["environment_id"] == production.pk
    settings, _ = run("sign_up_settings", "--environment", path, "--json")
    assert json.loads(settings)["sign_up"] == "off"


def test_issue_key_makes_a_publishable_one_that_revoke_key_ends(api: Api, production: Environment) -> None:
    secret = run("issue_key", "page", "--environment", production.pk, "--publishable")[0].strip()
    me = api.get("/v1/auth/me", token=secret).json
    assert (secret[:3], me["kind"], me["scopes"]) == ("pk_", "anonymous", sorted(PUBLISHABLE_SCOPES))
    run("revoke_key", secret)
    assert api.get("/v1/auth/me", token=secret).status == 401


def test_issue_key_for_an_account(api: Api, alice: User) -> None:
    for who in (alice.pk, "Alice@Example.com"):
        secret = run("issue_key", "CI", "--account", who, "--scopes", "all")[0].strip()
        assert api.get("/v1/projects", token=secret).status == 200
        assert api.get("/v1/auth/me", token=secret).json["scopes"] == sorted(ACCOUNT_SCOPES)


def test_revoke_key_by_id_and_by_secret(api: Api, production: Environment, make_key: Callable[..., Any]) -> None:
    (one, first), (two, second) = make_key(production), make_key(production)
    for secret in (first, second):
        assert api.get("/v1/auth/me", token=secret).status == 200
    assert one.pk in run("revoke_key", one.pk)[1]
    assert json.loads(run("revoke_key", second, "--json")[0])["id"] == two.pk
    for secret in (first, second):
        assert api.get("/v1/auth/me", token=secret).status == 401
    with pytest.raises(CommandError, match="was revoked at"):
        run("revoke_key", one.pk)


def test_rotate_signing_key(api: Api, alice: User, sign_in: Callable[..., SignedIn]) -> None:
    one = sign_in(alice)
    planned = json.loads(run("rotate_signing_key", "--json")[0])
    assert SigningKey.objects.count() == 2
    assert planned["signs_from"] > SigningKey.objects.order_by("signs_from")[0].signs_from.isoformat()
    assert api.get("/v1/auth/me", token=one.access_token).status == 200
    assert "signs from" in run("rotate_signing_key", "--immediately")[1]
    assert AuditEntry.objects.filter(action="signing_key.rotated").count() == 2
    assert SigningKey.objects.filter(retires_at__isnull=True).count() == 1


@pytest.mark.exhaustive
def test_a_password_is_asked_for_twice_on_a_terminal_and_never_echoed() -> None:
    """A real terminal, since that is what getpass needs; refused because the two differ, before any database is
    asked."""
    main, secondary = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "manage.py", "create_account", "tty@example.com"],
        stdin=secondary,
        stdout=secondary,
        stderr=secondary,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(secondary)
    shown = b""
    try:
        for prompt, typed in ((b"Password: ", b"one secret\n"), (b"(again): ", b"another secret\n")):
            while prompt not in shown:
                shown += os.read(main, 1024)
            os.write(main, typed)
        while process.poll() is None or b"differ" not in shown:
            try:
                shown += os.read(main, 1024)
            except OSError:
                break
    finally:
        process.kill()
        process.wait()
        os.close(main)
    assert b"The two passwords differ." in shown
    assert b"secret" not in shown


def test_without_a_terminal_the_ways_to_give_a_password_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommandError, match="--password-stdin"):
        run("create_account", "a@example.com", stdin="", monkeypatch=monkeypatch)
    assert User.objects.count() == 0


def test_set_password_ends_the_sessions(api: Api, una: User, alice: User, sign_in: Callable[..., SignedIn]) -> None:
    for user, named in ((una, una.pk), (alice, "ALICE@example.com")):
        one = sign_in(user)
        assert user.pk in run("set_password", named, "--password", "another good one")[1]
        assert api.get("/v1/auth/me", token=one.access_token).status == 401
        sign_in(user, password="another good one")
    with pytest.raises(CommandError, match="too short"):
        run("set_password", una.pk, "--password", "short")
    with pytest.raises(CommandError, match="no platform account"):
        run("set_password", "nobody@example.com", "--password", "another good one")


def test_change_email_ends_the_sessions_and_notifies_the_old_email(
    api: Api, alice: User, bob: User, una: User, client: Client, sign_in: Callable[..., SignedIn]
) -> None:
    User.objects.filter(pk=alice.pk).update(email_verified_at=Now(), is_staff=True)
    alice.refresh_from_db()
    one = sign_in(alice)
    client.force_login(alice)
    old = alice.email
    assert alice.pk in run("change_email", old.upper(), "New@Example.com")[1]
    alice.refresh_from_db()
    assert (alice.email, alice.email_verified_at) == ("new@example.com", None)
    assert api.get("/v1/auth/me", token=one.access_token).status == 401
    assert client.get("/admin/").status_code == 302
    assert token(api, email=old, password=PASSWORD).status == 400
    sign_in(alice)
    entry = AuditEntry.objects.get(action="user.changed")
    assert (entry.actor_kind, entry.target_id) == ("system", alice.pk)
    assert entry.detail == {"fields": ["email", "email_verified_at"], "via": "command"}
    [notice] = AccountEmail.objects.all()
    assert (notice.kind, notice.recipient) == ("email_changed", old)
    for account, email, said in (
        (alice.pk, bob.email, "Another user has this email"),
        (alice.pk, "nobody", "not a valid email"),
        (alice.pk, alice.email, "already the account's email"),
        (una.pk, "una2@example.com", "no platform account"),
    ):
        with pytest.raises(CommandError, match=said):
            run("change_email", account, email)
    alice.refresh_from_db()
    assert alice.email == "new@example.com"


def test_delete_account_asks_for_its_email(
    api: Api, alice: User, bob: User, sign_in: Callable[..., SignedIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, bob_id = sign_in(bob), bob.pk
    for typed, said in (("alice@example.com\n", "Not confirmed"), ("", "Pass --no-input")):
        with pytest.raises(CommandError, match=said):
            run("delete_account", bob.email, stdin=typed, monkeypatch=monkeypatch)
    assert api.get("/v1/auth/me", token=one.access_token).status == 200
    assert bob_id in run("delete_account", bob.email, stdin=f"{bob.email}\n", monkeypatch=monkeypatch)[1]
    assert api.get("/v1/auth/me", token=one.access_token).status == 401
    entry = AuditEntry.objects.get(action="user.deleted")
    assert (entry.actor_kind, entry.target_id) == ("system", bob_id)
    with pytest.raises(CommandError, match="no platform account"):
        run("delete_account", bob_id, "--no-input")


def test_delete_account_leaves_owners_and_the_last_superuser(alice: User, una: User, production: Environment) -> None:
    boss = User.objects.get(
        pk=json.loads(run("create_account", "s@example.com", "--staff", "--no-password", "--json")[0])["id"]
    )
    for account, said in (
        (alice.pk, f"at least one owner. Delete these, or .* of each: {production.project_id}\\.$"),
        (boss.pk, "last superuser"),
        (una.pk, "no platform account"),
    ):
        with pytest.raises(CommandError, match=said):
            run("delete_account", account, "--no-input")
    assert User.objects.filter(pk__in=[alice.pk, boss.pk, una.pk]).count() == 3


def test_djangos_own_command_ends_the_sessions_too(api: Api, alice: User, sign_in: Callable[..., SignedIn]) -> None:
    """`changepassword` and the like set a password and save."""
    one = sign_in(alice)
    assert api.get("/v1/auth/me", token=one.access_token).status == 200
    alice.set_password("another good one")
    alice.save()
    assert api.get("/v1/auth/me", token=one.access_token).status == 401
    entry = AuditEntry.objects.get(action="user.changed")
    assert (entry.actor_kind, entry.target_id, entry.detail) == ("system", alice.pk, {"fields": ["password"]})


@pytest.mark.parametrize(
    "command",
    [
        "create_account",
        "change_email",
        "delete_account",
        "create_user",
        "set_password",
        "issue_key",
        "revoke_key",
        "rotate_signing_key",
    ],
)
def test_each_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        call_command(command, "--help")
    shown = capsys.readouterr().out
    assert "--json" in shown
    assert len(shown) > 300


def test_periodic_job_deletes_what_ended_long_ago(
    alice: User, production: Environment, sign_in: Callable[..., SignedIn], make_key: Callable[..., Any]
) -> None:
    for _ in range(3):
        sign_in(alice)
    oldest, late, _ = Session.objects.order_by("pk")
    Session.objects.filter(pk=oldest.pk).update(expires_at="2020-01-01T00:00:00Z")
    Session.objects.filter(pk=late.pk).update(expires_at=Now() - timedelta(days=29))
    gone, _ = make_key(production)
    kept, _ = make_key(production)
    ServerKey.objects.filter(pk=gone.pk).update(revoked_at="2020-01-01T00:00:00Z")
    tasks.purge_expired()
    assert not Session.objects.filter(pk=oldest.pk).exists()
    assert Session.objects.count() == 2, "one that ended a while ago can still be looked at"
    assert list(ServerKey.objects.values_list("pk", flat=True)) == [kept.pk]
    tasks.purge_expired()
    assert Session.objects.count() == 2


def test_expired_sessions_of_the_admin_are_deleted() -> None:
    for key, minutes in (("expired", -1), ("live", 1)):
        ConsoleSession.objects.create(session_key=key, expire_date=timezone.now() + timedelta(minutes=minutes))
    tasks.purge_expired()
    assert [each.session_key for each in ConsoleSession.objects.all()] == ["live"]


def test_failure_in_periodic_job_stops_no_other_deletion(
    production: Environment, make_key: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> int:
        raise OperationalError

    key, _ = make_key(production)
    ServerKey.objects.filter(pk=key.pk).update(revoked_at="2020-01-01T00:00:00Z")
    monkeypatch.setattr(sessions, "purge", fail)
    tasks.purge_expired()
    assert not ServerKey.objects.exists()


@pytest.mark.parametrize("command", ["serve", "work"])
def test_nothing_serves_with_foreign_encryption_keys(settings: Any, command: str) -> None:
    settings.PRODUCTION = True
    assert check_stored_signing_keys(databases=["default"]) == []
    signing_keys.rotate(actor=audit.SYSTEM)
    settings.ENCRYPTION_KEYS = ["22" * 32, *settings.ENCRYPTION_KEYS]
    assert check_stored_signing_keys(databases=["default"]) == []
    settings.ENCRYPTION_KEYS = ["22" * 32]
    assert check_stored_signing_keys() == [], "`check --deploy` may run where there is no database"
    with pytest.raises(CommandError, match="^ENCRYPTION_KEYS decrypts no signing key of this control database"):
        call_command(command)
    signing_keys.rotate(actor=audit.SYSTEM)  # so that one can go on without the lost keys
    assert check_stored_signing_keys(databases=["default"]) == []
