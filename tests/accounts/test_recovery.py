"""A forgotten password: `POST /v1/auth/password-reset` and its confirmation."""

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction

from accounts import audit
from accounts.models import AccountEmail, AuditEntry, Session, User
from accounts.registration import email_outbox, one_time_links, password_reset
from accounts.users import service as user_service
from platform_site.http.errors import InvalidGrant
from projects.models import Environment
from tests.accounts.conftest import PASSWORD, SignedIn, branch_of, make_environment, token
from tests.support.client import Answer, Api
from tests.support.concurrency import in_thread, wait_until, waiting_for_locks
from tests.support.postbox import Postbox, html_of, text_of, token_in
from tests.support.timing import are_indistinguishable, medians

pytestmark = pytest.mark.django_db(databases="__all__")

UNA = "una@example.com"
BETTER = "a different horse"


def ask(api: Api, email: str = UNA, environment: Environment | None = None) -> Answer:
    return api.post(
        "/v1/auth/password-reset", json={"email": email}, environment=environment.pk if environment else None
    )


def choose(api: Api, link: str, password: str = BETTER, environment: Environment | None = None) -> Answer:
    return api.post(
        "/v1/auth/password-reset/confirm",
        json={"token": link, "password": password},
        environment=environment.pk if environment else None,
    )


@pytest.fixture
def sent(api: Api, una: User, production: Environment, postbox: Postbox) -> Callable[[], str]:
    """Asks for a link for una, and answers its token."""

    def ask_and_read() -> str:
        assert ask(api, environment=production).status == 202
        email_outbox.send_due()
        return token_in(postbox.last(UNA))

    return ask_and_read


def test_a_link_sets_a_new_password_and_ends_every_session(
    api: Api,
    una: User,
    production: Environment,
    postbox: Postbox,
    sign_in: Callable[..., SignedIn],
    sent: Callable[[], str],
) -> None:
    sessions = [sign_in(una) for _ in range(2)]
    link = sent()
    answer = choose(api, link, environment=production)
    assert (answer.status, answer.body) == (204, b"")
    assert [api.get("/v1/auth/me", token=one.access_token).status for one in sessions] == [401, 401]
    assert set(Session.objects.values_list("revoked_reason", flat=True)) == {"password_changed"}
    assert token(api, email=UNA, password=PASSWORD, environment=production.pk).error == "invalid_grant"
    assert token(api, email=UNA, password=BETTER, environment=production.pk).status == 200
    una.refresh_from_db()
    assert una.email_verified_at is not None, "the link reached the mailbox"
    entry = AuditEntry.objects.get(action="user.changed")
    assert (entry.actor_id, entry.detail["via"], entry.detail["fields"]) == (
        una.pk, "password_reset", ["email_verified_at", "password"]
    )  # fmt: skip
    email_outbox.send_due()
    assert postbox.last(UNA)["Subject"] == "Your password at Tracker was changed"


def test_no_secret_of_a_link_is_stored(sent: Callable[[], str]) -> None:
    link = sent()
    row = AccountEmail.objects.values().get()
    assert link not in repr(row)
    assert link.encode() not in b"".join(
        bytes(value) for value in row.values() if isinstance(value, bytes | memoryview)
    )


def test_an_address_without_an_account_gets_nothing(
    api: Api, una: User, production: Environment, postbox: Postbox, make_user: Callable[..., User]
) -> None:
    make_user("gone", pool_id=production.pk)
    User.objects.filter(name="Gone").update(disabled_at="2026-01-01T00:00:00Z")
    answers = [ask(api, email, production) for email in (UNA, "nobody@example.com", "gone@example.com")]
    assert {(answer.status, answer.body) for answer in answers} == {(202, answers[0].body)}
    email_outbox.send_due()
    assert [message["To"] for message in postbox.messages] == [UNA]
    assert AccountEmail.objects.count() == 1, "nothing is kept of those who are not there"


def test_request_runs_the_same_statements_for_any_email(api: Api, una: User, production: Environment) -> None:
    def statements(email: str) -> list[str]:
        asked: list[str] = []

        def note(execute: Callable[..., object], sql: str, *rest: object) -> object:
            asked.append(re.sub(r"SAVEPOINT .*", "SAVEPOINT", sql))
            return execute(sql, *rest)

        with connection.execute_wrapper(note):
            assert ask(api, email, production).status == 202
        return asked

    assert statements(UNA) == statements("nobody@example.com") != []


@pytest.mark.slow
def test_request_takes_the_same_time_for_any_email(api: Api, una: User, production: Environment) -> None:
    took = medians({email: partial(ask, api, email, production) for email in (UNA, "nobody@example.com")})
    assert are_indistinguishable(took), took


def test_the_link_goes_to_the_address_as_it_was_stored(
    api: Api, production: Environment, postbox: Postbox, make_user: Callable[..., User]
) -> None:
    make_user("mia", pool_id=production.pk)
    User.objects.filter(name="Mia").update(email="Mia@Example.com")  # before emails were stored in lower case
    for typed in ("mia@example.com", "MIA@EXAMPLE.COM"):
        assert ask(api, typed, production).status == 202
        email_outbox.send_due()
    assert [message["To"] for message in postbox.messages] == ["Mia@Example.com"] * 2
    for look_alike in ("mıa@example.com", "MİA@example.com", "mia@exampIe.com"):
        ask(api, look_alike, production)
    email_outbox.send_due()
    assert len(postbox.messages) == 2


# ── Links that do not work ──


def test_a_link_is_used_once(api: Api, production: Environment, sent: Callable[[], str]) -> None:
    link = sent()
    assert choose(api, link, environment=production).status == 204
    again = choose(api, link, "a third horse", environment=production)
    assert (again.status, again.error, again.fields) == (400, "invalid_grant", {"token": "unknown"})
    assert token(api, email=UNA, password=BETTER, environment=production.pk).status == 200


@pytest.mark.parametrize("used", [0, 1, 2])
def test_every_reset_link_works_until_one_is_used(
    api: Api, production: Environment, sent: Callable[[], str], used: int
) -> None:
    """Anyone can request a link for any email, so a newer one must not invalidate the link that the owner has."""
    links = [sent(), sent(), sent()]
    assert choose(api, links.pop(used), environment=production).status == 204
    for link in links:
        assert choose(api, link, "a third horse", environment=production).fields == {"token": "unknown"}
    assert not AccountEmail.objects.filter(kind="reset_password").exists()
    assert token(api, email=UNA, password=BETTER, environment=production.pk).status == 200


def change_over_the_api(api: Api, una: User) -> None:
    user_service.change_user(una, actor=audit.SYSTEM, password="a third horse")


def change_by_djangos_own_door(api: Api, una: User) -> None:
    user = User.objects.get(pk=una.pk)
    user.set_password("a third horse")
    user.save()


def change_by_oneself(api: Api, una: User) -> None:
    grant = token(api, email=UNA, password=PASSWORD, environment=una.environment_id).json
    body = {"password": "a third horse", "current_password": PASSWORD}
    assert api.patch("/v1/auth/me", token=grant["access_token"], json=body).status == 200


def change_the_address(api: Api, una: User) -> None:
    user_service.change_user(una, actor=audit.SYSTEM, email="elsewhere@example.com")


def disable(api: Api, una: User) -> None:
    user_service.change_user(una, actor=audit.SYSTEM, is_disabled=True)


def delete(api: Api, una: User) -> None:
    user_service.delete_user(una, actor=audit.SYSTEM)


def expire(api: Api, una: User) -> None:
    AccountEmail.objects.update(expires_at="2026-01-01T00:00:00Z")


@pytest.mark.parametrize(
    "change",
    [change_over_the_api, change_by_djangos_own_door, change_by_oneself, change_the_address, disable, delete],
)
def test_a_link_ends_with_what_it_was_made_for(
    api: Api, una: User, production: Environment, sent: Callable[[], str], change: Callable[[Api, User], None]
) -> None:
    link = sent()
    change(api, una)
    assert choose(api, link, environment=production).fields == {"token": "unknown"}
    assert not User.objects.filter(pk=una.pk, password=una.password, disabled_at=None, email=UNA).exists()


def send_again(api: Api, una: User) -> None:
    AccountEmail.objects.update(token_hash=b"that of another token")


@pytest.mark.parametrize("change", [change_over_the_api, disable, delete, expire, send_again])
def test_a_link_that_ends_while_it_is_being_used_opens_nothing(
    api: Api, una: User, sent: Callable[[], str], change: Callable[[Api, User], None]
) -> None:
    found = one_time_links.find(sent(), AccountEmail.Kind.RESET_PASSWORD)
    change(api, una)
    with pytest.raises(InvalidGrant):
        password_reset.reset(found, BETTER)


@pytest.mark.django_db(databases="__all__", transaction=True)
def test_a_link_waits_for_what_is_happening_to_its_user(una: User, sent: Callable[[], str]) -> None:
    found = one_time_links.find(sent(), AccountEmail.Kind.RESET_PASSWORD)
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            user_service.change_user(una, actor=audit.SYSTEM, is_disabled=True)
            using = pool.submit(in_thread, lambda: password_reset.reset(found, BETTER))
            wait_until(lambda: using.done() or waiting_for_locks("default") > 0)
        assert isinstance(using.result(30), InvalidGrant)
    assert User.objects.get(pk=una.pk).check_password(PASSWORD)


def test_a_link_of_another_environment_opens_nothing(
    api: Api, alice: User, una: User, production: Environment, sent: Callable[[], str]
) -> None:
    link = sent()
    other = make_environment(alice)
    user_service.create_user(pool_id=other.pk, email=UNA, password=None, actor=audit.SYSTEM)
    assert choose(api, link, environment=other).fields == {"token": "unknown"}
    assert choose(api, link).fields == {"token": "unknown"}
    assert choose(api, link, environment=branch_of(production)).error == "forbidden", "a branch changes no users"
    assert choose(api, link, environment=production).status == 204


def test_an_expired_link_opens_nothing(api: Api, una: User, production: Environment, sent: Callable[[], str]) -> None:
    link = sent()
    expire(api, una)
    assert choose(api, link, environment=production).fields == {"token": "unknown"}


def test_an_edited_link_opens_nothing(api: Api, una: User, production: Environment, sent: Callable[[], str]) -> None:
    link = sent()
    flipped = link[:-1] + ("a" if link[-1] != "a" else "b")
    for edited in (flipped, link[:-1], link + "0", link.swapcase(), "lnk_" + "0" * 49, "x", "x" * 201, "🦊"):
        answer = choose(api, edited, environment=production)
        assert answer.status in (400, 422)
        assert list(answer.fields) == ["token"]
    una.refresh_from_db()
    assert una.check_password(PASSWORD)


@pytest.mark.parametrize(
    ("password", "code"),
    [("1234567", "password_too_short"), ("x" * 1001, "too_long"), (UNA, "password_too_similar"), (None, "null")],
)
def test_a_password_that_is_refused_leaves_the_link(
    api: Api, production: Environment, sent: Callable[[], str], password: Any, code: str
) -> None:
    link = sent()
    answer = choose(api, link, password, environment=production)
    assert answer.error == "validation_failed"
    assert code in answer.json["error"]["fields"][0]["code"] or answer.fields["password"] == code
    assert choose(api, link, "x9 " * 333 + "y", environment=production).status == 204, "exactly 1000 characters"
    assert token(api, email=UNA, password="x9 " * 333 + "y", environment=production.pk).status == 200


@pytest.mark.django_db(databases="__all__", transaction=True)
def test_of_parallel_uses_of_a_link_exactly_one_wins(
    api: Api, una: User, production: Environment, sent: Callable[[], str]
) -> None:
    link = sent()
    ready = threading.Barrier(8)

    def use(number: int) -> int:
        try:
            ready.wait(20)
            return choose(api, link, f"horse number {number}", environment=production).status
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(use, range(8)))
    assert statuses.count(204) == 1
    assert set(statuses) <= {204, 400, 429}, "429: too many passwords being hashed"
    una.refresh_from_db()
    assert una.check_password(f"horse number {statuses.index(204)}")


# ── Who has no password yet, and platform accounts ──


def test_who_came_through_a_provider_gets_a_password_by_it(
    api: Api, production: Environment, postbox: Postbox, make_user: Callable[..., User]
) -> None:
    make_user("ori", pool_id=production.pk, password=None)
    ask(api, "ori@example.com", production)
    email_outbox.send_due()
    assert choose(api, token_in(postbox.last("ori@example.com")), environment=production).status == 204
    assert token(api, email="ori@example.com", password=BETTER, environment=production.pk).status == 200


def test_a_platform_account_resets_its_password_too(api: Api, alice: User, postbox: Postbox) -> None:
    assert ask(api, alice.email).status == 202
    email_outbox.send_due()
    message = postbox.last(alice.email)
    assert "the backend platform" in text_of(message)
    assert "the backend platform" in html_of(message)
    assert choose(api, token_in(message)).status == 204
    assert token(api, email=alice.email, password=BETTER).status == 200


def test_a_lost_answer_is_answered_again_by_its_idempotency_key(
    api: Api, production: Environment, sent: Callable[[], str]
) -> None:
    link = sent()
    how: dict[str, Any] = {
        "json": {"token": link, "password": BETTER},
        "environment": production.pk,
        "headers": {"Idempotency-Key": "lost"},
    }
    first, second = (api.post("/v1/auth/password-reset/confirm", **how) for _ in range(2))
    assert (first.status, second.status) == (204, 204)
    assert second.headers["Idempotency-Replayed"] == "true"


def test_no_link_is_in_the_log(sent: Callable[[], str], caplog: pytest.LogCaptureFixture) -> None:
    link = sent()
    assert link not in caplog.text
