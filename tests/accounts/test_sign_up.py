"""Signing up: `POST /v1/auth/signup` and its confirmation."""

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction

from accounts import audit
from accounts.models import AccountEmail, AuditEntry, Session, User
from accounts.registration import email_outbox, invitations, one_time_links, pool_settings
from accounts.users import service as user_service
from accounts.users import user_counts
from platform_site.identity import plans
from projects.models import Environment
from tests.accounts.conftest import PASSWORD, branch_of, make_environment, token
from tests.support.client import Answer, Api
from tests.support.concurrency import in_thread, wait_until, waiting_for_locks
from tests.support.postbox import Postbox, html_of, link_in, text_of, token_in
from tests.support.rate_limits import assert_within_one_window
from tests.support.timing import are_indistinguishable, medians

pytestmark = pytest.mark.django_db(databases="__all__")

NIA = "nia@example.com"


@pytest.fixture
def opened(production: Environment) -> Environment:
    """An environment with open sign-up."""
    pool_settings.change_settings(production.pk, actor=audit.SYSTEM, sign_up="open", app_name="Tracker")
    return production


def sign_up(api: Api, environment: Environment | None, *, email: str = NIA, **body: Any) -> Answer:
    return api.post(
        "/v1/auth/signup",
        json={"email": email, "password": PASSWORD, "name": "Nia"} | body,
        environment=environment.pk if environment else None,
    )


def confirm(api: Api, environment: Environment | None, link: str, password: str = PASSWORD) -> Answer:
    return api.post(
        "/v1/auth/signup/confirm",
        json={"token": link, "password": password},
        environment=environment.pk if environment else None,
    )


def test_an_address_becomes_an_account_by_its_link(api: Api, opened: Environment, postbox: Postbox) -> None:
    answer = sign_up(api, opened)
    assert (answer.status, answer.json) == (202, {"status": "accepted", "expires_in": 86400})
    assert not User.objects.filter(environment_id=opened.pk).exists()
    assert token(api, email=NIA, password=PASSWORD, environment=opened.pk).error == "invalid_grant"
    assert email_outbox.send_due() == 1
    message = postbox.last(NIA)
    assert message["Subject"] == "Confirm your email for Tracker"
    assert message["Auto-Submitted"] == "auto-generated"
    assert "Nia" not in text_of(message) + html_of(message), "an anonymous caller's text would be in an email"
    entered = confirm(api, opened, token_in(message))
    assert entered.status == 200
    assert set(entered.json) == {"access_token", "refresh_token", "expires_in", "user"}
    assert entered.headers["Cache-Control"] == "no-store"
    user = User.objects.get(environment_id=opened.pk)
    assert (user.email, user.name, user.email_verified_at is not None) == (NIA, "Nia", True)
    me = api.get("/v1/auth/me", token=entered.json["access_token"]).json
    assert (me["id"], me["email_verified"], me["environment_id"]) == (user.pk, True, opened.pk)
    assert token(api, email=NIA, password=PASSWORD, environment=opened.pk).status == 200
    entry = AuditEntry.objects.get(action="user.created", target_id=user.pk)
    assert (entry.actor_id, entry.detail) == (user.pk, {"via": "sign_up"})
    assert not AccountEmail.objects.exists()


def test_platform_accounts_sign_up_the_same_way(api: Api, postbox: Postbox) -> None:
    assert sign_up(api, None).status == 403
    pool_settings.change_settings(None, actor=audit.SYSTEM, sign_up="open")
    assert sign_up(api, None).status == 202
    email_outbox.send_due()
    entered = confirm(api, None, token_in(postbox.last(NIA)))
    assert api.get("/v1/auth/me", token=entered.json["access_token"]).json["kind"] == "account"
    assert User.objects.get(email=NIA).is_staff is False


@pytest.mark.parametrize("mode", ["off", "invited"])
def test_closed_sign_up_is_refused(api: Api, opened: Environment, mode: str) -> None:
    pool_settings.change_settings(opened.pk, actor=audit.SYSTEM, sign_up=mode)
    assert sign_up(api, opened).error == "forbidden"
    assert not AccountEmail.objects.exists()


@pytest.mark.parametrize("mode", ["off", "invited"])
def test_sign_up_in_progress_is_refused_after_closing(
    api: Api, opened: Environment, postbox: Postbox, mode: str
) -> None:
    sign_up(api, opened)
    email_outbox.send_due()
    link = token_in(postbox.last(NIA))
    pool_settings.change_settings(opened.pk, actor=audit.SYSTEM, sign_up=mode)
    assert confirm(api, opened, link).error == "forbidden"
    assert not User.objects.filter(environment_id=opened.pk).exists()
    pool_settings.change_settings(opened.pk, actor=audit.SYSTEM, sign_up="open")
    assert confirm(api, opened, link).status == 200, "nothing was used up"


def test_sign_up_refused_in_unknown_environment_or_branch(api: Api, opened: Environment) -> None:
    for name in ("env_01k60000000000000000000000", "prod", "x"):
        answer = api.post("/v1/auth/signup", json={"email": NIA, "password": PASSWORD}, environment=name)
        assert answer.error == "not_found"
    assert sign_up(api, branch_of(opened)).error == "forbidden"
    assert not AccountEmail.objects.exists()


# ── Whether an account exists is not told (T7) ──


def test_the_answer_is_the_same_for_an_address_that_has_an_account(
    api: Api, opened: Environment, postbox: Postbox, make_user: Callable[..., User]
) -> None:
    make_user("una", pool_id=opened.pk, email="Una@Example.com")
    make_user("gone", pool_id=opened.pk)
    User.objects.filter(name="Gone").update(disabled_at="2026-01-01T00:00:00Z")
    answers = [sign_up(api, opened, email=email) for email in (NIA, "una@example.COM", "gone@example.com")]
    assert {(answer.status, answer.body) for answer in answers} == {(202, answers[0].body)}
    assert len({tuple(sorted(set(answer.headers) - {"x-request-id"})) for answer in answers}) == 1
    email_outbox.send_due()
    # The owner is notified, at the stored email; a disabled owner is not.
    assert sorted(message["To"] for message in postbox.messages) == [NIA, "una@example.com"]
    told = postbox.last("una@example.com")
    assert told["Subject"] == "You already have an account at Tracker"
    assert "lnk_" not in text_of(told) + html_of(told)
    assert User.objects.get(name="Una").check_password(PASSWORD)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("hashing_as_in_production")
@pytest.mark.parametrize(
    "clock",
    # The processor's time does not count what else the machine does.
    [time.process_time, pytest.param(time.perf_counter, marks=pytest.mark.slow)],
    ids=["processor", "wall clock"],
)
def test_signing_up_takes_as_long_for_an_address_that_has_an_account(
    api: Api, opened: Environment, make_user: Callable[..., User], clock: Callable[[], float]
) -> None:
    make_user("una", pool_id=opened.pk)
    calls = {email: partial(sign_up, api, opened, email=email) for email in ("una@example.com", "nobody@example.com")}
    if clock is time.process_time:
        cost = medians(calls, rounds=9, clock=clock)
        assert max(cost.values()) < 1.5 * min(cost.values()), cost
    else:
        assert are_indistinguishable(medians(calls))


def test_sign_up_runs_the_same_statements_for_any_email(
    api: Api, opened: Environment, make_user: Callable[..., User]
) -> None:
    make_user("una", pool_id=opened.pk)
    user_counts.users_of(opened.pk)  # counted at the first question of all

    def statements(email: str) -> list[str]:
        asked: list[str] = []

        def note(execute: Callable[..., object], sql: str, *rest: object) -> object:
            asked.append(re.sub(r"SAVEPOINT .*", "SAVEPOINT", sql))
            return execute(sql, *rest)

        with connection.execute_wrapper(note):
            assert sign_up(api, opened, email=email).status == 202
        return asked

    assert statements("una@example.com") == statements("nobody@example.com")


# ── Links ──


def test_a_link_is_used_once(api: Api, opened: Environment, postbox: Postbox) -> None:
    sign_up(api, opened)
    email_outbox.send_due()
    link = token_in(postbox.last(NIA))
    assert confirm(api, opened, link).status == 200
    again = confirm(api, opened, link)
    assert (again.status, again.error, again.fields) == (400, "invalid_grant", {"token": "unknown"})


def test_emails_of_one_application_replace_none_of_another(
    api: Api, opened: Environment, alice: User, postbox: Postbox
) -> None:
    other = make_environment(alice)
    pool_settings.change_settings(other.pk, actor=audit.SYSTEM, sign_up="open")
    for environment in (other, opened):
        sign_up(api, environment)
        invitations.invite(pool_id=environment.pk, email=NIA, actor=audit.SYSTEM)
    email_outbox.send_due()
    links = [token_in(message) for message in postbox.messages]
    assert sorted(confirm(api, opened, link).status for link in links) == [200, 400, 400, 400]
    assert AccountEmail.objects.filter(environment_id=other.pk).count() == 2


def test_a_second_sign_up_leaves_the_first_link_as_it_was(api: Api, opened: Environment, postbox: Postbox) -> None:
    sign_up(api, opened, password="the first horse")
    email_outbox.send_due()
    sign_up(api, opened, password="the second horse")
    email_outbox.send_due()
    first, second = (token_in(message) for message in postbox.to(NIA))
    assert confirm(api, opened, second, "the first horse").fields == {"password": "wrong"}
    assert confirm(api, opened, first, "the first horse").status == 200
    assert confirm(api, opened, second, "the second horse").fields == {"token": "unknown"}
    assert token(api, email=NIA, password="the second horse", environment=opened.pk).error == "invalid_grant"


def test_a_link_needs_the_password_that_was_chosen_and_dies_of_guesses(
    api: Api, opened: Environment, postbox: Postbox
) -> None:
    """So no click confirms an account whose password another person chose."""
    sign_up(api, opened)
    email_outbox.send_due()
    link = token_in(postbox.last(NIA))
    for _ in range(5):
        assert confirm(api, opened, link, "not the password").fields == {"password": "wrong"}
    assert confirm(api, opened, link).fields == {"token": "unknown"}
    assert not User.objects.filter(environment_id=opened.pk).exists()


@pytest.mark.django_db(databases="__all__", transaction=True)
def test_wrong_passwords_at_once_are_all_counted(api: Api, opened: Environment) -> None:
    sign_up(api, opened)
    email = AccountEmail.objects.get()
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            one_time_links.count_wrong_password(email)
            other = pool.submit(in_thread, lambda: one_time_links.count_wrong_password(email))
            wait_until(lambda: other.done() or waiting_for_locks("default") > 0)
        assert other.result(30) is None
    assert AccountEmail.objects.get().details["wrong_passwords"] == 2


def test_a_link_of_another_environment_opens_nothing(
    api: Api, opened: Environment, postbox: Postbox, alice: User
) -> None:
    sign_up(api, opened)
    email_outbox.send_due()
    link = token_in(postbox.last(NIA))
    other = make_environment(alice)
    pool_settings.change_settings(other.pk, actor=audit.SYSTEM, sign_up="open")
    for environment in (other, None):
        assert confirm(api, environment, link).fields == {"token": "unknown"}
    assert confirm(api, opened, link).status == 200


def test_expired_link_is_refused_and_deleted(api: Api, opened: Environment, postbox: Postbox) -> None:
    sign_up(api, opened)
    email_outbox.send_due()
    AccountEmail.objects.update(expires_at="2026-01-01T00:00:00Z")
    assert confirm(api, opened, token_in(postbox.last(NIA))).fields == {"token": "unknown"}
    assert email_outbox.purge() == 1


def test_an_edited_link_opens_nothing(api: Api, opened: Environment, postbox: Postbox) -> None:
    sign_up(api, opened)
    email_outbox.send_due()
    link = token_in(postbox.last(NIA))
    flipped = link[:10] + ("a" if link[10] != "a" else "b") + link[11:]
    for edited in (flipped, link[:-1], link + "0", link.swapcase(), link.upper(), "lnk_", "", "x", "é" * 53, "\u202e"):
        answer = confirm(api, opened, edited) if edited else confirm(api, opened, " ")
        assert answer.status in (400, 422)
        assert list(answer.fields) == ["token"]
    assert confirm(api, opened, f" {link} ").status == 200, "white space around it is cut"


def test_a_link_of_another_kind_opens_nothing(
    api: Api, opened: Environment, postbox: Postbox, make_user: Callable[..., User]
) -> None:
    make_user("una", pool_id=opened.pk)
    api.post("/v1/auth/password-reset", json={"email": "una@example.com"}, environment=opened.pk)
    sign_up(api, opened)
    email_outbox.send_due()
    reset = token_in(postbox.last("una@example.com"))
    assert confirm(api, opened, reset).fields == {"token": "unknown"}
    answer = api.post(
        "/v1/auth/password-reset/confirm",
        json={"token": token_in(postbox.last(NIA)), "password": "a different horse"},
        environment=opened.pk,
    )
    assert answer.fields == {"token": "unknown"}


def test_an_address_that_got_an_account_meanwhile_is_not_taken_over(
    api: Api, opened: Environment, postbox: Postbox
) -> None:
    sign_up(api, opened)
    email_outbox.send_due()
    user_service.create_user(pool_id=opened.pk, email="NIA@example.com", password=None, actor=audit.SYSTEM)
    assert confirm(api, opened, token_in(postbox.last(NIA))).fields == {"email": "taken"}
    assert User.objects.filter(environment_id=opened.pk).count() == 1


# ── In parallel ──


@pytest.mark.exhaustive
@pytest.mark.django_db(databases="__all__", transaction=True)
def test_parallel_sign_ups_and_confirmations_make_one_user(api: Api, opened: Environment, postbox: Postbox) -> None:
    def at_once(count: int, call: Callable[[int], Answer]) -> list[Answer]:
        ready = threading.Barrier(count)

        def one(number: int) -> Answer:
            try:
                ready.wait(20)
                return call(number)
            finally:
                connection.close()

        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(one, range(count)))

    spellings = (NIA, NIA.upper(), "Nia@Example.com")
    asked = at_once(8, lambda number: sign_up(api, opened, email=spellings[number % 3]))
    assert {answer.status for answer in asked} <= {202, 429}, "429: too many passwords being hashed"
    assert AccountEmail.objects.count() == sum(answer.status == 202 for answer in asked)
    email_outbox.send_due()
    link = token_in(postbox.messages[-1])
    done = at_once(8, lambda _: confirm(api, opened, link))
    assert sorted(answer.status for answer in done if answer.status != 429).count(200) == 1
    assert User.objects.filter(environment_id=opened.pk).count() == 1
    assert Session.objects.count() == 1


# ── Bad input ──


@pytest.mark.parametrize(
    ("body", "field", "code"),
    [
        ({"password": "7 chars"}, "password", "password_too_short"),
        ({"password": "x" * 1001}, "password", "too_long"),
        ({"password": "password1"}, "password", "password_too_common"),
        ({"password": "nia@example.com"}, "password", "password_too_similar"),
        ({"password": "Nia Nguyen!", "name": "Nia Nguyen"}, "password", "password_too_similar"),
        ({"password": 12345678}, "password", "invalid"),
        ({"email": "nia"}, "email", "invalid_email"),
        ({"email": "a" * 243 + "@example.com"}, "email", "too_long"),
        ({"email": "nía@example.com"}, "email", "invalid_email"),
        ({"email": "nia@exámple.com"}, "email", "invalid_email"),
        ({"email": "nia@example.com\r\nBcc: x@example.com"}, "email", "invalid_email"),
        ({"email": "nia@example.com,x@example.com"}, "email", "invalid_email"),
        ({"email": "Nia <nia@example.com>"}, "email", "invalid_email"),
        ({"email": '"nia"@example.com'}, "email", "invalid_email"),
        ({"email": '"\x01"@example.com'}, "email", "invalid_email"),
        ({"email": "nia@[127.0.0.1]"}, "email", "invalid_email"),
        ({"email": "=?utf-8?q?n=69a?=@example.com"}, "email", "invalid_email"),
        ({"email": ["nia@example.com"]}, "email", "invalid"),
        ({"name": "x" * 201}, "name", "too_long"),
        ({"role": "admin"}, "role", "unknown_field"),
        ({"email_verified": True}, "email_verified", "unknown_field"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_sent(
    api: Api, opened: Environment, body: dict[str, Any], field: str, code: str
) -> None:
    answer = sign_up(api, opened, **body)
    assert (answer.status, answer.error, answer.fields) == (422, "validation_failed", {field: code})
    assert not AccountEmail.objects.exists()


@pytest.mark.parametrize("password", ["eightchr"[:8], "zebra " * 166 + "1234", "🦊" * 8, " leading and trailing "])
def test_a_password_of_8_to_1000_characters_counts_to_its_last(
    api: Api, opened: Environment, postbox: Postbox, password: str
) -> None:
    assert 8 <= len(password) <= 1000
    assert sign_up(api, opened, password=password).status == 202
    email_outbox.send_due()
    link = token_in(postbox.last(NIA))
    assert confirm(api, opened, link, password[:-1] + "?").fields == {"password": "wrong"}
    assert confirm(api, opened, link, password).status == 200


def test_an_internationalised_domain_is_written_as_it_travels(api: Api, opened: Environment, postbox: Postbox) -> None:
    address = "nia@xn--exmple-cua.com"
    assert sign_up(api, opened, email=address).status == 202
    email_outbox.send_due()
    assert confirm(api, opened, token_in(postbox.last(address))).json["user"]["email"] == address


# ── Limits ──


@pytest.mark.parametrize("path", ["/v1/auth/password-reset", "/v1/auth/signup"])
def test_an_address_is_sent_six_emails_of_a_kind_an_hour(
    api: Api, opened: Environment, settings: Any, path: str
) -> None:
    settings.RATE_LIMIT_FACTOR = 1
    refused: list[Answer] = []

    def eight() -> list[int]:
        email = f"{time.time_ns()}@example.com"
        statuses = []
        for number in range(8):
            body = {"email": email.upper() if number % 2 else email}
            if path == "/v1/auth/signup":
                body["password"] = PASSWORD
            answer = api.post(path, json=body, environment=opened.pk, remote_addr=f"2001:db8:{number:x}::1")
            statuses.append(answer.status)
            refused.extend([answer] if answer.status == 429 else [])
        return statuses

    assert_within_one_window(eight, [202] * 6 + [429] * 2)
    assert 1 <= int(refused[0].headers["Retry-After"]) <= 3601
    assert '"emails";q=6;w=3600' in refused[0].headers["RateLimit-Policy"]


def test_sign_up_is_refused_at_the_user_limit(
    api: Api, opened: Environment, postbox: Postbox, monkeypatch: pytest.MonkeyPatch, make_user: Callable[..., User]
) -> None:
    sign_up(api, opened)
    email_outbox.send_due()
    make_user("una", pool_id=opened.pk)
    from dataclasses import replace

    smaller = replace(plans.PLANS["free"], app_users_per_environment=1)
    monkeypatch.setattr(plans, "PLANS", {**plans.PLANS, "free": smaller})
    assert sign_up(api, opened, email="another@example.com").error == "quota_exceeded"
    link = token_in(postbox.last(NIA))
    assert confirm(api, opened, link).error == "quota_exceeded"
    monkeypatch.undo()
    assert confirm(api, opened, link).status == 200, "the link was not used up"


def test_link_uses_the_platform_url_and_ignores_the_host_header(
    api: Api, opened: Environment, postbox: Postbox, settings: Any
) -> None:
    settings.BASE_URL = "https://platform.example"
    settings.ALLOWED_HOSTS = ["*"]
    answer = api.post(
        "/v1/auth/signup",
        json={"email": NIA, "password": PASSWORD},
        environment=opened.pk,
        headers={"Host": "evil.example", "X-Forwarded-Host": "evil.example", "Origin": "https://evil.example"},
    )
    assert answer.status == 202
    email_outbox.send_due()
    message = postbox.last(NIA)
    assert link_in(message) == f"https://platform.example/auth/confirm-sign-up?token={token_in(message)}"
    assert "evil.example" not in message.as_string()
