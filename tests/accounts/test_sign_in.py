"""`POST /v1/auth/token` with a password: contract 4.5."""

from collections.abc import Callable
from typing import Any

import pytest

from accounts import audit
from accounts.models import AuditEntry, Session, User
from accounts.users import service as user_service
from platform_site.http.errors import InvalidGrant
from projects.models import Environment
from tests.accounts.conftest import PASSWORD, SignedIn, branch_of, make_environment, session_of, token
from tests.support.client import Api

pytestmark = pytest.mark.django_db(databases="__all__")


def test_the_right_password_gets_a_token_pair(api: Api, alice: User) -> None:
    answer = token(api, email="alice@example.com", password=PASSWORD)
    assert answer.status == 200
    assert set(answer.json) == {"access_token", "refresh_token", "expires_in", "user"}
    assert answer.json["expires_in"] == 900
    assert answer.json["user"] == {"id": alice.pk, "email": "alice@example.com", "name": "Alice"}
    assert answer.json["refresh_token"].startswith("rt_")
    assert answer.headers["Cache-Control"] == "no-store"
    session = Session.objects.get()
    assert session.user == alice
    entry = AuditEntry.objects.get(action="session.started")
    assert (entry.actor_kind, entry.actor_id, entry.target_id) == ("account", alice.pk, session.pk)
    assert entry.request_id == answer.headers["X-Request-Id"]


def test_an_email_is_compared_without_case(api: Api, alice: User) -> None:
    assert token(api, email="ALICE@Example.COM", password=PASSWORD).json["user"]["id"] == alice.pk


@pytest.mark.parametrize("fold", ["alıce@example.com", "ALİCE@example.com", "аlice@example.com"])
def test_a_look_alike_of_an_email_is_another_email(api: Api, alice: User, fold: str) -> None:
    assert token(api, email=fold, password=PASSWORD).error == "invalid_grant"


@pytest.mark.parametrize("in_application", [False, True])
def test_every_refusal_of_a_person_is_the_same_answer(
    api: Api, production: Environment, make_user: Callable[..., User], in_application: bool
) -> None:
    pool_id = production.pk if in_application else None
    make_user("una", pool_id=pool_id)
    disabled = make_user("disabled", pool_id=pool_id)
    User.objects.filter(pk=disabled.pk).update(disabled_at="2026-01-01T00:00:00Z")
    make_user("passwordless", pool_id=pool_id, password=None)
    tries = [
        ("una@example.com", "wrong password"),
        ("una@example.com", PASSWORD + " "),
        ("una@example.com", PASSWORD.upper()),
        ("nobody@example.com", PASSWORD),
        ("not an address", PASSWORD),
        ("disabled@example.com", PASSWORD),
        ("passwordless@example.com", PASSWORD),
        ("passwordless@example.com", "!"),
    ]
    answers = [token(api, email=email, password=password, environment=pool_id) for email, password in tries]
    assert {answer.status for answer in answers} == {400}
    errors = [
        {name: value for name, value in answer.json["error"].items() if name != "request_id"} for answer in answers
    ]
    assert errors == [errors[0]] * len(errors)
    assert errors[0]["code"] == "invalid_grant"
    assert Session.objects.count() == 0


@pytest.mark.parametrize("change", [{"is_disabled": True}, {"password": "another battery staple"}])
def test_a_session_starts_only_for_the_user_who_was_authenticated(alice: User, change: Any) -> None:
    user_service.change_user(User.objects.get(pk=alice.pk), actor=audit.SYSTEM, **change)
    with pytest.raises(InvalidGrant):
        session_of(alice)
    assert Session.objects.count() == 0


def test_an_application_has_a_pool_of_its_own(api: Api, alice: User, una: User, production: Environment) -> None:
    other = make_environment(alice)
    assert token(api, email=una.email, password=PASSWORD, environment=production.pk).json["user"]["id"] == una.pk
    assert token(api, email=una.email, password=PASSWORD).error == "invalid_grant"
    assert token(api, email=una.email, password=PASSWORD, environment=other.pk).error == "invalid_grant"
    assert token(api, email=alice.email, password=PASSWORD, environment=production.pk).error == "invalid_grant"


def test_the_host_names_the_environment_too(api: Api, una: User, production: Environment, settings: Any) -> None:
    settings.PLATFORM_DOMAIN = "platform.example"
    settings.ALLOWED_HOSTS = [".platform.example"]
    answer = api.post(
        "/v1/auth/token",
        json={"grant_type": "password", "email": una.email, "password": PASSWORD},
        headers={"Host": f"{production.pk.replace('_', '-')}.platform.example"},
    )
    assert answer.json["user"]["id"] == una.pk


def test_a_branch_signs_in_its_parents_pool(api: Api, una: User, production: Environment) -> None:
    branch = branch_of(production)
    answer = token(api, email=una.email, password=PASSWORD, environment=branch.pk)
    assert answer.json["user"]["id"] == una.pk
    assert Session.objects.get().environment_id == branch.pk
    me = api.get("/v1/auth/me", token=answer.json["access_token"])
    assert me.json["environment_id"] == branch.pk


@pytest.mark.parametrize(
    "environment", ["env_01k6000000000000000000000", "env_01k60000000000000000000000", "prod", "x\u00e9"]
)
def test_unknown_environment_refuses_sign_in(api: Api, alice: User, environment: str) -> None:
    answer = token(api, email=alice.email, password=PASSWORD, environment=environment)
    assert answer.error == "invalid_grant"
    assert answer.fields == {"X-Environment": "unknown"}


def test_forged_code_is_refused(api: Api) -> None:
    for code in ("oac_123", "x" * 200, "é"):
        assert token(api, grant_type="authorization_code", code=code).error == "invalid_grant"


@pytest.mark.usefixtures("hashing_as_in_production")
def test_a_password_hash_of_other_parameters_is_replaced(api: Api, alice: User) -> None:
    from django.contrib.auth.hashers import Argon2PasswordHasher

    class Older(Argon2PasswordHasher):
        time_cost, memory_cost, parallelism = 1, 8192, 1

    User.objects.update(password=Older().encode(PASSWORD, Older().salt()))
    assert token(api, email=alice.email, password=PASSWORD).status == 200
    stored = User.objects.get().password
    assert "m=12288,t=3,p=1" in stored
    assert token(api, email=alice.email, password=PASSWORD).status == 200
    assert User.objects.get().password == stored


def test_a_session_remembers_the_device(api: Api, alice: User) -> None:
    api.post(
        "/v1/auth/token",
        json={"grant_type": "password", "email": alice.email, "password": PASSWORD},
        headers={"User-Agent": "Browser " + "é" * 400},
        remote_addr="203.0.113.7",
    )
    session = Session.objects.get()
    assert (len(session.user_agent), session.ip_address) == (300, "203.0.113.7")


def test_no_secret_of_a_session_is_stored(api: Api, alice: User, sign_in: Callable[..., SignedIn]) -> None:
    signed_in = sign_in(alice)
    refreshed = token(api, grant_type="refresh_token", refresh_token=signed_in.refresh_token).json
    row = repr(Session.objects.values().get())
    for secret in (signed_in.refresh_token, refreshed["refresh_token"], refreshed["access_token"], PASSWORD):
        assert secret not in row
        assert secret.encode() not in b"".join(
            bytes(value)
            for value in Session.objects.values_list("sealed_successor", "refresh_hash", "previous_hash").get()
        )
