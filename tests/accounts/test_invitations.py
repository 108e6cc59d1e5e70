"""Inviting users, and accepting: `/v1/invitations`, `POST /v1/auth/invitation/accept`."""

from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone

from accounts import audit
from accounts.models import AccountEmail, AuditEntry, User
from accounts.registration import email_outbox, invitations, pool_settings
from accounts.signal_handlers import delete_pool
from accounts.users import service as user_service
from platform_site.identity import ids
from projects import services as projects
from projects.models import Environment
from tests.accounts.conftest import PASSWORD, branch_of, make_environment, session_of
from tests.support.client import Answer, Api
from tests.support.postbox import Postbox, html_of, text_of, token_in
from tests.support.rate_limits import assert_within_one_window

pytestmark = pytest.mark.django_db(databases="__all__")

NIA = "nia@example.com"


@pytest.fixture
def manager(production: Environment, make_key: Callable[..., Any]) -> str:
    return str(make_key(production, "users:manage")[1])


def invite(api: Api, manager: str, email: str = NIA, **body: Any) -> Answer:
    return api.post("/v1/invitations", token=manager, json={"email": email} | body)


def accept(api: Api, link: str, environment: Environment, **body: Any) -> Answer:
    return api.post(
        "/v1/auth/invitation/accept", json={"token": link, "password": PASSWORD} | body, environment=environment.pk
    )


def test_an_invited_user_comes_with_role_and_claims(
    api: Api, production: Environment, manager: str, postbox: Postbox
) -> None:
    made = invite(api, manager, name="Nia", role="editor", claims={"team": "a"})
    assert made.status == 201
    assert made.headers["Location"] == f"/v1/invitations/{made.json['id']}"
    assert made.json["id"].startswith("inv_")
    assert {name: made.json[name] for name in ("email", "name", "role", "claims", "status")} == {
        "email": NIA, "name": "Nia", "role": "editor", "claims": {"team": "a"}, "status": "waiting"
    }  # fmt: skip
    email_outbox.send_due()
    [listed] = api.get("/v1/invitations", token=manager).json["data"]
    assert listed["status"] == "sent"
    message = postbox.last(NIA)
    assert "Nia" not in text_of(message) + html_of(message)
    entered = accept(api, token_in(message), production)
    assert entered.status == 200
    me = api.get("/v1/auth/me", token=entered.json["access_token"]).json
    assert (me["name"], me["role"], me["email_verified"]) == ("Nia", "editor", True)
    assert User.objects.get(pk=me["id"]).claims == {"team": "a"}
    assert AuditEntry.objects.get(action="user.created", target_id=me["id"]).detail == {"via": "invitation"}
    assert api.get("/v1/invitations", token=manager).json["data"] == []
    assert accept(api, token_in(message), production).fields == {"token": "unknown"}


def test_who_accepts_may_choose_another_name_and_no_other_role(
    api: Api, production: Environment, manager: str, postbox: Postbox
) -> None:
    invite(api, manager, name="Nia")
    email_outbox.send_due()
    link = token_in(postbox.last(NIA))
    assert accept(api, link, production, role="admin").fields == {"role": "unknown_field"}
    assert accept(api, link, production, password="1234567").error == "validation_failed"
    assert accept(api, link, production, name="Nía").json["user"]["name"] == "Nía"


def test_an_invitation_is_withdrawn(api: Api, production: Environment, manager: str, postbox: Postbox) -> None:
    made = invite(api, manager).json
    email_outbox.send_due()
    assert api.delete(f"/v1/invitations/{made['id']}", token=manager).status == 204
    assert accept(api, token_in(postbox.last(NIA)), production).fields == {"token": "unknown"}
    assert api.delete(f"/v1/invitations/{made['id']}", token=manager).status == 404
    assert [entry.action for entry in AuditEntry.objects.filter(target_id=made["id"]).order_by("pk")] == [
        "invitation.sent", "invitation.withdrawn"
    ]  # fmt: skip


def test_other_emails_are_no_invitations(api: Api, una: User, production: Environment, manager: str) -> None:
    made = invite(api, manager).json
    kind, email_id = AccountEmail.Kind.RESET_PASSWORD, ids.new("inv")
    email_outbox.write(kind, pool_id=production.pk, recipient=una.email, email_id=email_id)
    assert [each["id"] for each in api.get("/v1/invitations", token=manager).json["data"]] == [made["id"]]
    assert api.delete(f"/v1/invitations/{email_id}", token=manager).status == 404


def test_an_invitation_lasts_as_long_as_the_right_of_who_sent_it(
    api: Api, alice: User, bob: User, production: Environment, make_key: Callable[..., Any], postbox: Postbox
) -> None:
    """A removed member can no longer invite; an invitation by the platform itself stays valid."""
    key, secret = make_key(production, "users:manage")
    projects.add_member(production.project_id, email=bob.email, role="developer", actor=audit.SYSTEM)
    bobs = session_of(bob).access_token
    for email, token in (("by-key@example.com", secret), ("by-bob@example.com", bobs)):
        made = api.post("/v1/invitations", token=token, json={"email": email}, environment=production.pk)
        assert made.status == 201, made.json
        assert "invited_by" not in made.json
    invitations.invite(pool_id=production.pk, email="by-us@example.com", actor=audit.SYSTEM)
    email_outbox.send_due()
    links = {who: token_in(postbox.last(f"by-{who}@example.com")) for who in ("key", "bob", "us")}
    user_service.revoke_key(key, actor=audit.SYSTEM)
    projects.change_member(production.project_id, bob.pk, role="viewer", actor=audit.SYSTEM)
    for who in ("key", "bob"):
        refused = accept(api, links[who], production)
        assert (refused.error, refused.fields) == ("invalid_grant", {"token": "unknown"}), who
        assert not User.objects.with_email(production.pk, f"by-{who}@example.com").exists()
    assert accept(api, links["us"], production).status == 200
    projects.change_member(production.project_id, bob.pk, role="developer", actor=audit.SYSTEM)
    assert accept(api, links["bob"], production).status == 200, "the right is asked for when it is used"
    api.post("/v1/invitations", token=session_of(alice).access_token, json={"email": NIA}, environment=production.pk)
    email_outbox.send_due()
    User.objects.filter(pk=alice.pk).update(disabled_at=timezone.now())
    assert accept(api, token_in(postbox.last(NIA)), production).error == "invalid_grant"


def test_a_second_invitation_replaces_the_first(
    api: Api, production: Environment, manager: str, postbox: Postbox
) -> None:
    invite(api, manager, role="viewer")
    email_outbox.send_due()
    invite(api, manager, email=NIA.upper(), role="editor")
    email_outbox.send_due()
    assert accept(api, token_in(postbox.messages[0]), production).fields == {"token": "unknown"}
    entered = accept(api, token_in(postbox.messages[1]), production)
    assert User.objects.get(pk=entered.json["user"]["id"]).role == "editor"


def test_sign_up_ends_the_invitation(api: Api, production: Environment, manager: str, postbox: Postbox) -> None:
    pool_settings.change_settings(production.pk, actor=audit.SYSTEM, sign_up="open")
    invite(api, manager)
    api.post("/v1/auth/signup", json={"email": NIA, "password": PASSWORD}, environment=production.pk)
    email_outbox.send_due()
    by_link = {message["Subject"]: token_in(message) for message in postbox.messages}
    signed_up = api.post(
        "/v1/auth/signup/confirm",
        json={"token": by_link["Confirm your email for Tracker"], "password": PASSWORD},
        environment=production.pk,
    )
    assert signed_up.status == 200
    assert accept(api, by_link["You are invited to Tracker"], production).fields == {"token": "unknown"}


@pytest.mark.parametrize("mode", ["off", "invited", "open"])
def test_an_invitation_works_in_every_mode(
    api: Api, production: Environment, manager: str, postbox: Postbox, mode: str
) -> None:
    pool_settings.change_settings(production.pk, actor=audit.SYSTEM, sign_up=mode)
    invite(api, manager)
    email_outbox.send_due()
    assert accept(api, token_in(postbox.last(NIA)), production).status == 200


def test_who_has_an_account_is_not_invited(
    api: Api, una: User, manager: str, postbox: Postbox, make_user: Callable[..., User]
) -> None:
    assert invite(api, manager, email="UNA@example.com").fields == {"email": "taken"}
    assert not AccountEmail.objects.exists()
    assert invite(api, manager).status == 201
    make_user("nia", pool_id=una.environment_id)
    email_outbox.send_due()
    assert not postbox.messages
    assert not AccountEmail.objects.exists()


def test_only_who_manages_users_invites_and_only_where_they_are(
    api: Api, alice: User, charlie: User, una: User, production: Environment, manager: str, make_key: Callable[..., Any]
) -> None:
    made = invite(api, manager).json
    strange = make_environment(charlie)
    for secret in (make_key(production, "rows:read")[1], session_of(una).access_token):
        assert api.post("/v1/invitations", token=secret, json={"email": NIA}).error == "forbidden"
        assert api.get("/v1/invitations", token=secret).error == "forbidden"
        assert api.delete(f"/v1/invitations/{made['id']}", token=secret).error == "forbidden"
    stranger = make_key(strange, "users:manage")[1]
    assert api.get("/v1/invitations", token=stranger).json["data"] == []
    assert api.delete(f"/v1/invitations/{made['id']}", token=stranger).status == 404
    branch = make_key(branch_of(production), "users:manage")[1]
    assert invite(api, branch).error == "forbidden"
    assert api.delete(f"/v1/invitations/{made['id']}", token=branch).error == "forbidden"
    assert AccountEmail.objects.count() == 1


def test_an_invitation_of_another_environment_opens_nothing(
    api: Api, alice: User, production: Environment, manager: str, postbox: Postbox
) -> None:
    invite(api, manager)
    email_outbox.send_due()
    assert accept(api, token_in(postbox.last(NIA)), make_environment(alice)).fields == {"token": "unknown"}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"email": "nia"}, "email"),
        ({"role": "server"}, "role"),
        ({"role": "A B"}, "role"),
        ({"claims": []}, "claims"),
        ({"claims": {"x": "y" * 5000}}, "claims"),
        ({"password": PASSWORD}, "password"),
    ],
)
def test_what_is_wrong_is_named(api: Api, manager: str, body: dict[str, Any], field: str) -> None:
    answer = invite(api, manager, **({"email": NIA} | body))
    assert (answer.error, list(answer.fields)) == ("validation_failed", [field])


def test_a_pool_sends_so_many_invitations_an_hour(
    api: Api, alice: User, make_key: Callable[..., Any], settings: Any
) -> None:
    settings.RATE_LIMIT_FACTOR = 0.03  # three of a hundred

    def four() -> list[int]:
        key = make_key(make_environment(alice), "users:manage")[1]
        return [invite(api, key, email=f"n{number}@example.com").status for number in range(4)]

    assert_within_one_window(four, [201] * 3 + [429])


def test_a_refused_address_is_shown(api: Api, manager: str, postbox: Postbox) -> None:
    invite(api, manager)
    postbox.answers.append("550 no such user")
    email_outbox.send_due()
    [listed] = api.get("/v1/invitations", token=manager).json["data"]
    assert listed["status"] == "refused"


def test_a_deleted_environment_takes_its_invitations_along(api: Api, production: Environment, manager: str) -> None:
    invite(api, manager)
    user_service.create_user(pool_id=production.pk, email="x@example.com", password=None, actor=audit.SYSTEM)
    delete_pool(environment_id=production.pk)
    assert not AccountEmail.objects.exists()
