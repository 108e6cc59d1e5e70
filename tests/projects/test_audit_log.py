"""`GET /v1/audit`: an owner reads who did what in the project, and no other project's entries.

The attackers here: a developer of the project, the owner of another one, keys of every kind, and an owner who looks for
credentials in it or for what colleagues do with their own accounts.
"""

from typing import Any

import pytest

from accounts import audit
from accounts.models import AuditEntry, User
from projects import services
from projects.models import Environment, Project
from tests.projects.conftest import (
    RoundTrips,
    environment_of,
    key_for,
    make_project,
    publishable_key_for,
    token_of,
)
from tests.support.client import Answer, Api

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


def log(api: Api, project: Project, by: User, query: str = "") -> Answer:
    return api.get(f"/v1/audit?project={project.pk}{query}", token=token_of(by))


def actions(answer: Answer) -> list[str]:
    assert answer.status == 200, answer.json
    return [entry["action"] for entry in answer.json["data"]]


def write(action: str, target: str | None = None, **facts: Any) -> AuditEntry:
    return audit.record(action, target, actor=facts.pop("actor", audit.SYSTEM), **facts)


@pytest.fixture
def others(bob: User) -> Project:
    """Bob's project."""
    return make_project(bob, "Other", plan="pro")


def test_an_owner_sees_who_did_what(api: Api, alice: User, project: Project, production: Environment) -> None:
    body = {"name": "CI", "environment_id": production.pk, "scopes": ["rows:read"]}
    made = api.post("/v1/keys", token=token_of(alice), json=body)
    answer = log(api, project, alice)
    assert actions(answer) == ["key.issued", "project.created"]
    entry = answer.json["data"][0]
    assert entry.pop("id").startswith("aud_")
    assert entry.pop("at").endswith("Z")
    assert entry == {
        "action": "key.issued",
        "actor": {"kind": "account", "id": alice.pk},
        "target_id": made.json["id"],
        "environment_id": production.pk,
        "detail": {"name": "CI", "scopes": ["rows:read"]},
        "request_id": made.headers["X-Request-Id"],
    }
    assert made.json["secret"] not in answer.body.decode()


def test_entries_of_an_environment_that_name_no_project_are_among_them(
    api: Api, alice: User, project: Project, production: Environment
) -> None:
    write("session.started", environment_id=production.pk)
    assert actions(log(api, project, alice)) == ["session.started", "project.created"]
    assert actions(log(api, project, alice, f"&environment={production.pk}")) == ["session.started"]
    assert actions(log(api, project, alice, f"&environment={environment_of(project, 'development').pk}")) == []


def test_other_projects_entries_are_never_among_them(
    api: Api, alice: User, bob: User, project: Project, others: Project
) -> None:
    theirs = environment_of(others)
    write("key.issued", "shared", project_id=others.pk, environment_id=theirs.pk, actor=audit.Actor.of(alice))
    write("session.started", "shared", environment_id=theirs.pk, actor=audit.Actor.of(alice))
    write("user.created", "shared", actor=audit.Actor.of(alice))  # of the platform
    for query in ("", f"&environment={theirs.pk}", f"&actor={alice.pk}", "&target=shared", "&action=key.*"):
        found = log(api, project, alice, query)
        assert not {"key.issued", "session.started", "user.created"} & set(actions(found)), query
    assert log(api, others, alice).error == "not_found"
    assert log(api, project, bob).error == "not_found"
    assert actions(log(api, others, bob)) == ["session.started", "key.issued", "project.created"]


def test_a_cursor_opens_no_other_project_nor_another_filter(
    api: Api, alice: User, bob: User, project: Project, others: Project
) -> None:
    write("key.issued", project_id=project.pk)
    cursor = log(api, project, alice, "&limit=1").json["next_cursor"]
    assert actions(log(api, project, alice, f"&limit=1&cursor={cursor}")) == ["project.created"]
    assert log(api, others, bob, f"&limit=1&cursor={cursor}").fields == {"cursor": "invalid_cursor"}
    assert log(api, project, alice, f"&action=key.*&cursor={cursor}").fields == {"cursor": "invalid_cursor"}


@pytest.mark.parametrize("role", ["developer", "viewer"])
def test_only_owners_read_it(api: Api, alice: User, bob: User, project: Project, role: str) -> None:
    services.add_member(project.pk, email=bob.email, role=role, actor=audit.SYSTEM)
    answer = log(api, project, bob)
    assert (answer.status, answer.error) == (403, "forbidden")


def test_no_key_and_no_user_reads_it(
    api: Api, alice: User, project: Project, production: Environment, make_account: Any
) -> None:
    user = make_account("ada", pool_id=production.pk)
    for token in (
        key_for(production.pk, "rows:read", "users:manage", "keys:manage"),
        key_for(None, "projects:read", "projects:create", "projects:delete", account=alice),
        publishable_key_for(production.pk),
        token_of(user, production.pk),
    ):
        answer = api.get(f"/v1/audit?project={project.pk}", token=token)
        assert (answer.status, answer.error) == (403, "forbidden")
    assert api.get(f"/v1/audit?project={project.pk}").status == 401


def test_filters(api: Api, alice: User, project: Project, production: Environment) -> None:
    first = write("key.issued", "key_a", project_id=project.pk, actor=audit.Actor.of(alice))
    second = write("key.revoked", "key_a", project_id=project.pk, environment_id=production.pk)
    AuditEntry.objects.filter(pk=first.pk).update(request_id="req_mine")
    first.refresh_from_db()
    second.refresh_from_db()
    for query, found in {
        "&action=key.issued": ["key.issued"],
        "&action=key.*": ["key.revoked", "key.issued"],
        "&action=ke.*": [],
        "&target=key_a": ["key.revoked", "key.issued"],
        f"&actor={alice.pk}": ["key.issued"],
        "&request_id=req_mine": ["key.issued"],
        f"&since={second.at:%Y-%m-%dT%H:%M:%S.%fZ}": ["key.revoked"],
        f"&until={second.at:%Y-%m-%dT%H:%M:%S.%f+00:00}&action=key.*": ["key.issued"],
        f"&environment={production.pk}&action=key.*": ["key.revoked"],
    }.items():
        assert actions(log(api, project, alice, query)) == found, query


@pytest.mark.parametrize(
    ("query", "field", "code"),
    [
        ("?limit=5", "project", "required"),
        ("?project=tracker", "project", "invalid_id"),
        ("?project={p}&environment=production", "environment", "invalid_id"),
        ("?project={p}&action=key", "action", "malformed"),
        ("?project={p}&action=%25.*", "action", "malformed"),
        ("?project={p}&action=key.is*", "action", "malformed"),
        ("?project={p}&since=yesterday", "since", "invalid"),
        ("?project={p}&until=2026-01-01T00:00:00", "until", "no_zone"),
        ("?project={p}&target=" + "x" * 65, "target", "too_long"),
        ("?project={p}&target=%00", "target", "invalid_characters"),
        ("?project={p}&limit=0", "limit", "out_of_range"),
        ("?project={p}&cursor=x", "cursor", "invalid_cursor"),
        ("?project={p}&detail=x", "detail", "unknown_parameter"),
    ],
)
def test_bad_parameters_are_named(api: Api, alice: User, project: Project, query: str, field: str, code: str) -> None:
    answer = api.get("/v1/audit" + query.format(p=project.pk), token=token_of(alice))
    assert (answer.status, answer.fields) == (422, {field: code})


def test_urls_end_with_their_host_and_staff_have_no_id(
    api: Api, alice: User, bob: User, project: Project, production: Environment
) -> None:
    url = "https://user:pa55@hooks.example.com/services/T0/B0/tok3n?key=s3cret"
    write("webhook.created", project_id=project.pk, url=url, actor=audit.Actor.staff(bob))
    write("webhook.deleted", project_id=project.pk, url="https://[broken")
    answer = log(api, project, alice, "&action=webhook.*")
    assert [entry["detail"] for entry in answer.json["data"]] == [{"url": ""}, {"url": "https://hooks.example.com"}]
    assert [entry["actor"]["id"] for entry in answer.json["data"]] == [None, None]
    for secret in ("pa55", "tok3n", "s3cret", bob.pk):
        assert secret not in answer.body.decode()


def test_what_members_do_with_their_own_accounts_is_not_the_projects(
    api: Api, alice: User, bob: User, project: Project, production: Environment
) -> None:
    services.add_member(project.pk, email=bob.email, role="developer", actor=audit.SYSTEM)
    changed = api.patch("/v1/auth/me", token=token_of(bob), environment=production.pk, json={"name": "Robert"})
    assert changed.status == 200
    assert AuditEntry.objects.filter(request_id=changed.headers["X-Request-Id"]).exists()
    assert actions(log(api, project, alice)) == ["member.added", "project.created"]
    assert api.delete(f"/v1/projects/{project.pk}/members/{bob.pk}", token=token_of(bob)).status == 204
    assert actions(log(api, project, alice, "&limit=1")) == ["member.removed"]


def test_pages_miss_and_repeat_nothing_and_cost_the_same(
    api: Api, alice: User, project: Project, production: Environment, trips: RoundTrips
) -> None:
    for number in range(12):
        write("key.issued", project_id=project.pk if number % 2 else None, environment_id=production.pk)
    expected = list(AuditEntry.objects.filter(action="key.issued").order_by("-at", "-id").values_list("pk", flat=True))
    token, found, cursor = token_of(alice), [], ""
    while cursor is not None:
        trips.reset()
        address = f"/v1/audit?project={project.pk}&action=key.*&limit=5{cursor and '&cursor=' + cursor}"
        page = api.get(address, token=token).json
        found += [entry["id"] for entry in page["data"]]
        cursor = page["next_cursor"]
    assert found == expected
    assert len(trips.statements) <= 4


def test_a_suspended_project_can_still_be_read_and_a_deleted_one_is_gone(
    api: Api, alice: User, project: Project
) -> None:
    services.suspend_project(project.pk, reason="unpaid", actor=audit.SYSTEM)
    assert actions(log(api, project, alice))[0] == "project.suspended"
    services.resume_project(project.pk, actor=audit.SYSTEM)
    services.delete_project(project.pk, actor=audit.SYSTEM)
    assert log(api, project, alice).status == 404
