"""Deleting a project (contract section 4.3): gone for everyone at once, and gone from PostgreSQL for good."""

from functools import partial
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from accounts import audit
from accounts.models import AuditEntry, ServerKey, Session, User
from platform_site.embedded import postgres as embedded_postgres
from platform_site.identity import ids
from projects import services, tasks
from projects.models import Environment, Member, Project
from projects.provisioning import deletion as project_deletion
from projects.provisioning import schemas
from tests.projects.conftest import (
    at_once,
    environment_of,
    key_for,
    make_project,
    schemas_in,
    token_of,
)
from tests.support.client import Api
from tests.support.timing import are_indistinguishable, medians

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


def test_everything_goes_and_nothing_else(api: Api, alice: User, make_account: Any) -> None:
    doomed, kept = make_project(alice, "Doomed"), make_project(alice, "Kept")
    production = environment_of(doomed)
    user = make_account("uma", pool_id=production.pk)
    key, session = key_for(production.pk, "rows:read"), token_of(user, production.pk)
    with connections["us-east-1"].cursor() as cursor:
        cursor.execute(f'CREATE TABLE "{production.pk}".tasks (id text PRIMARY KEY)')
    token = token_of(alice)
    answer = api.delete(f"/v1/projects/{doomed.pk}", token=token)
    assert (answer.status, answer.body) == (204, b"")
    assert sorted(schemas_in("us-east-1")) == sorted(kept.environments.values_list("pk", flat=True))
    assert list(Project.objects.all()) == [kept]
    assert Environment.objects.count() == 2
    assert Member.objects.count() == 1
    assert not ServerKey.objects.exists()
    assert not User.objects.filter(environment_id=production.pk).exists()
    assert not Session.objects.filter(environment_id=production.pk).exists()
    assert AuditEntry.objects.get(action="project.deleted").detail["name"] == "Doomed"
    assert api.get(f"/v1/projects/{doomed.pk}", token=token).status == 404
    assert api.get(f"/v1/projects/{doomed.pk}/environments", token=token).status == 404
    assert api.delete(f"/v1/projects/{doomed.pk}", token=token).status == 404
    assert [project["id"] for project in api.get("/v1/projects", token=token).json["data"]] == [kept.pk]
    for dead in (key, session):
        assert api.get("/v1/projects", token=dead).status == 401


def test_only_owners_delete(api: Api, alice: User, bob: User, charlie: User) -> None:
    project = make_project(alice)
    production = environment_of(project)
    member = services.add_member(project.pk, email=bob.email, role="viewer", actor=audit.SYSTEM)
    tokens = {
        "viewer": (token_of(bob), 403),
        "stranger": (token_of(charlie), 404),
        "environment's key": (key_for(production.pk, "projects:read"), 403),
        "account's key without the scope": (key_for(None, "projects:read", account=alice), 403),
        "viewer's account key": (key_for(None, "projects:delete", account=bob), 403),
        "stranger's account key": (key_for(None, "projects:delete", account=charlie), 404),
    }
    for who, (token, status) in tokens.items():
        answer = api.delete(f"/v1/projects/{project.pk}", token=token)
        assert answer.status == status, who
        assert answer.error == {403: "forbidden", 404: "not_found"}[status]
    services.change_member(project.pk, member.user_id, role="developer", actor=audit.SYSTEM)
    assert api.delete(f"/v1/projects/{project.pk}", token=tokens["viewer"][0]).status == 403
    assert api.delete(f"/v1/projects/{project.pk}").status == 401
    assert len(schemas_in("us-east-1")) == 2
    assert api.delete(f"/v1/projects/{project.pk}", token=key_for(None, "projects:delete", account=alice)).status == 204


@pytest.mark.parametrize(
    "project_id",
    ["prj_01h455vb4pex5vsknk084sn02q", "nonsense", "prj_", "PRJ_01h455vb4pex5vsknk084sn02q", "%00", "%2e%2e", "é",
     "prj_01h455vb4pex5vsknk084sn02q%20", "'; DROP TABLE projects_project; --", "x" * 5000],
)  # fmt: skip
def test_what_is_no_project_of_the_callers_is_the_same_404(
    api: Api, alice: User, charlie: User, project_id: str
) -> None:
    hidden = make_project(charlie)
    token = token_of(alice)
    for method, suffix in (("GET", ""), ("DELETE", ""), ("PATCH", ""), ("GET", "/environments"), ("GET", "/members")):
        answers = [
            api.request(method, f"/v1/projects/{each}{suffix}", token=token, json={"name": "x"})
            for each in (project_id, hidden.pk)
        ]
        assert [answer.status for answer in answers] == [404, 404], (method, suffix)
        if project_id.startswith("prj_01h455vb4pex5vsknk084sn02q"):
            first, second = (answer.json["error"] | {"request_id": None} for answer in answers)
            assert first == second
    assert Project.objects.live().count() == 1


def test_two_deletions_at_once_are_one(api: Api, alice: User) -> None:
    project = make_project(alice)
    token = token_of(alice)
    answers = at_once(8, lambda n: api.delete(f"/v1/projects/{project.pk}", token=token))
    assert sorted(answer.status for answer in answers) == [204] + [404] * 7
    assert schemas_in("us-east-1") == []


@pytest.mark.exhaustive
def test_concurrent_creations_and_deletions_leave_only_answered_projects(api: Api, alice: User) -> None:
    token = token_of(alice)
    doomed = [make_project(alice, f"Old {n}", plan="team", region="eu-west-1") for n in range(25)]

    def one(number: int) -> Any:
        body = {"name": f"New {number}", "plan": "team", "region": "eu-west-1"}
        for _ in range(10):
            if number % 2:
                answer = api.delete(f"/v1/projects/{doomed[number // 2].pk}", token=token)
            else:
                answer = api.post("/v1/projects", token=token, json=body)
            if answer.status != 503:  # a machine too busy says so, and nothing of that try may be left either
                break
        return answer

    answers = at_once(50, one)
    assert {answer.status for answer in answers[::2]} == {201}
    assert {answer.status for answer in answers[1::2]} == {204}
    tasks.finish_and_clean()
    made = {environment["id"] for answer in answers[::2] for environment in answer.json["environments"]}
    assert set(schemas_in("eu-west-1")) == made
    assert Project.objects.count() == 25


def test_a_large_project_is_left_to_a_worker_and_its_tables_go_in_batches(
    api: Api, alice: User, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.DELETION_GRACE_SECONDS = 0
    project = make_project(alice)
    production = environment_of(project)
    with connections["us-east-1"].cursor() as cursor:
        for number in range(130):
            cursor.execute(f'CREATE TABLE "{production.pk}".t{number} (id int PRIMARY KEY)')
        cursor.execute(f'ALTER TABLE "{production.pk}".t0 ADD FOREIGN KEY (id) REFERENCES "{production.pk}".t129')
    assert api.delete(f"/v1/projects/{project.pk}", token=token_of(alice)).status == 204
    assert schemas.count_tables(production.pk, "us-east-1") == 130  # not within the request
    assert not Project.objects.live().exists()
    assert schemas._drop_some_tables(production.pk, "us-east-1")
    assert schemas.count_tables(production.pk, "us-east-1") == 80
    tasks.finish_deletion(project.pk)
    assert schemas_in("us-east-1") == []
    assert not Project.objects.exists()


def test_a_table_that_is_being_read_delays_only_the_dropping(api: Api, alice: User, settings: Any) -> None:
    settings.DELETION_GRACE_SECONDS = 0
    project = make_project(alice)
    production = environment_of(project)
    with connections["us-east-1"].cursor() as cursor:
        cursor.execute(f'CREATE TABLE "{production.pk}".tasks (id text PRIMARY KEY)')
    with embedded_postgres.connect(django_settings.LAYOUT, connections["us-east-1"].settings_dict["NAME"]) as reader:
        with reader.transaction():
            reader.execute(f'TABLE "{production.pk}".tasks')
            assert api.delete(f"/v1/projects/{project.pk}", token=token_of(alice)).status == 204
            assert production.pk in schemas_in("us-east-1")
            tasks.finish_and_clean()
            assert production.pk in schemas_in("us-east-1")
    tasks.finish_and_clean()
    assert schemas_in("us-east-1") == []
    assert not Project.objects.exists()


def test_what_is_not_marked_is_never_finished(alice: User) -> None:
    project = make_project(alice)
    assert project_deletion.finish(project.pk) is False
    assert len(schemas_in("us-east-1")) == 2


def test_hidden_and_unknown_projects_are_asked_for_by_the_same_statements(api: Api, alice: User, charlie: User) -> None:
    def statements(project_id: str) -> list[str]:
        with CaptureQueriesContext(connection) as asked:
            assert api.get(f"/v1/projects/{project_id}/environments", token=token).status == 404
        return [query["sql"].replace(project_id, "…") for query in asked.captured_queries]

    hidden, token = make_project(charlie), token_of(alice)
    statements(hidden.pk)  # what is looked up once a second is now known
    assert statements(hidden.pk) == statements(ids.new("prj")) != []


@pytest.mark.slow
def test_hidden_and_unknown_projects_cannot_be_told_apart_by_the_clock(api: Api, alice: User, charlie: User) -> None:
    token = token_of(alice)
    took = medians(
        {
            project_id: partial(api.get, f"/v1/projects/{project_id}/environments", token=token)
            for project_id in (make_project(charlie).pk, ids.new("prj"))
        }
    )
    assert are_indistinguishable(took), took
