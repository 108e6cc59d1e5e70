"""Signing in to `/console`, and everything that ends or must not share a session."""

import re
import time
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.core import signing
from django.http import HttpRequest
from django.test import Client
from django.urls import reverse
from django_otp.oath import TOTP

from accounts import audit
from accounts.models import AuditEntry, Session, User
from accounts.models.registration import AccountEmail
from accounts.staff import second_factor
from accounts.users import service as user_service
from platform_site.concurrency import server_hints
from platform_site.developer_console import frame
from platform_site.server.thread_shares import OverShare
from projects import services
from projects.models import Member
from tests.developer_console.conftest import PASSWORD, Desk, give_password, member, sign_in
from tests.rows.conftest import Tracker

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@pytest.fixture
def ada(settings: Any) -> User:
    settings.RATE_LIMIT_FACTOR = 1000
    return give_password(
        user_service.create_user(pool_id=None, email="ada@x.example", password=None, name="Ada", actor=audit.SYSTEM)
    )


def is_in(browser: Client, path: str = "/console/") -> bool:
    answer = browser.get(path)
    return not (answer.status_code == 302 and answer["Location"].startswith("/console/sign-in"))


def test_the_session_is_one_of_the_account_and_signing_out_ends_it(ada: User) -> None:
    browser = Client()
    assert not is_in(browser)
    sign_in(ada, browser)
    assert is_in(browser)
    stolen = Client()
    stolen.cookies["console_session"] = browser.cookies["console_session"].value
    assert is_in(stolen)
    assert Session.objects.get(user=ada).revoked_at is None
    assert AuditEntry.objects.filter(action="session.started", detail__method="console").count() == 1
    assert browser.get("/console/sign-out").status_code == 405
    assert browser.post("/console/sign-out")["Location"] == "/console/sign-in"
    assert Session.objects.get(user=ada).revoked_at is not None
    assert not is_in(browser)
    assert not is_in(stolen)


def test_cookies_are_those_of_the_console_alone(ada: User) -> None:
    browser = sign_in(ada)
    cookie = browser.cookies["console_session"]
    assert (cookie["path"], cookie["httponly"], cookie["samesite"]) == ("/console", True, "Lax")
    assert browser.get("/console/?new=1").cookies["csrftoken"]["path"] == "/console"
    assert Client().get("/admin/login/").cookies["csrftoken"]["path"] == "/admin/"
    assert "sessionid" not in browser.cookies
    User.objects.filter(pk=ada.pk).update(is_staff=True, is_superuser=True)
    assert browser.get("/admin/").status_code == 302  # a staff account's console session opens nothing there


def test_wrong_credentials_say_the_same_for_all(ada: User) -> None:
    pages = []
    for email, password in ((ada.email, "wrong"), ("nobody@x.example", PASSWORD)):
        answer = Client().post("/console/sign-in", {"email": email, "password": password})
        assert answer.status_code == 400
        assert "The email or the password is wrong." in answer.content.decode()
        pages.append(re.sub(r'value="[^"]*"', "", answer.content.decode()))
    assert pages[0] == pages[1]
    user_service.change_user(ada, actor=audit.SYSTEM, is_disabled=True)
    assert Client().post("/console/sign-in", {"email": ada.email, "password": PASSWORD}).status_code == 400


def test_a_busy_server_does_not_say_that_the_password_is_wrong(ada: User, monkeypatch: pytest.MonkeyPatch) -> None:
    owners: list[str] = []

    def enter_share(request: HttpRequest, owner: str) -> None:
        owners.append(owner)
        raise OverShare

    monkeypatch.setattr(server_hints, "enter_share", enter_share)
    answer = Client().post("/console/sign-in", {"email": ada.email, "password": PASSWORD}, REMOTE_ADDR="192.0.2.7")
    text = answer.content.decode()
    assert (answer.status_code, owners) == (503, ["192.0.2.7"])
    assert OverShare.message in text
    assert "is wrong" not in text


def test_attempts_are_limited_together_with_the_token_endpoint(ada: User, settings: Any) -> None:
    settings.RATE_LIMIT_FACTOR = 1
    for _ in range(30):
        answer = Client().post("/console/sign-in", {"email": ada.email, "password": "wrong"})
        if answer.status_code == 429:
            break
    assert "Too many attempts" in answer.content.decode()
    refused = Client().post(
        "/v1/auth/token",
        {"grant_type": "password", "email": ada.email, "password": PASSWORD},
        content_type="application/json",
    )
    assert refused.status_code == 429


def test_the_second_factor_is_asked_for(ada: User) -> None:
    device = second_factor.begin_enrolment(ada)
    totp = TOTP(device.key)
    totp.time = time.time() - 30
    second_factor.confirm_enrolment(ada, f"{totp.token():06d}")
    browser = Client()
    answer = browser.post("/console/sign-in", {"email": ada.email, "password": PASSWORD})
    assert answer["Location"] == "/console/sign-in/code"
    assert not is_in(browser)
    assert not Session.objects.filter(user=ada).exists()
    assert browser.post("/console/sign-in/code", {"code": "000000x"}).status_code == 422
    assert not is_in(browser)
    device.refresh_from_db()
    device.throttle_reset()
    totp.time = time.time()
    assert browser.post("/console/sign-in/code", {"code": f"{totp.token():06d}"}).status_code == 302
    assert is_in(browser)


def test_a_password_alone_is_no_longer_enough_once_it_changed_in_between(ada: User) -> None:
    device = second_factor.begin_enrolment(ada)
    totp = TOTP(device.key)
    totp.time = time.time() - 30
    second_factor.confirm_enrolment(ada, f"{totp.token():06d}")
    browser = Client()
    browser.post("/console/sign-in", {"email": ada.email, "password": PASSWORD})
    user_service.change_user(ada, actor=audit.SYSTEM, password="another horse battery")
    assert browser.get("/console/sign-in/code")["Location"] == "/console/sign-in"


@pytest.mark.parametrize("change", [{"is_disabled": True}, {"password": "another horse battery"}])
def test_what_ends_all_sessions_ends_this_one(ada: User, change: dict[str, Any]) -> None:
    browser = sign_in(ada)
    user_service.change_user(ada, actor=audit.SYSTEM, **change)
    assert not is_in(browser)


def test_a_session_ends_after_a_while_without_a_request_and_at_its_age(
    ada: User, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = sign_in(ada)
    began = time.time()
    for passed, answered in ((3000, True), (6000, True), (6000 + 3700, False)):
        monkeypatch.setattr("platform_site.developer_console.session.time.time", lambda at=began + passed: at)
        assert is_in(browser) is answered, passed
    monkeypatch.undo()
    settings.CONSOLE_SESSION_SECONDS = 60
    browser = sign_in(ada)
    monkeypatch.setattr("platform_site.developer_console.session.time.time", lambda: time.monotonic() * 0 + began + 90)
    assert not is_in(browser)


def test_a_cookie_of_another_making_is_none(ada: User) -> None:
    browser = sign_in(ada)
    values = signing.loads(
        browser.cookies["console_session"].value, salt="platform_site.developer_console.2.console_session"
    )
    for text in (
        "",
        "junk",
        signing.dumps(values),
        signing.dumps(values, salt="platform_site.developer_console.2.console_pending"),
    ):
        forged = Client()
        forged.cookies["console_session"] = text
        assert not is_in(forged)


@pytest.mark.parametrize(
    "target", ["https://evil.example/", "//evil.example", "/admin/", "javascript:alert(1)", "/console/../admin/"]
)
def test_a_sign_in_leads_to_pages_of_the_console_alone(ada: User, target: str) -> None:
    answer = Client().post("/console/sign-in", {"email": ada.email, "password": PASSWORD, "next": target})
    assert answer["Location"] in ("/console/", "/console/../admin/")  # browsers resolve the latter on this host
    if target.startswith("/console/.."):
        return
    assert answer["Location"] == "/console/"


def test_forms_need_the_token_of_their_page(desk: Desk) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.cookies["console_session"] = desk.browser.cookies["console_session"].value
    values = {"action": "create-key", "preset": "server"}
    assert strict.post(desk.url(), values).status_code == 403
    assert strict.post("/console/sign-out").status_code == 403
    page = strict.get(desk.url()).content.decode()
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
    assert token is not None
    assert strict.post(desk.url(), {**values, "csrfmiddlewaretoken": token[1]}).status_code == 200


def test_a_removed_member_with_an_open_tab_gets_nothing(tracker: Tracker, desk_of: Callable[[str], Desk]) -> None:
    viewer = desk_of("viewer")
    assert viewer.get().status_code == 200
    user = member(tracker.project, "viewer")
    services.remove_member(tracker.project.pk, user.pk, actor=audit.SYSTEM)
    assert viewer.get().status_code == 404
    assert viewer.post("", {"action": "create-key", "preset": "server"}).status_code == 404


def test_other_projects_and_mixed_ids_are_not_found(tracker: Tracker, desk: Desk, ada: User) -> None:
    theirs = services.create_project(
        account_id=ada.pk, name="Theirs", region="us-east-1", plan="free", actor=audit.SYSTEM
    )
    their_environment = theirs.environments.first()
    for project_id, environment_id in (
        (theirs.pk, their_environment.pk),
        (tracker.project.pk, their_environment.pk),
        (theirs.pk, tracker.environment_id),
        ("prj_x", "env_x"),
        (tracker.project.pk, "env_%00"),
    ):
        assert desk.browser.get(f"/console/{project_id}/{environment_id}/").status_code == 404
    assert desk.browser.get(f"/console/{theirs.pk}").status_code == 404


def test_a_member_of_two_projects_changes_the_one_of_the_url(tracker: Tracker, desk: Desk, ada: User) -> None:
    theirs = services.create_project(
        account_id=ada.pk, name="Theirs", region="us-east-1", plan="free", actor=audit.SYSTEM
    )
    Member.objects.create(project=theirs, user=member(tracker.project, "owner"), role=Member.Role.VIEWER)
    there = Desk(desk.browser, theirs.pk, theirs.environments.get(name="development").pk)
    sign_in(member(tracker.project, "owner"), desk.browser)
    assert "Theirs" in desk.get().content.decode()
    refused = there.post("", {"action": "create-key", "preset": "server"})
    assert refused.status_code == 403
    assert desk.post("", {"action": "create-key", "preset": "server"}).status_code == 200


@pytest.mark.exhaustive
def test_every_section_of_a_suspended_project_says_so(tracker: Tracker, desk: Desk) -> None:
    services.suspend_project(tracker.project.pk, reason="unpaid", actor=audit.SYSTEM)
    for section in frame.SECTIONS:
        answer = desk.browser.get(reverse(f"developer_console:{section}", args=[desk.project_id, desk.environment_id]))
        page = unescape(answer.content.decode())
        assert answer.status_code in (200, 403), section
        assert "This project is suspended." in page, section
        assert "You don't have access" not in page, section
        assert 'id="sidebar"' in page, section


def test_a_forgotten_password_is_reset_by_email(ada: User) -> None:
    browser = Client()
    asked_for = "next=%2Fconsole%2Fcommand-line"
    shown = browser.get(f"/console/sign-in?{asked_for}").content.decode()
    assert f'href="/console/sign-in/forgotten?{asked_for}"' in shown
    form = browser.get(f"/console/sign-in/forgotten?{asked_for}").content.decode()
    assert "Send the link" in form
    assert f'href="/console/sign-in?{asked_for}"' in form
    for email in (ada.email, "nobody@x.example"):
        asked = browser.post("/console/sign-in/forgotten", {"email": email})
        assert f"If <bdi>{email}</bdi> has an account" in asked.content.decode()
    found = AccountEmail.objects.filter(kind=AccountEmail.Kind.RESET_PASSWORD, environment_id=None)
    assert set(found.values_list("recipient", flat=True)) == {ada.email, "nobody@x.example"}
    wrong = browser.post("/console/sign-in/forgotten", {"email": "nothing"})
    assert wrong.status_code == 422
    assert 'role="alert"' in wrong.content.decode()


def test_reset_links_are_limited(ada: User, settings: Any) -> None:
    settings.RATE_LIMIT_FACTOR = 1
    answers = [Client().post("/console/sign-in/forgotten", {"email": ada.email}) for _ in range(30)]
    assert answers[-1].status_code == 429
    assert "Too many attempts. Try again in" in answers[-1].content.decode()
