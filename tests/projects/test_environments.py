"""Listing environments (contract section 4.4), and what `accounts` asks of the directory."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from accounts import audit
from accounts.directory.environments import directory
from accounts.models import User
from platform_site.identity.callers import Caller
from projects import services
from projects.directory import environments
from projects.directory.roles import BY_ROLE
from projects.models import Environment
from projects.provisioning import branching
from tests.projects.conftest import environment_of, key_for, make_project, token_of
from tests.support.client import Api

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


def test_every_environment_is_listed_by_name_with_version_and_status(api: Api, alice: User) -> None:
    project = make_project(alice)
    for name in ("zebra", "alpha", "Beta"):
        Environment.objects.create(project=project, name=name, parent=environment_of(project), pool_id="env_x")
    Environment.objects.create(project=project, name="going", status="deleting", pool_id="env_x")
    answer = api.get(f"/v1/projects/{project.pk}/environments", token=token_of(alice))
    assert answer.status == 200
    assert set(answer.json) == {"data"}
    assert [set(each) for each in answer.json["data"]] == [{"id", "name", "schema_version", "status"}] * 5
    assert [each["name"] for each in answer.json["data"]] == sorted(
        ["Beta", "alpha", "development", "production", "zebra"]
    )
    assert {each["name"]: each["status"] for each in answer.json["data"]}["production"] == "ready"
    assert {each["schema_version"] for each in answer.json["data"]} == {0}


def test_versions_are_read_from_the_region_in_one_go(api: Api, alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    project = make_project(alice, region="eu-west-1")
    asked: list[tuple[str, list[str]]] = []

    def reader(cluster: str, environment_ids: Sequence[str]) -> Mapping[str, int]:
        asked.append((cluster, sorted(environment_ids)))
        return {environment_of(project).pk: 7}

    monkeypatch.setattr(environments, "_schema_version_reader", None)
    environments.set_schema_version_reader(reader)
    answer = api.get(f"/v1/projects/{project.pk}/environments", token=token_of(alice))
    assert {each["name"]: each["schema_version"] for each in answer.json["data"]} == {"development": 0, "production": 7}
    assert asked == [("eu-west-1", sorted(project.environments.values_list("pk", flat=True)))]


def test_who_may_list_them(api: Api, alice: User, bob: User, charlie: User, make_account: Any) -> None:
    project = make_project(alice)
    production = environment_of(project)
    services.add_member(project.pk, email=bob.email, role="viewer", actor=audit.SYSTEM)
    user = make_account("uma", pool_id=production.pk)
    statuses = {
        "member": (token_of(bob), 200),
        "stranger": (token_of(charlie), 404),
        "app user": (token_of(user, production.pk), 200),
        "key": (key_for(production.pk, "environments:read"), 200),
        "key without the scope": (key_for(production.pk, "rows:read"), 403),
    }
    for who, (token, status) in statuses.items():
        assert api.get(f"/v1/projects/{project.pk}/environments", token=token).status == status, who
    other = make_project(alice, "Other")
    for who in ("app user", "key"):
        assert api.get(f"/v1/projects/{other.pk}/environments", token=statuses[who][0]).status == 404


def test_the_directory_knows_pools_and_what_a_caller_may_where(alice: User, bob: User, charlie: User) -> None:
    project = make_project(alice)
    production = environment_of(project)
    branch = Environment.objects.create(
        project=project, name="b", status="ready", parent=production, pool_id=production.pk
    )
    services.add_member(project.pk, email=bob.email, role="viewer", actor=audit.SYSTEM)
    ask = directory()
    assert {ask.environment_ref(each.pk).pool_id for each in (production, branch)} == {production.pk}
    for nothing in ("env_01h455vb4pex5vsknk084sn02q", "x", "", "\0"):
        assert ask.environment_ref(nothing) is None
        assert ask.environment_ref_for(Caller("account", alice.pk, frozenset(), account_id=alice.pk), nothing) is None
    for user, role in ((alice, "owner"), (bob, "viewer")):
        found = ask.environment_ref_for(Caller("account", user.pk, frozenset(), account_id=user.pk), branch.pk)
        assert found is not None
        assert (found[0].role, found[0].pool_id, found[1]) == (role, production.pk, BY_ROLE[role])
    assert ask.environment_ref_for(Caller("account", charlie.pk, frozenset(), account_id=charlie.pk), branch.pk) is None
    key = Caller("key", "key_x", frozenset({"rows:read"}), environment=branching.ref_of(project, production))
    assert ask.environment_ref_for(key, production.pk) == (key.environment, key.scopes)
    assert ask.environment_ref_for(key, branch.pk) is None
    of_account = Caller("key", "key_y", frozenset({"projects:read"}), account_id=alice.pk)
    found = ask.environment_ref_for(of_account, branch.pk)
    assert found is not None
    assert found[1] == {"projects:read"}
    services.delete_project(project.pk, actor=audit.SYSTEM)
    assert ask.environment_ref(production.pk) is None
    assert ask.environment_ref_for(Caller("account", alice.pk, frozenset(), account_id=alice.pk), production.pk) is None


def test_allowed_origins_reach_the_answers_of_that_environment(api: Api, alice: User) -> None:
    production = environment_of(make_project(alice))
    Environment.objects.filter(pk=production.pk).update(allowed_origins=["https://app.example.com"])
    key = key_for(production.pk, "projects:read")
    good = api.get("/v1/projects", token=key, headers={"Origin": "https://app.example.com"})
    evil = api.get("/v1/projects", token=key, headers={"Origin": "https://evil.example.com"})
    assert good.headers["Access-Control-Allow-Origin"] == "https://app.example.com"
    assert "Access-Control-Allow-Origin" not in evil.headers
