"""Inviting into a project by email who has no account: `POST …/members`, `…/invitations`, and accepting.

The attackers here: a removed owner, a person who gets a link twice, one who probes which accounts exist,
and one who would flood other people's mailboxes.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from accounts import audit
from accounts.models import AccountEmail, AuditEntry, Session, User
from accounts.registration import email_outbox, pool_settings
from accounts.users import service as accounts
from platform_site.identity.plans import plan_limits
from projects import services
from projects.directory import invitations
from projects.models import Member, Project
from tests.accounts.conftest import PASSWORD, _mail_server, postbox  # noqa: F401 - fixtures
from tests.projects.conftest import at_once, key_for, make_project, token_of
from tests.support.client import Answer, Api
from tests.support.postbox import Postbox, html_of, text_of, token_in
from tests.support.rate_limits import assert_within_one_window

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

NIA = "nia@example.com"


@pytest.fixture(autouse=True)
def generous_limits(settings: Any) -> None:
    """Limits have a test of their own."""
    settings.RATE_LIMIT_FACTOR = 1000


@pytest.fixture(autouse=True)
def invited_people_are_admitted(db: None) -> None:
    pool_settings.change_settings(None, actor=audit.SYSTEM, sign_up="invited")


@pytest.fixture
def project(alice: User) -> Project:
    return make_project(alice, plan="pro")


def invite(api: Api, project: Project, by: User, email: str = NIA, role: str = "developer") -> Answer:
    return api.post(f"/v1/projects/{project.pk}/members", token=token_of(by), json={"email": email, "role": role})


def accept(api: Api, link: str, **body: Any) -> Answer:
    return api.post("/v1/auth/member-invitation/accept", json={"token": link} | body)


def opened(api: Api, project: Project, by: User) -> list[Any]:
    found: list[Any] = api.get(f"/v1/projects/{project.pk}/invitations", token=token_of(by)).json["data"]
    return found


def sent(postbox: Postbox, email: str = NIA) -> str:  # noqa: F811
    """The token of the newest email to this recipient."""
    email_outbox.send_due()
    return token_in(postbox.last(email))


def roles(project: Project) -> dict[str, str]:
    return dict(project.memberships.values_list("user__email", "role"))


def test_who_has_no_account_is_invited_gets_one_and_is_a_member(
    api: Api, alice: User, project: Project, postbox: Postbox  # noqa: F811
) -> None:  # fmt: skip
    made = invite(api, project, alice, " Nia@example.com ")
    assert made.status == 202
    address = f"/v1/projects/{project.pk}/invitations"
    assert made.headers["Location"] == f"{address}/{made.json['id']}"
    assert made.json["id"].startswith("inv_")
    assert {name: made.json[name] for name in ("email", "role", "invited_by", "status")} == {
        "email": "nia@example.com", "role": "developer", "invited_by": alice.pk, "status": "waiting"
    }  # fmt: skip
    assert roles(project) == {"alice@example.com": "owner"}
    link = sent(postbox, "nia@example.com")
    message = postbox.last("nia@example.com")
    assert project.name not in text_of(message) + html_of(message), "no text typed by a user"
    assert "alice" not in text_of(message) + html_of(message)
    assert [(one["id"], one["status"]) for one in opened(api, project, alice)] == [(made.json["id"], "sent")]

    assert accept(api, link).fields == {"password": "required"}
    assert accept(api, link, password="12345678").error == "validation_failed"
    joined = accept(api, link, password=PASSWORD, name="Nia")
    assert joined.status == 200
    assert "access_token" not in joined.json
    nia = User.objects.get(email__iexact=NIA)
    assert {name: joined.json[name] for name in ("project_id", "user_id", "name", "role")} == {
        "project_id": project.pk, "user_id": nia.pk, "name": "Nia", "role": "developer"
    }  # fmt: skip
    assert (nia.environment_id, nia.role, nia.claims) == (None, None, {})
    assert nia.email_verified_at is not None
    assert nia.check_password(PASSWORD)
    assert roles(project) == {"alice@example.com": "owner", "nia@example.com": "developer"}
    assert not Session.objects.filter(user=nia).exists()
    assert [one["id"] for one in api.get("/v1/projects", token=token_of(nia)).json["data"]] == [project.pk]
    assert opened(api, project, alice) == []
    assert accept(api, link).fields == {"token": "unknown"}
    assert accept(api, link, password=PASSWORD).fields == {"token": "unknown"}
    entries = AuditEntry.objects.filter(project_id=project.pk, action__startswith="member.").order_by("pk")
    assert [(entry.action, entry.actor_id, entry.target_id) for entry in entries] == [
        ("member.invited", alice.pk, made.json["id"]),
        ("member.added", nia.pk, nia.pk),
    ]


def test_who_has_an_account_becomes_a_member_at_once_and_is_not_asked(
    api: Api, alice: User, bob: User, project: Project, postbox: Postbox  # noqa: F811
) -> None:  # fmt: skip
    assert invite(api, project, alice, bob.email).status == 201
    email_outbox.send_due()
    assert postbox.messages == []
    assert opened(api, project, alice) == []


@pytest.mark.parametrize("mode", ["off", "open"])
def test_the_operator_says_whether_invited_people_may_have_an_account(
    api: Api, alice: User, project: Project, postbox: Postbox, mode: str  # noqa: F811
) -> None:  # fmt: skip
    pool_settings.change_settings(None, actor=audit.SYSTEM, sign_up=mode)
    made = invite(api, project, alice)
    if mode == "open":
        assert made.status == 202
        return
    assert (made.status, made.fields) == (422, {"email": "unknown"})
    assert not AccountEmail.objects.exists()
    pool_settings.change_settings(None, actor=audit.SYSTEM, sign_up="invited")
    assert invite(api, project, alice).status == 202
    link = sent(postbox)
    pool_settings.change_settings(None, actor=audit.SYSTEM, sign_up="off")
    refused = accept(api, link, password=PASSWORD)
    assert (refused.status, refused.error) == (403, "forbidden")
    assert not User.objects.filter(email=NIA).exists()
    pool_settings.change_settings(None, actor=audit.SYSTEM, sign_up="invited")
    assert accept(api, link, password=PASSWORD).status == 200, "the link was left as it was"


def test_invitee_with_new_account_joins_and_keeps_the_password(
    api: Api, alice: User, project: Project, postbox: Postbox, make_account: Callable[..., User]  # noqa: F811
) -> None:  # fmt: skip
    invite(api, project, alice)
    nia = make_account("nia")
    link = sent(postbox)
    before = User.objects.get(pk=nia.pk).password
    assert accept(api, link, password=PASSWORD).fields == {"password": "not_needed"}
    assert User.objects.get(pk=nia.pk).password == before
    assert roles(project) == {"alice@example.com": "owner"}
    joined = accept(api, link)
    assert (joined.status, joined.json["user_id"], joined.json["role"]) == (200, nia.pk, "developer")
    assert User.objects.get(pk=nia.pk).password == before


def test_a_disabled_account_neither_joins_nor_shows(
    api: Api, alice: User, bob: User, project: Project, postbox: Postbox  # noqa: F811
) -> None:  # fmt: skip
    """It answers like an email without an account, and continues to do so in the list."""
    accounts.change_user(bob, is_disabled=True, actor=audit.SYSTEM)
    answers = [invite(api, project, alice, email) for email in (NIA, bob.email)]
    links = [sent(postbox, email) for email in (NIA, bob.email)]
    assert [(answer.status, sorted(answer.json)) for answer in answers] == [(202, sorted(answers[0].json))] * 2
    assert [one["status"] for one in opened(api, project, alice)] == ["sent", "sent"]
    assert accept(api, links[1]).fields == {"token": "unknown"}
    assert accept(api, links[1], password=PASSWORD).fields == {"token": "unknown"}
    assert roles(project) == {"alice@example.com": "owner"}


def test_an_invitation_changes_nothing_for_who_became_a_member_otherwise(
    api: Api, alice: User, project: Project, postbox: Postbox, make_account: Callable[..., User]  # noqa: F811
) -> None:  # fmt: skip
    """Neither up nor down: what an owner said last to the member itself holds."""
    invite(api, project, alice, role="owner")
    link = sent(postbox)
    nia = make_account("nia")
    Member.objects.create(project=project, user=nia, role="viewer")  # without the code that would end the invitation
    assert accept(api, link).json["role"] == "viewer"
    assert roles(project)[NIA] == "viewer"

    invite(api, project, alice, "una@example.com", role="owner")
    link = sent(postbox, "una@example.com")
    make_account("una")
    assert invite(api, project, alice, "UNA@example.com", role="viewer").status == 201
    assert accept(api, link).fields == {"token": "unknown"}
    assert roles(project)["una@example.com"] == "viewer"


def test_the_newer_invitation_counts_and_only_for_its_own_project(
    api: Api, alice: User, bob: User, project: Project, postbox: Postbox  # noqa: F811
) -> None:  # fmt: skip
    other = make_project(bob, "Other", plan="pro")
    invite(api, project, alice, role="owner")
    first = sent(postbox)
    invite(api, other, bob, role="viewer")
    elsewhere = sent(postbox)
    again = invite(api, project, alice, NIA.upper(), role="viewer")
    newest = sent(postbox, NIA)
    assert [one["id"] for one in opened(api, project, alice)] == [again.json["id"]]
    assert accept(api, first, password=PASSWORD).fields == {"token": "unknown"}
    assert accept(api, newest, password=PASSWORD).json["role"] == "viewer"
    assert roles(other) == {"bob@example.com": "owner"}, "one yes is one project"
    assert accept(api, elsewhere).json["project_id"] == other.pk


def test_an_invitation_ends_with_the_ownership_of_who_sent_it(
    api: Api, alice: User, bob: User, project: Project, postbox: Postbox  # noqa: F811
) -> None:  # fmt: skip
    def by_bob(email: str) -> str:
        assert invite(api, project, bob, email, role="owner").status == 202
        return sent(postbox, email)

    services.add_member(project.pk, email=bob.email, role="owner", actor=audit.SYSTEM)
    link = by_bob("one@example.com")
    services.change_member(project.pk, bob.pk, role="developer", actor=audit.SYSTEM)
    assert opened(api, project, alice) == []
    assert accept(api, link, password=PASSWORD).fields == {"token": "unknown"}
    services.change_member(project.pk, bob.pk, role="owner", actor=audit.SYSTEM)
    assert accept(api, link, password=PASSWORD).fields == {"token": "unknown"}, "what ended stays ended"

    link = by_bob("two@example.com")
    services.remove_member(project.pk, bob.pk, actor=audit.SYSTEM)
    assert accept(api, link, password=PASSWORD).fields == {"token": "unknown"}

    services.add_member(project.pk, email=bob.email, role="owner", actor=audit.SYSTEM)
    link = by_bob("three@example.com")
    User.objects.filter(pk=bob.pk).update(disabled_at=timezone.now())
    assert accept(api, link, password=PASSWORD).fields == {"token": "unknown"}
    User.objects.filter(pk=bob.pk).update(disabled_at=None)
    invite(api, project, bob, "four@example.com")
    accounts.delete_user(User.objects.get(pk=bob.pk), actor=audit.SYSTEM)
    assert opened(api, project, alice) == []
    email_outbox.send_due()
    assert postbox.to("four@example.com") == [], "what has ended is not sent either"
    assert not User.objects.filter(email__in=[f"{n}@example.com" for n in ("one", "two", "three", "four")]).exists()


def test_what_waits_is_not_sent_for_who_is_no_owner_any_more(
    api: Api, alice: User, bob: User, project: Project, postbox: Postbox  # noqa: F811
) -> None:  # fmt: skip
    services.add_member(project.pk, email=bob.email, role="owner", actor=audit.SYSTEM)
    invite(api, project, bob)
    Member.objects.filter(user=bob).update(role="viewer")  # without the code that would end it
    email_outbox.send_due()
    assert postbox.messages == []
    assert opened(api, project, alice) == []


def test_only_owners_invite_look_and_withdraw(
    api: Api, alice: User, bob: User, charlie: User, project: Project, postbox: Postbox  # noqa: F811
) -> None:  # fmt: skip
    made = invite(api, project, alice).json["id"]
    address = f"/v1/projects/{project.pk}/invitations"
    assert api.get(address, token=token_of(charlie)).status == 404
    assert api.delete(f"{address}/{made}", token=token_of(charlie)).status == 404
    for role in ("viewer", "developer"):
        Member.objects.update_or_create(project=project, user=bob, defaults={"role": role})
        assert invite(api, project, bob, "una@example.com").status == 403
        assert api.get(address, token=token_of(bob)).status == 403
        assert api.delete(f"{address}/{made}", token=token_of(bob)).status == 403
    key = key_for(None, "projects:read", "projects:create", "projects:delete", account=alice)
    assert api.get(address, token=key).status == 403
    assert api.delete(f"{address}/{made}", token=key).status == 403
    other = make_project(charlie, "Other", plan="pro")
    elsewhere = f"/v1/projects/{other.pk}/invitations/{made}"
    assert api.delete(elsewhere, token=token_of(charlie)).status == 404
    assert [one["id"] for one in opened(api, project, alice)] == [made]

    link = sent(postbox)
    for wrong in ("inv_0", "x" * 300, made.replace("inv_", "prj_"), "inv_01k2m4c8e0f1a9b7r5t3v6w8x2"):
        assert api.delete(f"{address}/{wrong}", token=token_of(alice)).status == 404
    assert api.delete(f"{address}/{made}", token=token_of(alice)).status == 204
    assert api.delete(f"{address}/{made}", token=token_of(alice)).status == 404
    assert accept(api, link, password=PASSWORD).fields == {"token": "unknown"}
    assert AuditEntry.objects.get(action="member.invitation_withdrawn").target_id == made


def test_pools_and_projects_do_not_take_each_others_links(
    api: Api, alice: User, project: Project, postbox: Postbox  # noqa: F811
) -> None:  # fmt: skip
    """An invitation by the operator to the same email coexists with it, and each link is valid only for its own."""
    from accounts.registration import invitations as of_pools

    of_pools.invite(pool_id=None, email=NIA, actor=audit.SYSTEM, role="x", name="n")
    of_pool = sent(postbox)
    invite(api, project, alice)
    of_project = sent(postbox)
    assert accept(api, of_pool, password=PASSWORD).fields == {"token": "unknown"}
    crossed = api.post("/v1/auth/invitation/accept", json={"token": of_project, "password": PASSWORD})
    assert crossed.fields == {"token": "unknown"}
    assert api.post("/v1/auth/invitation/accept", json={"token": of_pool, "password": PASSWORD}).status == 200
    assert roles(project) == {"alice@example.com": "owner"}
    assert accept(api, of_project).json["role"] == "developer"


def test_a_link_that_is_used_by_several_at_once_makes_one_member(
    api: Api, alice: User, project: Project, postbox: Postbox  # noqa: F811
) -> None:  # fmt: skip
    invite(api, project, alice)
    link = sent(postbox)
    answers = at_once(4, lambda n: accept(api, link, password=PASSWORD, name=str(n)))
    assert sorted(answer.status for answer in answers) == [200, 400, 400, 400], [answer.json for answer in answers]
    assert roles(project) == {"alice@example.com": "owner", NIA: "developer"}


def test_invitations_count_toward_the_member_limit_of_the_plan(
    api: Api, alice: User, bob: User, project: Project, postbox: Postbox  # noqa: F811
) -> None:  # fmt: skip
    small = make_project(alice, "Small")
    room = plan_limits("free").members_per_project - 1
    for number in range(room):
        assert invite(api, small, alice, f"n{number}@example.com").status == 202
    for email in ("more@example.com", bob.email):
        refused = invite(api, small, alice, email)
        assert (refused.status, refused.error) == (422, "quota_exceeded")
    assert invite(api, small, alice, "n0@example.com", role="viewer").status == 202, "in place of itself"
    assert len(opened(api, small, alice)) == room
    email_outbox.send_due()
    assert postbox.to("more@example.com") == []
    links = [token_in(postbox.last(f"n{number}@example.com")) for number in range(room)]
    # Membership limits count the same everywhere: the members at the moment when the link is used.
    Member.objects.create(project=small, user=bob, role="viewer")
    refused = accept(api, links[0], password=PASSWORD)
    assert (refused.status, refused.error) == (422, "quota_exceeded")
    assert not User.objects.filter(email="n0@example.com").exists()
    Member.objects.filter(user=bob).delete()
    assert [accept(api, link, password=PASSWORD).status for link in links] == [200] * room
    used = api.get("/v1/limits", token=token_of(alice), environment=small.environments.first().pk).json["limits"]
    assert used["members_per_project"] == {"limit": room + 1, "used": room + 1}


def test_a_deleted_project_takes_its_invitations_along(
    api: Api, alice: User, project: Project, postbox: Postbox  # noqa: F811
) -> None:  # fmt: skip
    invite(api, project, alice)
    link = sent(postbox)
    invite(api, project, alice, "una@example.com")
    services.delete_project(project.pk, actor=audit.SYSTEM)
    assert accept(api, link, password=PASSWORD).fields == {"token": "unknown"}
    email_outbox.send_due()
    assert postbox.to("una@example.com") == []
    assert not User.objects.filter(email=NIA).exists()


def test_a_suspended_project_lets_nobody_in_and_its_invitations_wait(
    api: Api, alice: User, project: Project, postbox: Postbox  # noqa: F811
) -> None:  # fmt: skip
    made = invite(api, project, alice).json["id"]
    link = sent(postbox)
    waiting = invite(api, project, alice, "una@example.com").json["id"]
    before = AccountEmail.objects.get(pk=made).expires_at
    services.suspend_project(project.pk, reason="An incident", actor=audit.SYSTEM)
    refused = invite(api, project, alice, "more@example.com")
    assert (refused.status, refused.error) == (403, "project_suspended")
    refused = accept(api, link, password=PASSWORD)
    assert (refused.status, refused.error) == (403, "project_suspended")
    assert not User.objects.filter(email=NIA).exists()
    email_outbox.send_due()
    assert postbox.to("una@example.com") == []
    assert {one["id"] for one in opened(api, project, alice)} == {made, waiting}
    Project.objects.filter(pk=project.pk).update(suspended_at=timezone.now() - timedelta(days=1))
    AccountEmail.objects.filter(pk=waiting).update(expires_at=timezone.now() - timedelta(hours=1))
    email_outbox.purge()
    services.resume_project(project.pk, actor=audit.SYSTEM)
    assert AccountEmail.objects.get(pk=made).expires_at - before >= timedelta(hours=23)
    assert accept(api, link, password=PASSWORD).status == 200
    assert accept(api, sent(postbox, "una@example.com"), password=PASSWORD).status == 200


@pytest.mark.exhaustive
def test_invitations_to_one_mailbox_and_guesses_are_limited(
    api: Api, alice: User, project: Project, settings: Any
) -> None:
    settings.RATE_LIMIT_FACTOR = 1
    assert_within_one_window(lambda: [invite(api, project, alice).status for _ in range(7)], [202] * 6 + [429])
    others = [f"n{number}@example.com" for number in range(11)]
    assert_within_one_window(lambda: [invite(api, project, alice, one).status for one in others], [202] * 10 + [429])
    assert len(opened(api, project, alice)) == 11, "a refused request invites no one"


def test_what_is_no_address_is_refused_and_counts_as_none(api: Api, alice: User, project: Project) -> None:
    for email in ("x", "ünä@example.com", '"n"@example.com', "=?utf-8?q?b=6fss?=@example.com", "a" * 250 + "@x.org"):
        assert invite(api, project, alice, email).status == 422, email
    assert invite(api, project, alice, role="admin").fields == {"role": "not_among"}
    assert not AccountEmail.objects.exists()


def test_the_longest_address_is_invited_as_well(api: Api, alice: User, project: Project) -> None:
    longest = f"{'a' * 60}@{'b' * 60}.{'c' * 60}.{'d' * 60}.example"
    assert invite(api, project, alice, longest).status == 202
    assert [one["email"] for one in opened(api, project, alice)] == [longest]


def test_one_who_repeats_the_request_invites_once(api: Api, alice: User, project: Project) -> None:
    def ask() -> Answer:
        body, headers = {"email": NIA, "role": "viewer"}, {"Idempotency-Key": "0b9a"}
        return api.post(f"/v1/projects/{project.pk}/members", token=token_of(alice), json=body, headers=headers)

    first, again = ask(), ask()
    assert (again.status, again.json) == (first.status, first.json) == (202, first.json)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert AuditEntry.objects.filter(action="member.invited").count() == 1


def test_the_page_says_into_what_and_makes_the_account(
    api: Api, client: Client, alice: User, project: Project, postbox: Postbox  # noqa: F811
) -> None:  # fmt: skip
    Project.objects.filter(pk=project.pk).update(name="<b>{app}</b>")
    invite(api, project, alice, role="viewer")
    link = sent(postbox)
    before = list(AccountEmail.objects.values())
    address = f"/auth/join-project?token={link}"
    page = client.get(address)
    text = page.content.decode()
    assert page.status_code == 200
    for shown in ("Become viewer of the project", "&lt;b&gt;{app}&lt;/b&gt;", "invited by alice@example.com"):
        assert shown in text
    assert client.get(address).status_code == client.head(address).status_code == 200
    assert list(AccountEmail.objects.values()) == before, "opening it changes nothing"
    form = {"token": link, "password": PASSWORD, "again": PASSWORD, "name": "Nia"}
    assert client.post("/auth/join-project", form | {"again": "other"}).status_code == 422
    done = client.post("/auth/join-project", form)
    assert (done.status_code, "You are a member" in done.content.decode()) == (200, True)
    assert roles(project)[NIA] == "viewer"
    assert not Session.objects.filter(user__email=NIA).exists()
    assert client.post("/auth/join-project", form).status_code == 400


def test_the_page_of_who_has_an_account_is_a_button(
    api: Api, client: Client, alice: User, project: Project, postbox: Postbox,  # noqa: F811
    make_account: Callable[..., User],
) -> None:  # fmt: skip
    invite(api, project, alice)
    link = sent(postbox)
    make_account("nia")
    text = client.get(f"/auth/join-project?token={link}").content.decode()
    assert "You have an account" in text
    assert "password" not in text
    services.suspend_project(project.pk, reason="An incident", actor=audit.SYSTEM)
    assert client.get(f"/auth/join-project?token={link}").status_code == 403
    assert client.post("/auth/join-project", {"token": link}).status_code == 403
    services.resume_project(project.pk, actor=audit.SYSTEM)
    assert client.post("/auth/join-project", {"token": link}).status_code == 200
    assert roles(project)[NIA] == "developer"


def test_a_full_project_is_said_on_the_page(
    api: Api, client: Client, alice: User, bob: User, postbox: Postbox  # noqa: F811
) -> None:  # fmt: skip
    small = make_project(alice, "Small")
    invite(api, small, alice)
    link = sent(postbox)
    for number in range(plan_limits("free").members_per_project - 1):
        user = accounts.create_user(
            pool_id=None, email=f"m{number}@example.com", password=None, actor=audit.SYSTEM
        )  # fmt: skip
        Member.objects.create(project=small, user=user, role="viewer")
    form = {"token": link, "password": PASSWORD, "again": PASSWORD}
    page = client.post("/auth/join-project", form)
    assert page.status_code == 422
    assert "The plan allows 5 members" in page.content.decode()
    assert invitations.pending(small.pk).count() == 1
