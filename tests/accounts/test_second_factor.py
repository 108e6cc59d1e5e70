"""The console's second factor, sessions and sign-in, in a browser."""

import re
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.contrib.admin.utils import quote
from django.core.management import CommandError, call_command
from django.db import transaction
from django.db.models.functions import Now
from django.test import Client, RequestFactory
from django.urls import reverse
from django_otp.oath import TOTP

from accounts import audit
from accounts.models import AuditEntry, User
from accounts.staff import known_browsers, second_factor, sessions
from accounts.staff.models import RecoveryCode, TotpDevice
from platform_site.http.errors import NotFound, ValidationFailed
from tests.accounts.conftest import PASSWORD
from tests.support.client import Api
from tests.support.concurrency import in_thread, wait_until, waiting_for_locks

pytestmark = pytest.mark.django_db(databases="__all__")

SECURITY = "/admin/security/"
CODE = "/admin/login/code/"


@pytest.fixture
def boss(make_user: Callable[..., User]) -> User:
    return make_user("boss", email=f"{secrets.token_hex(6)}@example.com", is_staff=True)


def enter(browser: Client, user: User, password: str = PASSWORD, address: str = "10.9.0.1", **more: str) -> Any:
    body = {"username": user.email, "password": password, **more}
    return browser.post(reverse("admin:login"), body, REMOTE_ADDR=address)


def code_of(user: User, *, steps: int = 0) -> str:
    device = TotpDevice.objects.get(user=user)
    totp = TOTP(device.key)
    totp.time = time.time() + 30 * steps
    return f"{totp.token():06d}"


def enrol(browser: Client, user: User) -> list[str]:
    """Turn the second factor on by its page; the recovery codes. The code is the step before's, so that the present one
    is still unused."""
    page = browser.post(SECURITY, {"action": "begin", "password": PASSWORD}).content.decode()
    assert "<svg" in page
    done = browser.post(SECURITY, {"action": "confirm", "code": code_of(user, steps=-1)}).content.decode()
    codes = re.findall(r"<li>([a-z2-7]{4}(?:-[a-z2-7]{4}){3})</li>", done)
    assert len(codes) == 10
    return codes


def is_in(browser: Client) -> bool:
    return bool(browser.get(reverse("admin:accounts_user_changelist")).status_code == 200)


def test_without_a_second_factor_the_password_is_enough(boss: User) -> None:
    browser = Client()
    assert enter(browser, boss, next="/admin/accounts/user/").headers["Location"] == "/admin/accounts/user/"
    assert is_in(browser)


def test_enrolling_needs_the_password_and_the_first_code(boss: User) -> None:
    browser = Client()
    enter(browser, boss)
    assert "is not your password" in browser.post(SECURITY, {"action": "begin", "password": "wrong"}).content.decode()
    assert not TotpDevice.objects.exists()
    page = browser.post(SECURITY, {"action": "begin", "password": PASSWORD})
    assert "no-store" in page.headers["Cache-Control"]
    assert second_factor.secret_text(TotpDevice.objects.get()) in page.content.decode()
    assert "The code is wrong" in browser.post(SECURITY, {"action": "confirm", "code": "000000"}).content.decode()
    assert second_factor.device_of(boss) is None
    other = Client()
    enter(other, boss)
    assert is_in(other), "nothing is asked before it is confirmed"


def test_then_signing_in_takes_both_and_other_browsers_are_out(boss: User) -> None:
    browser, elsewhere = Client(), Client()
    enter(browser, boss)
    enter(elsewhere, boss)
    enrol(browser, boss)
    assert is_in(browser)
    assert not is_in(elsewhere), "a session that never showed the second factor ends"
    stranger = Client()
    answer = enter(stranger, boss)
    assert answer.headers["Location"] == CODE
    assert not is_in(stranger), "the password alone opens nothing"
    enter(stranger, boss)
    assert stranger.post(CODE, {"code": "12345"}).status_code == 200
    assert not is_in(stranger)
    TotpDevice.objects.update(throttling_failure_count=0)
    enter(stranger, boss)
    assert stranger.post(CODE, {"code": code_of(boss)}).status_code == 302
    assert is_in(stranger)
    assert list(AuditEntry.objects.filter(action="totp.enabled").values_list("actor_id", flat=True)) == [boss.pk]


def test_a_code_counts_once_and_wrong_ones_cost_time(boss: User) -> None:
    first = Client()
    enter(first, boss)
    enrol(first, boss)
    right = code_of(boss)
    for browser, opens in ((Client(), True), (Client(), False)):
        enter(browser, boss)
        browser.post(CODE, {"code": right})
        assert is_in(browser) is opens
    browser = Client()
    enter(browser, boss)
    for steps in (-3, 3):
        TotpDevice.objects.update(throttling_failure_count=0, last_step=-1)
        with pytest.raises(ValidationFailed):
            second_factor.verify(boss, code_of(boss, steps=steps))
    TotpDevice.objects.update(throttling_failure_count=30)
    said = browser.post(CODE, {"code": code_of(boss, steps=1)}).content.decode()
    assert "Too many wrong codes" in said
    assert not is_in(browser)
    assert TotpDevice.objects.get().wait <= 300, "the owner is never locked out for long"


def test_a_recovery_code_opens_once(boss: User, make_user: Callable[..., User]) -> None:
    browser = Client()
    enter(browser, boss)
    codes = enrol(browser, boss)
    other = make_user("other", is_staff=True)
    theirs = Client()
    enter(theirs, other)
    enrol(theirs, other)
    with pytest.raises(ValidationFailed):
        second_factor.verify(other, codes[0])
    assert TotpDevice.objects.get(user=other).throttling_failure_count == 1
    stored = b"".join(bytes(code) for code in RecoveryCode.objects.values_list("code_hash", flat=True))
    assert codes[0].replace("-", "").encode() not in stored
    for spelling, opens in ((codes[0].upper().replace("-", " "), True), (codes[0], False), (codes[1], True)):
        TotpDevice.objects.update(throttling_failure_count=0)
        one = Client()
        enter(one, boss)
        one.post(CODE, {"code": spelling})
        assert is_in(one) is opens, spelling
    assert second_factor.recovery_codes_left(boss) == 8
    assert AuditEntry.objects.filter(action="totp.recovery_code_used", target_id=boss.pk).count() == 2
    again = browser.post(SECURITY, {"action": "codes", "password": PASSWORD}).content.decode()
    assert codes[2] not in again
    TotpDevice.objects.update(throttling_failure_count=0)
    one = Client()
    enter(one, boss)
    one.post(CODE, {"code": codes[2]})
    assert not is_in(one), "new codes void the old"


@pytest.mark.django_db(databases="__all__", transaction=True)
def test_a_code_that_comes_twice_at_once_counts_once(boss: User) -> None:
    browser = Client()
    enter(browser, boss)
    enrol(browser, boss)
    code = code_of(boss)
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            second_factor.verify(boss, code)
            again = pool.submit(in_thread, lambda: second_factor.verify(boss, code))
            wait_until(lambda: again.done() or waiting_for_locks("default") > 0)
        assert isinstance(again.result(30), ValidationFailed)


def test_a_second_factor_is_not_replaced_by_beginning_another(boss: User) -> None:
    browser = Client()
    enter(browser, boss)
    enrol(browser, boss)
    page = browser.post(SECURITY, {"action": "begin", "password": PASSWORD}).content.decode()
    assert "There is an authenticator already" in page
    assert second_factor.device_of(boss) is not None


def test_an_enrolment_ends_after_fifteen_minutes(boss: User) -> None:
    second_factor.begin_enrolment(boss)
    TotpDevice.objects.update(created_at=Now() - timedelta(minutes=14))
    assert second_factor.enrolment_of(boss) is not None
    TotpDevice.objects.update(created_at=Now() - timedelta(minutes=16))
    with pytest.raises(NotFound):
        second_factor.confirm_enrolment(boss, code_of(boss))


def test_an_unfinished_sign_in_has_a_new_session_that_staff_can_end(boss: User) -> None:
    browser = Client()
    enter(browser, boss)
    enrol(browser, boss)
    session = (victim := Client()).session
    session["known"] = "to an attacker"
    session.save()
    enter(victim, boss)
    assert victim.cookies["sessionid"].value != session.session_key
    sessions.end_all(boss.pk, actor=audit.SYSTEM, except_key=browser.session.session_key)
    assert victim.post(CODE, {"code": code_of(boss)}).headers["Location"] == reverse("admin:login")
    assert is_in(browser)


def test_without_its_encryption_key_a_recovery_code_still_opens(boss: User, settings: Any) -> None:
    browser = Client()
    enter(browser, boss)
    codes = enrol(browser, boss)
    code = code_of(boss)
    settings.ENCRYPTION_KEYS = ["7c" * 32]
    browser = Client()
    enter(browser, boss)
    page = browser.post(CODE, {"code": code}).content.decode()
    assert "lacks the key of this authenticator (ENCRYPTION_KEYS). Use a recovery code." in page
    assert browser.post(CODE, {"code": codes[0]}).status_code == 302
    assert is_in(browser)


def test_an_enrolment_without_its_encryption_key_begins_again(boss: User, settings: Any) -> None:
    browser = Client()
    enter(browser, boss)
    browser.post(SECURITY, {"action": "begin", "password": PASSWORD})
    code = code_of(boss)
    settings.ENCRYPTION_KEYS = ["7c" * 32]
    assert "Second factor: off" in browser.get(SECURITY).content.decode()
    page = browser.post(SECURITY, {"action": "confirm", "code": code}).content.decode()
    assert "There is no authenticator to confirm. Begin again." in page
    assert len(enrol(browser, boss)) == 10


def test_coming_in_leaves_a_trace_and_so_does_trying(boss: User, caplog: pytest.LogCaptureFixture) -> None:
    """Successful sign-ins are in the audit log, with the method; refused ones only in the log, so that anonymous
    callers do not write to the database."""

    def entered() -> list[tuple[str, str, str]]:
        found = AuditEntry.objects.filter(action="console.signed_in").order_by("at", "id")
        return [(entry.actor_kind, entry.actor_id or "", entry.detail["by"]) for entry in found]

    def refused() -> list[tuple[str, Any]]:
        lines = [(line.message, vars(line).get("user_id")) for line in caplog.records if "refused" in line.message]
        caplog.clear()
        return lines

    caplog.set_level("INFO")
    enter(Client(), boss, password="wrong horse")
    assert refused() == [("sign-in refused", boss.pk)]
    Client().post(reverse("admin:login"), {"username": "nobody@example.com", "password": "wrong horse"})
    assert refused() == [("sign-in refused", None)]
    assert entered() == []
    browser = Client()
    enter(browser, boss)
    assert entered() == [("staff", boss.pk, "password")]
    enrol(browser, boss)
    other = Client()
    enter(other, boss)
    assert entered() == [("staff", boss.pk, "password")], "half of the way is not in"
    other.post(CODE, {"code": "000000"})
    assert refused() == [("second factor refused", boss.pk)]
    TotpDevice.objects.update(throttling_failure_count=0)
    other.post(CODE, {"code": code_of(boss)})
    assert entered()[1:] == [("staff", boss.pk, "second factor")]
    assert "wrong horse" not in caplog.text


def test_sign_out_and_expiry_are_in_the_audit_log(boss: User) -> None:
    def left() -> list[tuple[str, str, dict[str, Any]]]:
        found = AuditEntry.objects.filter(action="console.signed_out").order_by("at", "id")
        return [(entry.actor_kind, entry.actor_id or "", entry.detail) for entry in found]

    browser = Client()
    enter(browser, boss)
    browser.get(reverse("admin:logout"))
    assert left() == [], "opening a URL signs no user out"
    browser.post(reverse("admin:logout"))
    assert left() == [("staff", boss.pk, {"by": "themselves"})]
    browser.post(reverse("admin:logout"))
    assert len(left()) == 1, "no user was signed in any more"
    enter(browser, boss)
    session = browser.session
    session[sessions.SEEN] -= 24 * 3600
    session.save()
    assert not is_in(browser)
    assert left()[1:] == [("staff", boss.pk, {"by": "the end of the session"})]


def test_the_second_step_needs_a_fresh_first(boss: User, settings: Any) -> None:
    browser = Client()
    enter(browser, boss)
    enrol(browser, boss)
    cold = Client()
    assert cold.get(CODE).headers["Location"] == reverse("admin:login")
    assert cold.post(CODE, {"code": code_of(boss)}).status_code == 302
    assert not is_in(cold)
    late = Client()
    enter(late, boss)
    session = late.session
    session["console_pending"] = {**session["console_pending"], "at": time.time() - 301}
    session.save()
    assert late.post(CODE, {"code": code_of(boss)}).headers["Location"] == reverse("admin:login")
    changed = Client()
    enter(changed, boss)
    User.objects.filter(pk=boss.pk).update(password="argon2$another")
    changed.post(CODE, {"code": code_of(boss)})
    assert not is_in(changed), "a password that changed meanwhile is asked for again"


@pytest.mark.parametrize("change", [{"disabled_at": Now()}, {"is_staff": False, "is_superuser": False}])
def test_the_second_step_is_for_staff_who_are_not_disabled(boss: User, change: dict[str, Any]) -> None:
    browser, gone = Client(), Client()
    enter(browser, boss)
    enrol(browser, boss)
    enter(gone, boss)
    User.objects.filter(pk=boss.pk).update(**change)
    assert gone.post(CODE, {"code": code_of(boss)}).headers["Location"] == reverse("admin:login")
    assert AuditEntry.objects.filter(action="console.signed_in").count() == 1


def test_where_it_leads_afterwards_is_ours(boss: User) -> None:
    browser = Client()
    enter(browser, boss)
    enrol(browser, boss)
    for target, leads in (("https://evil.example/", "/admin/"), ("/admin/accounts/user/", "/admin/accounts/user/")):
        TotpDevice.objects.update(last_step=-1)
        one = Client()
        body = {"username": boss.email, "password": PASSWORD, "next": target}
        one.post(f"{reverse('admin:login')}?next={target}", body)
        assert one.post(CODE, {"code": code_of(boss)}).headers["Location"] == leads
        assert sessions.PENDING not in one.session


def test_turning_it_off_needs_the_password_and_the_command_needs_nothing(boss: User, alice: User) -> None:
    browser = Client()
    enter(browser, boss)
    enrol(browser, boss)
    browser.post(SECURITY, {"action": "disable", "password": "wrong"})
    assert second_factor.device_of(boss) is not None
    browser.post(SECURITY, {"action": "disable", "password": PASSWORD})
    assert second_factor.device_of(boss) is None
    assert not RecoveryCode.objects.exists()
    assert is_in(browser)
    enrol(browser, boss)
    call_command("reset_totp", boss.email, stderr=StringIO())
    assert second_factor.device_of(boss) is None
    assert not is_in(browser), "it may be the browser of a thief"
    assert AuditEntry.objects.filter(action="totp.disabled").values_list("actor_kind", flat=True)[0] == "system"
    with pytest.raises(CommandError):
        call_command("reset_totp", alice.email)


def test_a_superuser_resets_it_for_others_whose_sessions_end(boss: User, make_user: Callable[..., User]) -> None:
    other = make_user("other", is_staff=True)
    browser, theirs = Client(), Client()
    enter(browser, boss)
    enter(theirs, other)
    enrol(theirs, other)
    button = reverse("admin:accounts_user_reset_second_factor", args=[quote(other.pk)])
    assert browser.post(button, {"_form_submitted": "True"}).status_code == 200
    assert second_factor.device_of(other) is None
    assert (is_in(browser), is_in(theirs)) == (True, False)


def test_an_open_browser_does_not_turn_it_off_by_the_button_for_others(boss: User) -> None:
    browser = Client()
    enter(browser, boss)
    enrol(browser, boss)
    own = reverse("admin:accounts_user_change", args=[quote(boss.pk)])
    assert "Reset second factor" not in browser.get(own).content.decode()
    button = reverse("admin:accounts_user_reset_second_factor", args=[quote(boss.pk)])
    assert browser.post(button, {"_form_submitted": "True"}).headers["HX-Redirect"] == own
    assert "asks for your password" in browser.get(own).content.decode()
    assert second_factor.device_of(boss) is not None


def test_where_it_is_required_nothing_else_opens(boss: User, settings: Any) -> None:
    settings.CONSOLE_REQUIRE_TOTP = True
    browser = Client()
    enter(browser, boss)
    assert browser.get("/admin/accounts/user/").headers["Location"] == SECURITY
    assert browser.get(SECURITY).status_code == 200
    enrol(browser, boss)
    assert is_in(browser)


# ── Sessions ──


def test_a_session_ends_without_clicks_and_after_its_time_whatever_happens(boss: User) -> None:
    for field, age in ((sessions.SEEN, 3601), (sessions.BEGAN, 12 * 3600 + 1)):
        browser = Client()
        enter(browser, boss)
        assert is_in(browser)
        session = browser.session
        session[field] = time.time() - age
        session.save()
        answer = browser.get("/admin/accounts/user/?q=x")
        assert answer.headers["Location"] == "/admin/login/?next=/admin/accounts/user/%3Fq%3Dx"
        assert "sessionid" not in browser.cookies or not browser.cookies["sessionid"].value
    browser = Client()
    enter(browser, boss)
    session = browser.session
    session[sessions.SEEN] = time.time() - 1800
    session.save()
    assert is_in(browser), "a click in time"
    assert time.time() - browser.session[sessions.SEEN] < 60, "is noted"


# ── Limits of the sign-in form ──


def tries_until_limited(one: Callable[[int], Any]) -> int:
    """How many tries were let through before one was not; a window that turns meanwhile lets more through."""
    for number in range(40):
        if "Too many" in one(number).content.decode():
            return number
    return pytest.fail("forty tries in a row were let through")


def test_failed_guesses_elsewhere_do_not_lock_a_known_browser(boss: User, settings: Any, api: Api) -> None:
    known = Client()
    enter(known, boss)
    known.post(reverse("admin:logout"))
    settings.RATE_LIMIT_FACTOR = 1
    assert tries_until_limited(lambda n: enter(Client(), boss, "wrong", f"10.9.1.{n}")) >= 9
    assert "Too many attempts" in enter(Client(), boss, address="10.9.9.9").content.decode(), "a new browser waits"
    assert enter(known, boss).status_code == 302
    assert is_in(known)


def test_a_known_browser_is_limited_by_itself_and_knows_one_person(
    boss: User, make_user: Callable[..., User], settings: Any
) -> None:
    known, other = Client(), make_user("other", is_staff=True)
    enter(known, boss)
    cookie = known.cookies[known_browsers.COOKIE]
    assert cookie["httponly"]
    assert cookie["samesite"] == "Strict"
    assert boss.pk not in cookie.value
    settings.RATE_LIMIT_FACTOR = 1
    known.post(reverse("admin:logout"))
    assert tries_until_limited(lambda n: enter(known, boss, "wrong")) >= 10
    assert enter(Client(), boss, address="10.9.8.8").status_code == 302, "what it used up affects no other account"
    request = type("Request", (), {"COOKIES": {known_browsers.COOKIE: cookie.value}})()
    assert known_browsers.nonce_for(request, boss.email.upper())
    assert known_browsers.nonce_for(request, other.email) is None
    request.COOKIES[known_browsers.COOKIE] = cookie.value[:-2] + "xx"
    assert known_browsers.nonce_for(request, boss.email) is None


@pytest.mark.exhaustive
def test_a_browser_is_known_for_half_a_year(boss: User, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = Client()
    enter(browser, boss)
    request = RequestFactory().get("/")
    request.COOKIES[known_browsers.COOKIE] = browser.cookies[known_browsers.COOKIE].value
    assert known_browsers.nonce_for(request, boss.email)
    monkeypatch.setattr(known_browsers, "MAX_AGE_SECONDS", -1)
    assert known_browsers.nonce_for(request, boss.email) is None


def test_the_old_password_is_not_guessed_by_its_form(boss: User, settings: Any) -> None:
    """A person at an open browser gets as many tries a minute as on the page of the second factor."""
    browser = Client()
    enter(browser, boss)
    path = reverse("admin:password_change")
    assert "no-store" in browser.get(path).headers["Cache-Control"]
    wanted = {"new_password1": "another good one", "new_password2": "another good one"}
    settings.RATE_LIMIT_FACTOR = 1
    assert tries_until_limited(lambda n: browser.post(path, {"old_password": f"guess {n}", **wanted})) >= 9
    assert "Too many attempts" in browser.post(path, {"old_password": PASSWORD, **wanted}).content.decode()
    boss.refresh_from_db()
    assert boss.check_password(PASSWORD)


def test_the_password_is_not_guessed_by_the_page_of_the_second_factor(boss: User, settings: Any) -> None:
    browser = Client()
    enter(browser, boss)
    settings.RATE_LIMIT_FACTOR = 1
    assert tries_until_limited(lambda n: browser.post(SECURITY, {"action": "begin", "password": f"guess {n}"})) >= 9
    browser.post(SECURITY, {"action": "begin", "password": PASSWORD})
    assert not TotpDevice.objects.exists()
