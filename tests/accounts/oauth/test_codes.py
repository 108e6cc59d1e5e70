"""One-time codes at the token endpoint: what each is bound to, that one exchange wins, and that a copied one is noticed.

Contract 4.5 and its error cases; RFC 6749 4.1.2, RFC 7636, RFC 9700 2.1.1.
"""

import secrets
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F

from accounts import audit
from accounts.models import AuditEntry, AuthorizationCode, Session, User
from accounts.tasks import purge_expired
from accounts.tokens import token_format
from accounts.users import exchange_codes
from accounts.users import service as user_service
from projects.models import Environment
from tests.accounts.conftest import make_environment, token
from tests.accounts.oauth.conftest import APP, exchange, in_parallel, s256
from tests.projects.conftest import key_for
from tests.support.client import Api

pytestmark = pytest.mark.django_db(databases="__all__")

VERIFIER = "a" * 20 + "._~-" + "Z" * 30


def issue(user: User, environment: Environment | None, **fields: Any) -> str:
    given = {"redirect_uri": APP, "code_challenge": None, "method": "oauth:acme"} | fields
    return exchange_codes.issue(user, environment_id=environment.pk if environment else None, **given)


def nothing_happened(user: User) -> bool:
    unused = not AuthorizationCode.objects.filter(used_at__isnull=False).exists()
    return unused and not Session.objects.filter(user=user).exists()


# ── The seven errors of contract 4.5 ──


@pytest.mark.parametrize(
    ("body", "field"),
    [
        pytest.param({"grant_type": None}, "grant_type", id="no grant_type"),
        pytest.param({"grant_type": "password", "password": "x"}, "email", id="password without email"),
        pytest.param({"grant_type": "password", "email": "a@example.com"}, "password", id="password without password"),
        pytest.param({"grant_type": "authorization_code"}, "code", id="authorization_code without code"),
        pytest.param(
            {"grant_type": "password", "email": "una@example.com", "password": "wrong"}, None, id="wrong credentials"
        ),
        pytest.param({"grant_type": "authorization_code", "code": "oac_wrong"}, None, id="wrong code"),
    ],
)
def test_each_client_error_is_invalid_grant_and_names_what_is_missing(
    api: Api, una: User, production: Environment, body: dict[str, Any], field: str | None
) -> None:
    answer = token(api, environment=production.pk, **body)
    assert (answer.status, answer.error) == (400, "invalid_grant")
    assert list(answer.fields) == ([field] if field else [])
    assert not Session.objects.exists()


def test_the_seventh_is_429(api: Api, una: User, production: Environment, settings: Any) -> None:
    settings.RATE_LIMIT_FACTOR = 0.001  # one a minute
    for _ in range(3):  # the minute may end in between
        answer = exchange(api, "oac_wrong", production, remote_addr="198.51.100.7")
        if answer.status != 400:
            break
    assert (answer.status, answer.error) == (429, "rate_limited")
    assert int(answer.headers["Retry-After"]) >= 1


# ── What a code is bound to ──


def test_a_code_is_good_for_one_exchange(api: Api, una: User, production: Environment) -> None:
    code = issue(una, production)
    first = exchange(api, code, production)
    assert (first.status, first.json["user"]["id"]) == (200, una.pk)
    again = exchange(api, code, production)
    assert (again.status, again.error) == (400, "invalid_grant")
    assert api.get("/v1/auth/me", token=first.json["access_token"]).status == 200, "within 10 s it may be impatience"
    assert Session.objects.count() == 1


@pytest.mark.parametrize(("scope", "status"), [("current", 200), ("others", 400), ("all", 400)])
def test_signing_out_elsewhere_withdraws_codes(
    api: Api, una: User, production: Environment, scope: str, status: int
) -> None:
    signed_in = exchange(api, issue(una, production), production).json["access_token"]
    unused = issue(una, production)
    assert api.post("/v1/auth/revoke", json={"scope": scope}, token=signed_in).status == 204
    assert exchange(api, unused, production).status == status


def test_ending_all_sessions_of_a_user_withdraws_codes(api: Api, una: User, production: Environment) -> None:
    unused, key = issue(una, production), key_for(production.pk, "users:manage")
    assert api.delete(f"/v1/users/{una.pk}/sessions", token=key).status == 204
    assert exchange(api, unused, production).error == "invalid_grant"


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_of_twenty_exchanges_at_once_exactly_one_wins(una: User, production: Environment) -> None:
    code = issue(una, production, code_challenge=s256(VERIFIER))
    answers = in_parallel(*[lambda: exchange(Api(), code, production, code_verifier=VERIFIER) for _ in range(20)])
    assert sorted(answer.status for answer in answers) == [200] + [400] * 19
    assert Session.objects.count() == 1
    [winner] = [answer for answer in answers if answer.status == 200]
    assert Api().get("/v1/auth/me", token=winner.json["access_token"]).status == 200


def test_a_code_that_comes_again_later_ends_the_session_it_began(api: Api, una: User, production: Environment) -> None:
    code = issue(una, production)
    first = exchange(api, code, production).json
    AuthorizationCode.objects.update(used_at=F("used_at") - timedelta(seconds=11))
    assert exchange(api, code, production).error == "invalid_grant"
    assert api.get("/v1/auth/me", token=first["access_token"]).status == 401
    assert token(api, grant_type="refresh_token", refresh_token=first["refresh_token"]).status == 400
    session = Session.objects.get()
    assert session.revoked_reason == "authorization_code_reused"
    entry = AuditEntry.objects.get(action="session.revoked")
    assert (entry.target_id, entry.detail["reason"]) == (session.pk, "authorization_code_reused")
    exchange(api, code, production)
    assert AuditEntry.objects.filter(action="session.revoked").count() == 1


def test_a_code_that_comes_again_is_its_own_user_s_affair(
    api: Api, make_user: Callable[..., User], una: User, production: Environment
) -> None:
    """Beside others', used and unused, of the same pool and of the platform."""
    others = [make_user("ulf", pool_id=production.pk), make_user("gina")]
    places = [production, None]
    for other, place in zip(others, places, strict=True):
        assert exchange(api, issue(other, place), place).status == 200
    AuthorizationCode.objects.update(used_at=F("used_at") - timedelta(seconds=30))
    waiting = [issue(other, place) for other, place in zip(others, places, strict=True)]
    code = issue(una, production)
    assert exchange(api, code, production).status == 200
    assert exchange(api, code, production).error == "invalid_grant"
    assert not Session.objects.filter(revoked_at__isnull=False).exists(), "impatience ends nothing"
    assert exchange(api, waiting.pop(), places.pop()).status == 200
    AuthorizationCode.objects.filter(user=una).update(used_at=F("used_at") - timedelta(seconds=11))
    for _ in range(2):
        assert exchange(api, code, production, remote_addr="192.0.2.7").error == "invalid_grant"
    [ended] = Session.objects.filter(revoked_at__isnull=False)
    assert ended.user_id == una.pk
    [entry] = AuditEntry.objects.filter(action="session.revoked")
    assert (entry.target_id, entry.environment_id) == (ended.pk, production.pk)
    assert (entry.detail["user_id"], entry.detail["reused_from"]) == (una.pk, "192.0.2.7")
    for unused, place in zip(waiting, places, strict=True):
        assert exchange(api, unused, place).status == 200


def test_a_code_lives_for_a_minute_by_the_clock_of_the_database(api: Api, una: User, production: Environment) -> None:
    code = issue(una, production)
    record = AuthorizationCode.objects.get()
    assert record.expires_at - record.created_at == timedelta(seconds=60)
    AuthorizationCode.objects.update(expires_at=F("expires_at") - timedelta(seconds=61))
    assert exchange(api, code, production).error == "invalid_grant"
    assert nothing_happened(una)


def test_a_code_is_for_one_environment(api: Api, alice: User, una: User, production: Environment) -> None:
    elsewhere = make_environment(alice)
    code = issue(una, production)
    refusals = [exchange(api, code, elsewhere), exchange(api, code), exchange(api, code, None, remote_addr="192.0.2.1")]
    refusals.append(token(api, grant_type="authorization_code", code=code, environment="env_nonsense"))
    unknown = exchange(api, token_format.make("oac_", 43), production)
    for refusal in refusals:
        assert (refusal.status, refusal.json["error"]["message"]) == (400, unknown.json["error"]["message"])
    assert nothing_happened(una)
    assert exchange(api, code, production).status == 200


def test_a_platform_account_s_code_is_for_no_environment(api: Api, alice: User, production: Environment) -> None:
    code = issue(alice, None)
    assert exchange(api, code, production).status == 400
    assert exchange(api, code).json["user"]["id"] == alice.pk


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param({}, id="no verifier"),
        pytest.param({"code_verifier": VERIFIER[:-1] + "X"}, id="another verifier"),
        pytest.param({"code_verifier": s256(VERIFIER)}, id="the challenge itself (plain)"),
        pytest.param({"code_verifier": VERIFIER.upper()}, id="upper case"),
        pytest.param({"code_verifier": ""}, id="empty"),
        pytest.param({"code_verifier": 5}, id="a number"),
        pytest.param({"code_verifier": "é" * 43}, id="not ASCII"),
        pytest.param({"code_verifier": "a" * 129}, id="too long"),
    ],
)
def test_a_challenge_needs_its_verifier(api: Api, una: User, production: Environment, sent: dict[str, Any]) -> None:
    code = issue(una, production, code_challenge=s256(VERIFIER))
    refused = exchange(api, code, production, **sent)
    assert (refused.status, refused.error) == (400, "invalid_grant")
    assert nothing_happened(una)
    assert exchange(api, code, production, code_verifier=VERIFIER).status == 200, "a wrong try does not use it up"


def test_a_verifier_without_a_challenge_is_refused(api: Api, una: User, production: Environment) -> None:
    """An attacker removed the challenge from the request (PKCE downgrade, RFC 9700 4.8.2)."""
    code = issue(una, production)
    assert exchange(api, code, production, code_verifier=secrets.token_urlsafe(40)).status == 400
    assert nothing_happened(una)


def test_a_redirect_uri_that_is_sent_must_be_the_one(api: Api, una: User, production: Environment) -> None:
    code = issue(una, production)
    for other in (APP + "/", APP.upper(), "https://evil.example/", ""):
        assert exchange(api, code, production, redirect_uri=other).status == 400, other
    assert nothing_happened(una)
    assert exchange(api, code, production, redirect_uri=APP).status == 200


@pytest.mark.parametrize(
    "code",
    [
        "",
        "oac_",
        "x" * 300,
        "oac_" + "0" * 49,
        "rt_" + "a" * 49,
        "sk_" + "a" * 38,
        "oac_\0",
        "ｏac_" + "0" * 49,
        5,
        None,
        ["a"],
        {},
    ],
)
def test_what_cannot_be_a_code_costs_no_statement(
    api: Api, production: Environment, code: Any, django_assert_num_queries: Any
) -> None:
    with django_assert_num_queries(0):
        answer = exchange(api, code, production)
    assert (answer.status, answer.error) == (400, "invalid_grant")


def test_a_code_dies_with_its_user(api: Api, una: User, production: Environment) -> None:
    code = issue(una, production)
    una.delete()
    assert exchange(api, code, production).error == "invalid_grant"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"password": "another horse, another battery"}, id="another password"),
        pytest.param({"is_disabled": True}, id="disabled"),
    ],
)
def test_a_code_ends_with_the_sessions_of_its_user(
    api: Api, make_user: Callable[..., User], una: User, production: Environment, change: dict[str, Any]
) -> None:
    """The result is a session that has not begun: a user who recovers the account ends it, too."""
    neighbours = issue(make_user("ulf", pool_id=production.pk), production)
    used, code = issue(una, production), issue(una, production)
    exchange(api, used, production)
    user_service.change_user(una, actor=audit.SYSTEM, **change)
    user_service.change_user(una, actor=audit.SYSTEM, is_disabled=False)
    assert exchange(api, code, production).error == "invalid_grant"
    assert not Session.objects.filter(revoked_at__isnull=True).exists()
    assert AuthorizationCode.objects.filter(user=una).count() == 1, "a used one is still recognised when it comes again"
    assert exchange(api, neighbours, production).status == 200


def test_expired_codes_are_deleted(una: User, production: Environment) -> None:
    issue(una, production)
    issue(una, production)
    AuthorizationCode.objects.filter(pk=AuthorizationCode.objects.first().pk).update(  # type: ignore[union-attr]
        expires_at=F("expires_at") - timedelta(hours=2)
    )
    purge_expired()
    assert AuthorizationCode.objects.count() == 1


def test_codes_and_verifiers_are_in_no_log_line(
    api: Api, una: User, production: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    code = issue(una, production)
    with caplog.at_level("DEBUG"):
        exchange(api, code, production, code_verifier=VERIFIER)
        exchange(api, code, production)
    told = repr([record.__dict__ for record in caplog.records])
    assert "code refused" in told
    assert code not in told
    assert VERIFIER not in told
