"""What users change in their own account: email, password, deletion; and the history of their sessions."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db.models.functions import Now

from accounts import audit
from accounts.models import AccountEmail, AuditEntry, ServerKey, Session, User
from accounts.registration import email_outbox, one_time_links, own_account
from accounts.users import passwords
from accounts.users import service as user_service
from platform_site.http.errors import ValidationFailed
from platform_site.identity import signals
from platform_site.identity.callers import Caller
from projects.models import Environment
from tests.accounts.conftest import PASSWORD, SignedIn, branch_of, make_environment, session_of, token
from tests.support.client import Answer, Api
from tests.support.postbox import Postbox, html_of, text_of, token_in
from tests.support.rate_limits import assert_within_one_window

pytestmark = pytest.mark.django_db(databases="__all__")

NEW = "una.new@example.com"


@pytest.fixture
def manager(production: Environment, make_key: Callable[..., tuple[ServerKey, str]]) -> str:
    return make_key(production, "users:manage")[1]


@pytest.fixture
def me(una: User) -> SignedIn:
    """una, signed in, with a verified email."""
    user_service.change_user(una, actor=audit.SYSTEM, is_email_verified=True)
    una.refresh_from_db()
    return session_of(una)


def post(api: Api, path: str, who: SignedIn, **body: Any) -> Answer:
    return api.post(f"/v1/auth/{path}", token=who.access_token, json=body)


# ── Verifying the email ──


def test_an_address_is_verified_by_a_link(api: Api, una: User, production: Environment, postbox: Postbox) -> None:
    who = session_of(una)
    assert api.get("/v1/auth/me", token=who.access_token).json["email_verified"] is False
    answer = api.post("/v1/auth/email-verification", token=who.access_token)
    assert (answer.status, answer.json["status"]) == (202, "accepted")
    email_outbox.send_due()
    link = token_in(postbox.last(una.email))

    def use() -> Answer:
        return api.post("/v1/auth/email-verification/confirm", json={"token": link}, environment=production.pk)

    assert use().status == 204
    assert api.get("/v1/auth/me", token=who.access_token).json["email_verified"] is True
    assert use().fields == {"token": "unknown"}
    # Nothing more is sent for a verified email.
    assert api.post("/v1/auth/email-verification", token=who.access_token).status == 202
    assert not AccountEmail.objects.exists()


def test_a_link_proves_the_address_it_was_sent_to_and_no_other(
    api: Api, una: User, production: Environment, postbox: Postbox
) -> None:
    api.post("/v1/auth/email-verification", token=session_of(una).access_token)
    email_outbox.send_due()
    user_service.change_user(una, actor=audit.SYSTEM, email=NEW)
    answer = api.post(
        "/v1/auth/email-verification/confirm",
        json={"token": token_in(postbox.last("una@example.com"))},
        environment=production.pk,
    )
    assert answer.fields == {"token": "unknown"}
    una.refresh_from_db()
    assert una.email_verified_at is None


def test_another_address_is_not_verified_another_spelling_is(una: User) -> None:
    user_service.change_user(una, actor=audit.SYSTEM, is_email_verified=True)
    assert user_service.change_user(una, actor=audit.SYSTEM, email="UNA@example.com").email_verified_at is not None
    assert user_service.change_user(una, actor=audit.SYSTEM, email=NEW).email_verified_at is None
    changed = user_service.change_user(una, actor=audit.SYSTEM, email="x@example.com", is_email_verified=True)
    assert changed.email_verified_at is not None


def test_who_manages_users_says_that_an_address_is_verified(
    api: Api, una: User, production: Environment, make_key: Callable[..., Any]
) -> None:
    _, key = make_key(production, "users:manage")
    shown = api.patch(f"/v1/users/{una.pk}", token=key, json={"email_verified": True}).json
    assert shown["email_verified_at"] is not None
    assert api.patch(f"/v1/users/{una.pk}", token=key, json={"email": NEW}).json["email_verified_at"] is None
    made = api.post(
        "/v1/users", token=key, json={"email": "v@example.com", "password": PASSWORD, "email_verified": True}
    )
    assert made.json["email_verified_at"] is not None


# ── Changing the email ──


def confirm(api: Api, link: str, environment: Environment | None, password: str = PASSWORD) -> Answer:
    return api.post(
        "/v1/auth/email-change/confirm",
        json={"token": link, "password": password},
        environment=environment.pk if environment else None,
    )


@pytest.fixture
def asked(api: Api, me: SignedIn, postbox: Postbox) -> str:
    """una asked for another email: the token that was sent there."""
    assert post(api, "email-change", me, email=NEW, current_password=PASSWORD).status == 202
    email_outbox.send_due()
    return token_in(postbox.last(NEW))


def test_email_changes_on_confirmation_and_old_address_is_notified(
    api: Api, me: SignedIn, asked: str, production: Environment, postbox: Postbox
) -> None:
    shown = api.get("/v1/auth/me", token=me.access_token).json
    assert (shown["email"], shown["pending_email"]) == ("una@example.com", NEW)
    assert confirm(api, asked, production).status == 204
    shown = api.get("/v1/auth/me", token=me.access_token).json
    assert (shown["email"], shown["email_verified"], shown["pending_email"]) == (NEW, True, None)
    email_outbox.send_due()
    told = postbox.last("una@example.com")
    assert told["Subject"] == "Your email at Tracker was changed"
    assert NEW in text_of(told)
    assert NEW in html_of(told)
    assert token(api, email=NEW, password=PASSWORD, environment=production.pk).status == 200


ENDS_OF_A_LINK: dict[str, Callable[[Api, SignedIn, str], object]] = {
    "email changed by key": lambda api, me, key: api.patch(
        f"/v1/users/{me.user.pk}", token=key, json={"email": "other@example.com"}
    ),
    "password changed by key": lambda api, me, key: api.patch(
        f"/v1/users/{me.user.pk}", token=key, json={"password": "a third horse"}
    ),
    "own password changed": lambda api, me, key: api.patch(
        "/v1/auth/me", token=me.access_token, json={"password": "a third horse", "current_password": PASSWORD}
    ),
    "expired": lambda api, me, key: AccountEmail.objects.update(expires_at=Now()),
    "five wrong passwords": lambda api, me, key: [
        one_time_links.count_wrong_password(AccountEmail.objects.get()) for _ in range(5)
    ],
}


@pytest.mark.parametrize("is_sent", [True, False], ids=["sent", "waiting"])
@pytest.mark.parametrize("end", ENDS_OF_A_LINK)
def test_the_pending_address_ends_with_its_link(
    api: Api, me: SignedIn, manager: str, postbox: Postbox, end: str, is_sent: bool
) -> None:
    post(api, "email-change", me, email=NEW, current_password=PASSWORD)
    if is_sent:
        email_outbox.send_due()
    assert api.get("/v1/auth/me", token=me.access_token).json["pending_email"] == NEW
    ENDS_OF_A_LINK[end](api, me, manager)
    me.user.refresh_from_db()
    assert api.get("/v1/auth/me", token=session_of(me.user).access_token).json["pending_email"] is None
    email_outbox.send_due()
    assert len(postbox.to(NEW)) == is_sent, "a link that ended was sent"


def test_a_newer_request_replaces_the_pending_address(api: Api, me: SignedIn) -> None:
    for email in (NEW, "newer@example.com"):
        post(api, "email-change", me, email=email, current_password=PASSWORD)
        assert api.get("/v1/auth/me", token=me.access_token).json["pending_email"] == email


def test_disabling_a_user_ends_the_pending_address(api: Api, me: SignedIn, asked: str, production: Environment) -> None:
    user_service.change_user(me.user, actor=audit.SYSTEM, is_disabled=True)
    assert confirm(api, asked, production).fields == {"token": "unknown"}
    me.user.refresh_from_db()
    assert own_account.pending_email(me.user) is None
    assert token(api, email="una@example.com", password=PASSWORD, environment=production.pk).error == "invalid_grant"
    assert confirm(api, asked, production).fields == {"token": "unknown"}


def test_asking_needs_the_password(api: Api, me: SignedIn) -> None:
    assert post(api, "email-change", me, email=NEW, current_password="wrong").fields == {"current_password": "wrong"}
    assert post(api, "email-change", me, email=NEW).fields == {"current_password": "required"}
    assert post(api, "email-change", me, email="UNA@example.com", current_password=PASSWORD).fields == {
        "email": "unchanged"
    }
    assert not AccountEmail.objects.exists()


def test_email_confirmation_requires_the_password(api: Api, asked: str, production: Environment, una: User) -> None:
    for _ in range(5):
        assert confirm(api, asked, production, "a guess").fields == {"password": "wrong"}
    assert confirm(api, asked, production).fields == {"token": "unknown"}
    una.refresh_from_db()
    assert una.email == "una@example.com"


def test_guesses_are_counted_though_the_request_has_an_idempotency_key(
    api: Api, asked: str, production: Environment
) -> None:
    for number in range(5):
        api.post(
            "/v1/auth/email-change/confirm",
            json={"token": asked, "password": f"guess {number}"},
            environment=production.pk,
            headers={"Idempotency-Key": f"key {number}"},
        )
    assert confirm(api, asked, production).fields == {"token": "unknown"}


def test_the_answer_is_the_same_for_an_address_that_somebody_has(
    api: Api, me: SignedIn, production: Environment, postbox: Postbox, make_user: Callable[..., User]
) -> None:
    make_user("bea", pool_id=production.pk)
    answers = []
    for email in ("bea@example.com", "BEA@example.com", NEW):
        answers.append(post(api, "email-change", me, email=email, current_password=PASSWORD))
        email_outbox.send_due()
    assert {(answer.status, answer.body) for answer in answers} == {(202, answers[0].body)}
    assert [message["To"] for message in postbox.messages] == [NEW]


def test_an_address_that_somebody_got_meanwhile_stays_theirs(
    api: Api, asked: str, production: Environment, make_user: Callable[..., User]
) -> None:
    make_user("bea", pool_id=production.pk, email=NEW.upper())
    assert confirm(api, asked, production).fields == {"email": "taken"}


@pytest.mark.parametrize(
    "change", [{"password": "a different horse"}, {"email": "x@example.com"}, {"is_disabled": True}]
)
def test_a_link_ends_with_what_it_was_made_for(
    api: Api, asked: str, una: User, production: Environment, change: dict[str, Any]
) -> None:
    user_service.change_user(una, actor=audit.SYSTEM, **change)
    assert confirm(api, asked, production, change.get("password", PASSWORD)).fields == {"token": "unknown"}


def test_a_link_of_another_environment_opens_nothing(
    api: Api, asked: str, alice: User, production: Environment
) -> None:
    assert confirm(api, asked, make_environment(alice)).fields == {"token": "unknown"}
    assert confirm(api, asked, None).fields == {"token": "unknown"}
    assert confirm(api, asked, production).status == 204


def test_who_has_no_password_is_told_how_to_get_one(
    api: Api, production: Environment, make_user: Callable[..., User]
) -> None:
    ori = make_user("ori", pool_id=production.pk, password=None)
    who = session_of(ori)
    assert api.get("/v1/auth/me", token=who.access_token).json["has_password"] is False
    assert post(api, "email-change", who, email=NEW, current_password="!").fields == {"current_password": "none"}
    assert api.patch(
        "/v1/auth/me", token=who.access_token, json={"password": "a new horse", "current_password": "!"}
    ).fields == {"current_password": "none"}


# ── Changing the password ──


def test_new_password_is_announced_by_email(api: Api, me: SignedIn, postbox: Postbox) -> None:
    body = {"password": "a different horse", "current_password": PASSWORD}
    assert api.patch("/v1/auth/me", token=me.access_token, json=body).status == 200
    email_outbox.send_due()
    assert postbox.last("una@example.com")["Subject"] == "Your password at Tracker was changed"


def test_an_address_that_nobody_proved_is_told_nothing(api: Api, una: User, postbox: Postbox) -> None:
    body = {"password": "a different horse", "current_password": PASSWORD}
    assert api.patch("/v1/auth/me", token=session_of(una).access_token, json=body).status == 200
    assert not AccountEmail.objects.exists()


def test_a_password_that_was_replaced_at_that_moment_stays(una: User, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = passwords.hashed

    def hashed_later(password: str, pool_id: str | None) -> str:
        User.objects.filter(pk=una.pk).update(password=hashed("the owner's new one"))
        return hashed(password, pool_id)

    monkeypatch.setattr(passwords, "hashed", hashed_later)
    caller = Caller("user", una.pk, frozenset())
    with pytest.raises(ValidationFailed):
        own_account.change(una, actor=caller, password="a thief's battery", current_password=PASSWORD)
    una.refresh_from_db()
    assert una.check_password("the owner's new one")


def test_guesses_of_the_password_with_a_stolen_token_are_limited(
    api: Api, alice: User, production: Environment, make_user: Callable[..., User], settings: Any
) -> None:
    """At every endpoint that takes it, counted together with signing in."""
    settings.RATE_LIMIT_FACTOR = 1

    def twelve() -> list[int]:
        user = make_user("g", pool_id=production.pk, email=f"g{time.time_ns()}@example.com")
        who = session_of(user)
        statuses = []
        for number in range(12):
            guess = {"current_password": f"guess {number}"}
            match number % 5:
                case 0:
                    body = {"password": "a new horse", **guess}
                    answer = api.patch("/v1/auth/me", token=who.access_token, json=body)
                case 1:
                    answer = post(api, "delete-account", who, **guess)
                case 2:
                    answer = post(api, "email-change", who, email="new@example.com", **guess)
                case 3:
                    answer = post(api, "identities", who, code="code", code_verifier="v" * 43, **guess)
                case _:
                    answer = token(api, email=user.email, password="x", environment=production.pk)
            statuses.append(answer.status)
        return [429 if status == 429 else 0 for status in statuses]

    assert_within_one_window(twelve, [0] * 10 + [429] * 2)


# ── The end of the account ──


def test_an_account_is_deleted_by_its_owner(api: Api, me: SignedIn, una: User, production: Environment) -> None:
    heard: list[Any] = []

    def hear(**what: Any) -> None:
        heard.append((what["user_id"], what["pool_id"]))

    signals.user_deleted.connect(hear)
    try:
        for body in ({}, {"current_password": "wrong"}):
            assert post(api, "delete-account", me, **body).error == "validation_failed"
        assert api.post("/v1/auth/delete-account", token=me.access_token).fields == {"current_password": "required"}
        assert heard == []
        answer = post(api, "delete-account", me, current_password=PASSWORD)
    finally:
        signals.user_deleted.disconnect(hear)
    assert (answer.status, answer.body) == (204, b"")
    assert heard == [(una.pk, production.pk)]
    assert not User.objects.filter(pk=una.pk).exists()
    assert api.get("/v1/auth/me", token=me.access_token).status == 401
    assert token(api, email="una@example.com", password=PASSWORD, environment=production.pk).error == "invalid_grant"
    entry = AuditEntry.objects.get(action="user.deleted")
    assert (entry.actor_kind, entry.actor_id, entry.target_id) == ("user", una.pk, una.pk)


def test_the_only_owner_of_a_project_cannot_go(api: Api, alice: User, production: Environment) -> None:
    answer = post(api, "delete-account", session_of(alice), current_password=PASSWORD)
    assert answer.error == "conflict"
    assert User.objects.filter(pk=alice.pk).exists()


def test_who_has_no_password_deletes_with_a_fresh_session(
    api: Api, production: Environment, make_user: Callable[..., User]
) -> None:
    who = session_of(make_user("ori", pool_id=production.pk, password=None))
    Session.objects.update(created_at="2026-01-01T00:00:00Z")
    fresh = session_of(who.user)
    assert post(api, "delete-account", who).error == "forbidden", "its own session is old"
    assert post(api, "delete-account", fresh).status == 204


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PATCH", "me", {"name": "x"}),
        ("PATCH", "me", {"password": "another horse, another battery", "current_password": PASSWORD}),
        ("POST", "email-verification", None),
        ("POST", "email-change", {"email": NEW, "current_password": PASSWORD}),
        ("POST", "delete-account", {"current_password": PASSWORD}),
    ],
)
def test_nobody_changes_an_account_in_a_branch(
    api: Api, una: User, production: Environment, method: str, path: str, body: dict[str, str] | None
) -> None:
    """A branch signs in the users of its source, and must not change them."""
    in_branch = session_of(una, environment=branch_of(production).pk)
    before = User.objects.values().get(pk=una.pk)
    refused = api.request(method, f"/v1/auth/{path}", token=in_branch.access_token, json=body)
    assert (refused.error, production.pk in refused.json["error"]["message"]) == ("forbidden", True)
    assert User.objects.values().get(pk=una.pk) == before
    assert not AccountEmail.objects.exists()
    assert api.get("/v1/auth/me", token=in_branch.access_token).status == 200


def test_a_link_is_not_used_in_a_branch(api: Api, una: User, production: Environment, postbox: Postbox) -> None:
    branch = branch_of(production)
    assert api.post("/v1/auth/password-reset", json={"email": una.email}, environment=branch.pk).error == "forbidden"
    assert not AccountEmail.objects.exists()
    assert api.post("/v1/auth/email-verification", token=session_of(una).access_token).status == 202
    email_outbox.send_due()
    link = {"token": token_in(postbox.last(una.email))}
    for path in ("email-verification", "email-change", "password-reset", "signup"):
        body = link if path == "email-verification" else link | {"password": PASSWORD}
        assert api.post(f"/v1/auth/{path}/confirm", json=body, environment=branch.pk).error == "forbidden"
    accepted = api.post("/v1/auth/invitation/accept", json=link | {"password": PASSWORD}, environment=branch.pk)
    assert accepted.error == "forbidden"
    assert User.objects.get(pk=una.pk).email_verified_at is None


def test_a_platform_account_that_names_a_branch_changes_itself(api: Api, alice: User, production: Environment) -> None:
    me = session_of(alice).access_token
    changed = api.patch("/v1/auth/me", token=me, json={"name": "Al"}, environment=branch_of(production).pk)
    assert changed.json["name"] == "Al"


def test_a_key_has_no_account(api: Api, production: Environment, make_key: Callable[..., Any]) -> None:
    _, key = make_key(production)
    for path, body in (
        ("email-verification", {}),
        ("email-change", {"email": NEW, "current_password": PASSWORD}),
        ("delete-account", {"current_password": PASSWORD}),
    ):
        assert api.post(f"/v1/auth/{path}", token=key, json=body).error == "forbidden"


# ── What the history says ──


def test_a_stolen_refresh_token_is_found_out_and_the_history_says_so(
    api: Api, una: User, sign_in: Callable[..., SignedIn]
) -> None:
    stolen = sign_in(una)
    last = stolen.refresh_token
    for _ in range(2):  # the owner goes on; the thief's copy is two behind
        last = token(api, grant_type="refresh_token", refresh_token=last).json["refresh_token"]
    assert token(api, grant_type="refresh_token", refresh_token=stolen.refresh_token).error == "invalid_grant"
    assert token(api, grant_type="refresh_token", refresh_token=last).error == "invalid_grant", "no session continues"
    assert api.get("/v1/auth/me", token=stolen.access_token).status == 401
    again = sign_in(una)
    [live] = api.get("/v1/auth/sessions", token=again.access_token).json["data"]
    assert (live["current"], live["ended_at"], live["end_reason"]) == (True, None, None)
    [ended] = api.get("/v1/auth/sessions?state=ended", token=again.access_token).json["data"]
    assert ended["end_reason"] == "refresh_token_reused"
    assert ended["ended_at"] > ended["created_at"]
    everything = api.get("/v1/auth/sessions?state=all", token=again.access_token).json["data"]
    assert [one["id"] for one in everything] == [live["id"], ended["id"]]


def test_an_expired_session_says_so_too(api: Api, una: User) -> None:
    session_of(una)
    Session.objects.update(expires_at="2026-01-01T00:00:00Z")
    now = session_of(una)
    [ended] = api.get("/v1/auth/sessions?state=ended", token=now.access_token).json["data"]
    assert (ended["end_reason"], ended["ended_at"]) == ("expired", ended["expires_at"])


def test_a_state_that_is_none_is_named(api: Api, una: User) -> None:
    now = session_of(una)
    assert api.get("/v1/auth/sessions?state=dead", token=now.access_token).fields == {"state": "not_among"}
    cursor = api.get("/v1/auth/sessions?state=all&limit=1", token=session_of(una).access_token).json["next_cursor"]
    answer = api.get(f"/v1/auth/sessions?state=live&cursor={cursor}", token=now.access_token)
    assert answer.fields == {"cursor": "invalid_cursor"}
