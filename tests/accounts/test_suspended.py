"""Endpoints without authentication while a project is suspended: sign-in, refreshing, links, codes, providers; and its
emails."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F
from django.db.models.functions import Now
from django.test import Client

from accounts import audit
from accounts.models import AccountEmail, AuthorizationCode, Session, User
from accounts.registration import email_outbox, invitations, one_time_links, password_reset
from accounts.registration.pool_settings import Pool
from accounts.users import exchange_codes
from projects import services
from projects.models import Environment
from tests.accounts.conftest import PASSWORD, SignedIn, branch_of, session_of, token
from tests.accounts.oauth.conftest import APP
from tests.support.client import Answer, Api
from tests.support.postbox import Postbox, link_in, token_in

pytestmark = pytest.mark.django_db(databases="__all__")

NIA = "nia@example.com"
BETTER = "a different horse"


def suspend(environment: Environment) -> None:
    services.suspend_project(environment.project_id, reason="abuse", actor=audit.SYSTEM)


def resume(environment: Environment) -> None:
    services.resume_project(environment.project_id, actor=audit.SYSTEM)


def is_refused(answer: Answer) -> bool:
    return answer.status == 403 and answer.error == "project_suspended"


def test_suspended_users_cannot_sign_in_and_keep_their_sessions(api: Api, una: User, production: Environment) -> None:
    right = {"email": una.email, "password": PASSWORD}
    before = session_of(una)
    suspend(production)
    for environment in (production, branch_of(production)):
        assert is_refused(token(api, environment=environment.pk, **right))
    assert is_refused(token(api, environment=production.pk, **right | {"password": "wrong"})), "right or wrong"
    for _ in range(3):
        assert is_refused(token(api, grant_type="refresh_token", refresh_token=before.refresh_token))
    assert Session.objects.filter(revoked_at=None).count() == 1
    resume(production)
    after = token(api, grant_type="refresh_token", refresh_token=before.refresh_token)
    assert after.status == 200, "the token that was refused is as good as it was"
    assert api.get("/v1/auth/me", token=after.json["access_token"]).status == 200
    assert token(api, environment=production.pk, **right).status == 200


def test_a_stolen_refresh_token_ends_the_session_all_the_same(api: Api, una: User, production: Environment) -> None:
    first = session_of(una)
    second = token(api, grant_type="refresh_token", refresh_token=first.refresh_token)
    assert token(api, grant_type="refresh_token", refresh_token=second.json["refresh_token"]).status == 200
    suspend(production)
    answer = token(api, grant_type="refresh_token", refresh_token=first.refresh_token)
    assert (answer.status, answer.error) == (400, "invalid_grant")
    assert Session.objects.get().revoked_reason == "refresh_token_reused"


def test_trying_is_counted_as_always(api: Api, una: User, production: Environment, settings: Any) -> None:
    settings.RATE_LIMIT_FACTOR = 1
    suspend(production)
    wrong = {"environment": production.pk, "email": una.email, "password": "wrong", "remote_addr": "10.9.9.9"}
    seen = {token(api, **wrong).status for _ in range(40)}
    assert seen == {403, 429}


def test_platform_accounts_are_not_concerned(api: Api, alice: User, production: Environment) -> None:
    suspend(production)
    answer = token(api, email=alice.email, password=PASSWORD)
    assert answer.status == 200
    assert token(api, grant_type="refresh_token", refresh_token=answer.json["refresh_token"]).status == 200


def test_a_code_is_not_used_up(api: Api, una: User, production: Environment) -> None:
    code = exchange_codes.issue(
        una, environment_id=production.pk, redirect_uri=APP, code_challenge=None, method="oauth:acme"
    )  # fmt: skip
    suspend(production)
    given = {"environment": production.pk, "grant_type": "authorization_code", "code": code}
    assert is_refused(token(api, **given))
    assert AuthorizationCode.objects.get().used_at is None
    resume(production)
    assert token(api, **given).status == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("signup", {"email": NIA, "password": BETTER}),
        ("signup/confirm", {"token": "lnk_x", "password": BETTER}),
        ("invitation/accept", {"token": "lnk_x", "password": BETTER}),
        ("password-reset", {"email": "una@example.com"}),
        ("password-reset/confirm", {"token": "lnk_x", "password": BETTER}),
        ("email-verification/confirm", {"token": "lnk_x"}),
        ("email-change/confirm", {"token": "lnk_x", "password": BETTER}),
    ],
)
def test_what_e_mails_lead_to_is_refused(
    api: Api, una: User, production: Environment, path: str, body: dict[str, str]
) -> None:
    suspend(production)
    assert is_refused(api.post(f"/v1/auth/{path}", json=body, environment=production.pk))
    assert not AccountEmail.objects.exists()
    resume(production)
    assert not is_refused(api.post(f"/v1/auth/{path}", json=body, environment=production.pk))


def test_link_page_explains_suspension_and_works_after_it_ends(
    client: Client, una: User, production: Environment, postbox: Postbox
) -> None:
    password_reset.request_reset(Pool(production.pk, production.pk), email=una.email)
    email_outbox.send_due()
    address = link_in(postbox.last(una.email)).removeprefix("http://127.0.0.1:8000")
    suspend(production)
    filled = {"token": token_in(address), "password": BETTER, "again": BETTER}
    for answer in (client.get(address), client.post(address.partition("?")[0], filled)):
        assert answer.status_code == 403
        assert "suspended" in answer.content.decode()
    una.refresh_from_db()
    assert una.check_password(PASSWORD)
    resume(production)
    assert client.post(address.partition("?")[0], filled).status_code == 200
    una.refresh_from_db()
    assert una.check_password(BETTER)


def test_e_mails_wait_and_go_out_once(una: User, alice: User, production: Environment, postbox: Postbox) -> None:
    password_reset.request_reset(Pool(production.pk, production.pk), email=una.email)
    password_reset.request_reset(Pool(None, None), email=alice.email)
    suspend(production)
    assert email_outbox.send_due() == 1, "the platform's own go out"
    assert [message["To"] for message in postbox.messages] == [alice.email]
    waiting = AccountEmail.objects.get(environment_id=production.pk)
    assert (waiting.attempts, waiting.sent_at) == (0, None)
    email_outbox.send(waiting.pk)
    assert postbox.to(una.email) == [], "nor for a worker that was notified"
    resume(production)
    assert email_outbox.send_due() == 1
    assert email_outbox.send_due() == 0
    assert len(postbox.to(una.email)) == 1


def test_the_time_of_e_mails_and_links_stands_still(
    una: User, production: Environment, postbox: Postbox, sign_in: Callable[..., SignedIn]
) -> None:
    """Suspended for a month: an invitation that had six days left has six days left."""
    invitations.invite(pool_id=production.pk, email=NIA, actor=audit.SYSTEM)
    email_outbox.send_due()
    gone = AccountEmail.objects.create(
        environment_id=production.pk, kind="reset_password", subject="x", recipient="x@example.com", expires_at=Now()
    )
    day = timedelta(days=1)
    AccountEmail.objects.filter(kind="invitation").update(expires_at=F("expires_at") - day)
    left = AccountEmail.objects.get(kind="invitation").expires_at
    AccountEmail.objects.filter(pk=gone.pk).update(expires_at=Now() - 40 * day)
    suspend(production)
    project = production.project
    month = 30 * day
    type(project).objects.update(suspended_at=F("suspended_at") - month)
    AccountEmail.objects.update(expires_at=F("expires_at") - month)
    assert email_outbox.purge() == 0
    resume(production)
    shifted = AccountEmail.objects.get(kind="invitation").expires_at
    assert abs(shifted - left) < timedelta(minutes=5)
    assert email_outbox.purge() == 1, "what had expired before is not brought back"
    link = one_time_links.find_in_pool(token_in(postbox.last(NIA)), AccountEmail.Kind.INVITATION, production.pk)
    accepted = invitations.accept(link, BETTER, lambda user: user)
    assert accepted.email == NIA
