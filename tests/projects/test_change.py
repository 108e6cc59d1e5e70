"""Looking at one project and changing it, and `GET /v1/limits`. Additive."""

from typing import Any

import pytest

from accounts import audit
from accounts.models import AuditEntry, User
from platform_site.identity.plans import plan_limits
from projects import services
from projects.directory import limits
from projects.models import Project
from tests.projects.conftest import environment_of, key_for, make_project, token_of
from tests.support.client import Api

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


def test_one_project_is_shown_with_its_environments_and_without_its_plan(api: Api, alice: User) -> None:
    project = make_project(alice, plan="team")
    answer = api.get(f"/v1/projects/{project.pk}", token=token_of(alice))
    assert answer.status == 200
    shown = {"id", "name", "region", "environments", "created_at", "suspended_at", "suspension_reason"}
    assert set(answer.json) == shown
    assert [each["name"] for each in answer.json["environments"]] == ["development", "production"]
    assert b"team" not in answer.body


def test_owners_and_developers_rename_and_change_the_plan(api: Api, alice: User, bob: User) -> None:
    project = make_project(alice)
    services.add_member(project.pk, email=bob.email, role="developer", actor=audit.SYSTEM)
    answer = api.patch(f"/v1/projects/{project.pk}", token=token_of(bob), json={"name": "Renamed", "plan": "pro"})
    assert (answer.status, answer.json["name"]) == (200, "Renamed")
    project.refresh_from_db()
    assert (project.name, project.plan) == ("Renamed", "pro")
    assert AuditEntry.objects.get(action="project.changed").detail == {"name": "Renamed", "plan": "pro"}
    # Nothing given, or nothing different: 200, and nothing is written.
    for body in ({}, {"name": "Renamed"}, {"plan": "pro"}):
        assert api.patch(f"/v1/projects/{project.pk}", token=token_of(alice), json=body).status == 200
    assert AuditEntry.objects.filter(action="project.changed").count() == 1


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({"name": ""}, {"name": "blank"}),
        ({"name": None}, {"name": "null"}),
        ({"name": "x" * 65}, {"name": "too_long"}),
        ({"plan": "gold"}, {"plan": "not_among"}),
        ({"region": "eu-west-1"}, {"region": "unknown_field"}),
        ({"id": "prj_x", "name": "x"}, {"id": "unknown_field"}),
        ([], {"$body": "not_an_object"}),
    ],
)
def test_bad_changes_are_named_and_change_nothing(api: Api, alice: User, body: Any, fields: dict[str, str]) -> None:
    project = make_project(alice)
    answer = api.patch(f"/v1/projects/{project.pk}", token=token_of(alice), json=body)
    assert (answer.status, answer.fields) == (422, fields)
    assert Project.objects.get().name == "Tracker"


def test_viewers_keys_and_app_users_change_nothing(api: Api, alice: User, bob: User, make_account: Any) -> None:
    project = make_project(alice)
    production = environment_of(project)
    services.add_member(project.pk, email=bob.email, role="viewer", actor=audit.SYSTEM)
    for token in (
        token_of(bob),
        key_for(production.pk, "projects:read", "environments:write"),
        token_of(make_account("uma", pool_id=production.pk), production.pk),
    ):
        assert api.patch(f"/v1/projects/{project.pk}", token=token, json={"name": "Mine"}).status == 403
    assert Project.objects.get().name == "Tracker"
    assert api.patch(
        f"/v1/projects/{project.pk}", token=key_for(None, "projects:create", account=alice), json={"name": "Ours"}
    ).status == 200  # fmt: skip


def test_limits_are_those_of_the_plan_that_the_call_is_under(api: Api, alice: User, make_account: Any) -> None:
    project = make_project(alice, plan="pro")
    production = environment_of(project)
    key = key_for(production.pk, "rows:read")
    answer = api.get("/v1/limits", token=token_of(alice))
    assert (answer.json["project_id"], answer.json["environment_id"]) == (project.pk, production.pk)
    shown = answer.json["limits"]
    pro = plan_limits("pro")
    assert shown["projects_per_account"] == {"limit": pro.projects_per_account, "used": 1}
    assert shown["members_per_project"] == {"limit": pro.members_per_project, "used": 1}
    assert shown["preview_branches_per_project"] == {"limit": pro.preview_branches_per_project, "used": 0}
    assert shown["keys_per_environment"] == {"limit": pro.keys_per_environment, "used": 1}
    for name in ("app_users", "tables", "webhooks", "functions"):
        assert shown[f"{name}_per_environment"]["used"] == 0, name
    assert shown["requests_per_minute"] == {"limit": pro.requests_per_minute}
    assert api.get("/v1/limits", token=key).json["limits"]["keys_per_environment"]["used"] == 1
    user = api.get("/v1/limits", token=token_of(make_account("uma", pool_id=production.pk), production.pk)).json
    assert not any("used" in limit for limit in user["limits"].values())


def test_an_account_that_names_nothing_sees_its_own_limits(api: Api, charlie: User) -> None:
    answer = api.get("/v1/limits", token=token_of(charlie))
    assert (answer.json["project_id"], answer.json["environment_id"]) == (None, None)
    assert answer.json["limits"]["projects_per_account"] == {"limit": 20, "used": 0}
    assert "used" not in answer.json["limits"]["members_per_project"]


def test_a_counter_is_for_a_limit_that_exists() -> None:
    with pytest.raises(ValueError, match="no limit is called 'beds'"):
        limits.set_usage_counter("beds", lambda environment: 0)
