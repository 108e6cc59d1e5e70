"""Members of a project and their roles."""

from typing import Any

import pytest

from accounts import audit
from accounts.models import AuditEntry, User
from accounts.users import service as accounts
from projects import services
from projects.errors import LastOwner
from projects.models import Member, Project
from tests.projects.conftest import at_once, environment_of, key_for, make_project, token_of
from tests.support.client import Api
from tests.support.rate_limits import assert_within_one_window

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


def roles(project: Project) -> dict[str, str]:
    return dict(project.memberships.values_list("user__name", "role"))


def test_an_owner_adds_lists_changes_and_removes(api: Api, alice: User, bob: User, project: Project) -> None:
    token, address = token_of(alice), f"/v1/projects/{project.pk}/members"
    added = api.post(address, token=token, json={"email": " BOB@example.com ", "role": "viewer"})
    assert added.status == 201
    assert added.headers["Location"] == f"{address}/{bob.pk}"
    assert added.json | {"created_at": ""} == {
        "user_id": bob.pk, "email": "bob@example.com", "name": "Bob", "role": "viewer", "created_at": "",
    }  # fmt: skip
    listed = api.get(address, token=token)
    assert [(each["name"], each["role"]) for each in listed.json["data"]] == [("Alice", "owner"), ("Bob", "viewer")]
    changed = api.patch(f"{address}/{bob.pk}", token=token, json={"role": "developer"})
    assert (changed.status, changed.json["role"]) == (200, "developer")
    assert api.patch(f"{address}/{bob.pk}", token=token, json={}).json["role"] == "developer"
    assert api.delete(f"{address}/{bob.pk}", token=token).status == 204
    assert api.delete(f"{address}/{bob.pk}", token=token).status == 404
    assert roles(project) == {"Alice": "owner"}
    actions = set(AuditEntry.objects.filter(target_id=bob.pk).values_list("action", flat=True))
    assert {"member.added", "member.changed", "member.removed"} <= actions


def test_who_is_a_member_already_is_409(api: Api, alice: User, project: Project) -> None:
    answer = api.post(
        f"/v1/projects/{project.pk}/members", token=token_of(alice), json={"email": alice.email, "role": "viewer"}
    )
    assert (answer.status, answer.error) == (409, "conflict")
    assert roles(project) == {"Alice": "owner"}


def test_only_live_platform_accounts_become_members(
    api: Api, alice: User, bob: User, make_account: Any, project: Project
) -> None:
    make_account("uma", pool_id=environment_of(project).pk)
    accounts.change_user(bob, is_disabled=True, actor=audit.SYSTEM)
    for email in ("nobody@example.com", "uma@example.com", "bob@example.com"):
        answer = api.post(
            f"/v1/projects/{project.pk}/members", token=token_of(alice), json={"email": email, "role": "viewer"}
        )
        assert (answer.status, answer.fields) == (422, {"email": "unknown"})
    assert roles(project) == {"Alice": "owner"}


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({}, {"email": "required", "role": "required"}),
        ({"email": "x", "role": "viewer"}, {"email": "invalid_email"}),
        ({"email": "bob@example.com", "role": "admin"}, {"role": "not_among"}),
        ({"email": "bob@example.com", "role": "Owner"}, {"role": "not_among"}),
        ({"email": ["bob@example.com"], "role": None}, {"email": "invalid", "role": "null"}),
        ({"email": "bob@example.com", "role": "viewer", "project": "x"}, {"project": "unknown_field"}),
    ],
)
def test_bad_fields_are_named(
    api: Api, alice: User, bob: User, project: Project, body: Any, fields: dict[str, str]
) -> None:
    answer = api.post(f"/v1/projects/{project.pk}/members", token=token_of(alice), json=body)
    assert (answer.status, answer.fields) == (422, fields)
    assert roles(project) == {"Alice": "owner"}


def test_developers_and_viewers_look_and_may_leave_but_change_nobody(
    api: Api, alice: User, bob: User, charlie: User, project: Project
) -> None:
    address = f"/v1/projects/{project.pk}/members"
    for role in ("developer", "viewer"):
        services.add_member(project.pk, email=bob.email, role=role, actor=audit.SYSTEM)
        token = token_of(bob)
        assert api.get(address, token=token).status == 200
        assert api.post(address, token=token, json={"email": charlie.email, "role": "viewer"}).status == 403
        assert api.patch(f"{address}/{bob.pk}", token=token, json={"role": "owner"}).status == 403
        assert api.delete(f"{address}/{alice.pk}", token=token).status == 403
        assert roles(project) == {"Alice": "owner", "Bob": role}
        assert api.delete(f"{address}/{bob.pk}", token=token).status == 204
    stranger = token_of(charlie)
    for method, path in (
        ("GET", address),
        ("POST", address),
        ("PATCH", f"{address}/{alice.pk}"),
        ("DELETE", f"{address}/{charlie.pk}"),
    ):
        assert api.request(method, path, token=stranger, json={"role": "viewer"}).status == 404


def test_keys_and_app_users_learn_nothing_of_the_team(
    api: Api, alice: User, make_account: Any, project: Project
) -> None:
    production = environment_of(project)
    tokens = [
        key_for(production.pk, "projects:read", "environments:write"),
        key_for(None, "projects:read", "projects:create", account=alice),
        token_of(make_account("uma", pool_id=production.pk), production.pk),
    ]
    address = f"/v1/projects/{project.pk}/members"
    for token in tokens:
        for method, path in (("GET", address), ("POST", address), ("DELETE", f"{address}/{alice.pk}")):
            answer = api.request(method, path, token=token, json={"email": "bob@example.com", "role": "owner"})
            assert answer.status == 403
            assert "alice" not in answer.body.decode()


def test_a_project_keeps_an_owner(api: Api, alice: User, bob: User, project: Project) -> None:
    token, address = token_of(alice), f"/v1/projects/{project.pk}/members/{alice.pk}"
    assert api.delete(address, token=token).status == 409
    assert api.patch(address, token=token, json={"role": "viewer"}).status == 409
    with pytest.raises(LastOwner):
        accounts.delete_user(alice, actor=audit.SYSTEM)
    assert roles(project) == {"Alice": "owner"}
    services.add_member(project.pk, email=bob.email, role="owner", actor=audit.SYSTEM)
    accounts.delete_user(alice, actor=audit.SYSTEM)
    assert roles(project) == {"Bob": "owner"}


def test_two_owners_cannot_remove_each_other_at_once(api: Api, alice: User, bob: User, project: Project) -> None:
    services.add_member(project.pk, email=bob.email, role="owner", actor=audit.SYSTEM)
    tokens, victims = [token_of(alice), token_of(bob)], [bob, alice]
    answers = at_once(2, lambda n: api.delete(f"/v1/projects/{project.pk}/members/{victims[n].pk}", token=tokens[n]))
    assert sum(answer.status == 204 for answer in answers) == 1
    assert list(roles(project).values()) == ["owner"]


def test_the_plan_limits_members_also_when_they_come_at_once(api: Api, alice: User, make_account: Any) -> None:
    project = make_project(alice, "Small")
    token = token_of(alice)
    for number in range(8):
        make_account(f"m{number}")
    answers = at_once(
        8,
        lambda n: api.post(
            f"/v1/projects/{project.pk}/members", token=token, json={"email": f"m{n}@example.com", "role": "viewer"}
        ),
    )
    assert sorted(answer.status for answer in answers) == [201] * 4 + [422] * 4
    assert Member.objects.filter(project=project).count() == 5


def test_members_come_in_pages(api: Api, alice: User, make_account: Any, project: Project) -> None:
    for number in range(5):
        services.add_member(project.pk, email=make_account(f"m{number}").email, role="viewer", actor=audit.SYSTEM)
    token, address = token_of(alice), f"/v1/projects/{project.pk}/members"
    first = api.get(f"{address}?limit=4", token=token)
    rest = api.get(f"{address}?limit=4&cursor={first.json['next_cursor']}", token=token)
    assert [each["name"] for each in first.json["data"] + rest.json["data"]] == ["Alice", "M0", "M1", "M2", "M3", "M4"]
    other = make_project(alice, "Other")
    assert api.get(f"/v1/projects/{other.pk}/members?cursor={first.json['next_cursor']}", token=token).status == 422


def test_asking_who_has_an_account_is_counted_like_signing_in(
    api: Api, alice: User, make_account: Any, settings: Any
) -> None:
    """An owner learns that an email has no account: ten times a minute, over all projects, and not for a whole list."""
    settings.RATE_LIMIT_FACTOR = 1
    token = token_of(alice)

    def twelve() -> list[int]:
        pair = [make_project(alice), make_project(alice)]
        answers = [
            api.post(
                f"/v1/projects/{pair[number % 2].pk}/members",
                token=token,
                json={"email": f"n{number}@example.com", "role": "viewer"},
            )
            for number in range(12)
        ]
        assert answers[-1].status == 201 or int(answers[-1].headers["Retry-After"]) >= 1
        return [answer.status for answer in answers]

    assert_within_one_window(twelve, [422] * 10 + [429] * 2)


def test_an_app_user_sees_the_particulars_of_its_own_environment_alone(
    api: Api, alice: User, make_account: Any, project: Project
) -> None:
    """The list shows that there are others, as the contract says; not their origins and errors."""
    own, other = environment_of(project), environment_of(project, "development")
    token = token_of(make_account("uma", pool_id=own.pk), own.pk)
    address = f"/v1/projects/{project.pk}/environments"
    assert len(api.get(address, token=token).json["data"]) == 2
    assert api.get(f"{address}/{own.pk}", token=token).status == 200
    answer = api.get(f"{address}/{other.pk}", token=token)
    assert (answer.status, answer.error) == (403, "forbidden")
    assert "allowed_origins" not in answer.body.decode()
