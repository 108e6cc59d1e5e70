"""`/console/command-line`: an account lets the command `platform` sign in, and nobody else."""

import hashlib
import json
import re
import secrets
from base64 import urlsafe_b64encode
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.test import Client

from accounts import audit
from accounts.models import AuditEntry, User
from accounts.models.oauth import AuthorizationCode
from accounts.users import service as user_service
from platform_site.developer_cli.sign_in_phrase import phrase_of
from tests.developer_console.conftest import give_password, sign_in

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

VERIFIER = secrets.token_urlsafe(48)
CHALLENGE = urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).rstrip(b"=").decode()
ASKED = {"port": "49152", "state": secrets.token_urlsafe(32), "code_challenge": CHALLENGE}
ORIGIN = "http://127.0.0.1:49152"


@pytest.fixture
def ada(settings: Any) -> User:
    settings.RATE_LIMIT_FACTOR = 1000
    return give_password(
        user_service.create_user(pool_id=None, email="ada@x.example", password=None, name="Ada", actor=audit.SYSTEM)
    )


def answer(browser: Client, decision: str = "allow", **asked: str) -> Any:
    query = "&".join(f"{name}={value}" for name, value in {**ASKED, **asked}.items())
    return browser.post(f"/console/command-line?{query}", {"answer": decision})


def code_of(response: Any) -> str:
    url = urlsplit(response["Location"])
    assert f"{url.scheme}://{url.netloc}{url.path}" == f"{ORIGIN}/"
    given = parse_qs(url.query)
    assert given["state"] == [ASKED["state"]]
    assert set(given) == {"code", "state"}
    return given["code"][0]


def exchange(code: str, **changed: Any) -> Any:
    body = {"grant_type": "authorization_code", "code": code, "code_verifier": VERIFIER, "redirect_uri": f"{ORIGIN}/"}
    body = {name: value for name, value in {**body, **changed}.items() if value is not None}
    return Client().post("/v1/auth/token", body, content_type="application/json")


def test_an_account_allows_it_and_the_code_is_exchanged_once(ada: User) -> None:
    asked = Client().get("/console/command-line", ASKED)
    assert asked.status_code == 302
    assert asked["Location"].startswith("/console/sign-in?next=%2Fconsole%2Fcommand-line%3Fport%3D49152")
    browser = sign_in(ada)
    page = browser.get("/console/command-line", ASKED)
    assert page.status_code == 200
    assert ada.email in page.content.decode()
    assert phrase_of(CHALLENGE) in page.content.decode()
    assert not AuthorizationCode.objects.exists()  # looking at the page allows nothing
    code = code_of(answer(browser))
    tokens = exchange(code)
    assert tokens.status_code == 200
    me = Client().get("/v1/auth/me", headers={"Authorization": f"Bearer {tokens.json()['access_token']}"}).json()
    assert me["id"] == ada.pk
    assert exchange(code).status_code == 400
    assert AuditEntry.objects.filter(action="session.started", detail__method="command line").count() == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"code_verifier": None},
        {"code_verifier": secrets.token_urlsafe(48)},
        {"code_verifier": CHALLENGE},
        {"redirect_uri": "http://127.0.0.1:49153/"},
    ],
)
def test_a_copied_code_is_worth_nothing(ada: User, changed: dict[str, Any]) -> None:
    code = code_of(answer(sign_in(ada)))
    assert exchange(code, **changed).status_code == 400
    assert exchange(code).status_code == 200


def test_a_code_is_not_for_an_environment(ada: User) -> None:
    code = code_of(answer(sign_in(ada)))
    body = {"grant_type": "authorization_code", "code": code, "code_verifier": VERIFIER}
    other = {"X-Environment": "env_01h455vb4pex5vsknk084sn02q"}
    assert Client().post("/v1/auth/token", body, content_type="application/json", headers=other).status_code == 400


def test_a_refusal_reaches_the_command(ada: User) -> None:
    browser = sign_in(ada)
    for decision in ("refuse", "", "allow "):
        given = parse_qs(urlsplit(answer(browser, decision)["Location"]).query)
        assert given == {"error": ["access_denied"], "state": [ASKED["state"]]}
    assert not AuthorizationCode.objects.exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("port", port) for port in ("", "80", "1023", "65536", "49152@evil.example", "49152/x", "٤٩١٥٢", "49152%0A")],
        *[("state", state) for state in ("", "short", "x" * 129, "a" * 30 + "%26code=x", "é" * 30)],
        *[("code_challenge", challenge) for challenge in ("", "x", "x" * 42, "x" * 44, "=" * 43)],
    ],
)
def test_a_request_that_is_none_of_the_command(ada: User, name: str, value: str) -> None:
    browser = sign_in(ada)
    refused = answer(browser, **{name: value})
    assert refused.status_code == 400
    assert "Location" not in refused.headers
    assert browser.get("/console/command-line", {**ASKED, name: value}).status_code == 400
    assert not AuthorizationCode.objects.exists()


def test_another_page_cannot_answer_for_the_account(ada: User) -> None:
    browser = sign_in(ada, Client())
    forged = Client(enforce_csrf_checks=True)
    forged.cookies["console_session"] = browser.cookies["console_session"].value
    assert answer(forged).status_code == 403
    assert not AuthorizationCode.objects.exists()
    policy = browser.get("/console/command-line", ASKED).headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in policy
    assert re.search(r"form-action ([^;]*)", policy)[1].split() == ["'self'", ORIGIN]  # type: ignore[index]
    other = browser.get("/console/?new=1").headers["Content-Security-Policy"]
    assert ORIGIN not in other


def test_a_session_that_ended_allows_nothing(ada: User) -> None:
    browser = sign_in(ada)
    stolen = Client()
    stolen.cookies["console_session"] = browser.cookies["console_session"].value
    browser.post("/console/sign-out")
    assert answer(stolen)["Location"].startswith("/console/sign-in")
    assert answer(Client())["Location"].startswith("/console/sign-in")
    assert not AuthorizationCode.objects.exists()


def test_an_account_that_is_disabled_meanwhile(ada: User) -> None:
    code = code_of(answer(sign_in(ada)))
    user_service.change_user(ada, actor=audit.SYSTEM, is_disabled=True)
    refused = exchange(code)
    assert (refused.status_code, json.loads(refused.content)["error"]["code"]) == (400, "invalid_grant")
