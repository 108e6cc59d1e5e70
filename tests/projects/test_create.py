"""Creating a project (contract section 4.1): all of it is there when it is answered, or nothing."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings
from django.db import connection, connections

from accounts.models import AuditEntry, User
from platform_site.embedded import postgres as embedded_postgres
from projects.models import Environment, Member, Project
from tests.projects.conftest import REGIONS, at_once, environment_of, key_for, make_project, schemas_in, token_of
from tests.support.client import Answer, Api
from tests.support.doc_examples import is_like
from tests.support.service import ROOT

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


def create(api: Api, token: str, body: Any = None, **how: Any) -> Answer:
    return api.post("/v1/projects", token=token, json={"name": "Tracker"} if body is None else body, **how)


def nothing_was_made() -> bool:
    return not Project.objects.exists() and not Environment.objects.exists() and not any(map(schemas_in, REGIONS))


def test_created_project_has_two_environments_with_schemas(api: Api, alice: User) -> None:
    answer = create(api, token_of(alice))
    assert answer.status == 201
    assert set(answer.json) == {"id", "name", "region", "environments"}
    assert re.fullmatch(r"prj_[0-9a-z]{26}", answer.json["id"])
    assert answer.headers["Location"] == f"/v1/projects/{answer.json['id']}"
    assert (answer.json["name"], answer.json["region"]) == ("Tracker", "us-east-1")
    assert [set(environment) for environment in answer.json["environments"]] == [{"id", "name"}] * 2
    assert [environment["name"] for environment in answer.json["environments"]] == ["development", "production"]
    assert schemas_in("us-east-1") == sorted(environment["id"] for environment in answer.json["environments"])
    project = Project.objects.get()
    assert (project.pk, project.plan, project.cluster) == (answer.json["id"], "free", "us-east-1")
    assert Member.objects.get(project=project).role == "owner"
    assert AuditEntry.objects.get(action="project.created").target_id == project.pk


def test_development_is_open_to_this_machine_and_production_is_closed(api: Api, alice: User) -> None:
    environments = {each["name"]: each["id"] for each in create(api, token_of(alice)).json["environments"]}
    path = f"/v1/projects/{Project.objects.get().pk}/environments/"

    def defaults(name: str) -> tuple[list[str], str]:
        found = api.get(path + environments[name], token=token_of(alice)).json
        settings = api.get("/v1/auth/settings", token=token_of(alice), environment=environments[name]).json
        return found["allowed_origins"], settings["sign_up"]

    assert defaults("development") == (["http://localhost:*", "http://127.0.0.1:*"], "open")
    assert defaults("production") == ([], "off")
    branch = api.post(path.rstrip("/"), token=token_of(alice), json={"name": "fix", "from": "production"}).json
    assert branch["allowed_origins"] == []


@pytest.mark.parametrize("region", REGIONS)
def test_the_schemas_are_in_the_region_that_was_chosen_and_in_no_other(api: Api, alice: User, region: str) -> None:
    answer = create(api, token_of(alice), {"name": "Tracker", "region": region, "plan": "team"})
    assert (answer.status, answer.json["region"]) == (201, region)
    assert {each: len(schemas_in(each)) for each in REGIONS} == {each: 2 * (each == region) for each in REGIONS}
    assert "team" not in answer.body.decode()  # the plan is never returned
    assert Project.objects.get().plan == "team"


@pytest.mark.parametrize(
    "name",
    [
        "x",
        "x" * 64,
        "é" * 64,
        "🧭" * 64,
        "👩‍👩‍👧‍👦",
        " padded ",
        "a\nb",
        "'; DROP TABLE projects_project; --",
        "%s %d {} \\",
        "null",
    ],
)
def test_name_of_up_to_64_characters_is_returned_unchanged(api: Api, alice: User, name: str) -> None:
    answer = create(api, token_of(alice), {"name": name})
    assert (answer.status, answer.json["name"]) == (201, name)
    assert Project.objects.get().name == name


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({}, {"name": "required"}),
        ({"name": None}, {"name": "null"}),
        ({"name": ""}, {"name": "blank"}),
        ({"name": " "}, {"name": "blank"}),
        ({"name": " \t\n\u3000 "}, {"name": "blank"}),
        ({"name": "a\x1b[2K"}, {"name": "malformed"}),
        ({"name": "a\rb"}, {"name": "malformed"}),
        ({"name": "a\x9bb"}, {"name": "malformed"}),
        ({"name": "x" * 65}, {"name": "too_long"}),
        ({"name": "🧭" * 65}, {"name": "too_long"}),
        ({"name": "x" * 500_000}, {"name": "too_long"}),
        ({"name": 5}, {"name": "invalid"}),
        ({"name": True}, {"name": "invalid"}),
        ({"name": ["x"]}, {"name": "invalid"}),
        ({"name": {"a": "x"}}, {"name": "invalid"}),
        ({"name": "x", "region": None}, {"region": "null"}),
        ({"name": "x", "region": ""}, {"region": "not_among"}),
        ({"name": "x", "region": "US-EAST-1"}, {"region": "not_among"}),
        ({"name": "x", "region": "us-east-1 "}, {"region": "not_among"}),
        ({"name": "x", "region": 1}, {"region": "invalid"}),
        ({"name": "x", "region": ["us-east-1"]}, {"region": "invalid"}),
        ({"name": "x", "region": "default"}, {"region": "not_among"}),
        ({"name": "x", "plan": None}, {"plan": "null"}),
        ({"name": "x", "plan": "enterprise"}, {"plan": "not_among"}),
        ({"name": "x", "plan": 0}, {"plan": "invalid"}),
        ({"name": "x", "plan": {}}, {"plan": "invalid"}),
        ({"name": "", "region": "mars", "plan": "gold"}, {"name": "blank", "region": "not_among", "plan": "not_among"}),
        ([], {"$body": "not_an_object"}),
        ([{"name": "x"}], {"$body": "not_an_object"}),
        (5, {"$body": "not_an_object"}),
        ("name", {"$body": "not_an_object"}),
    ],
)  # fmt: skip
def test_every_bad_field_is_named_and_nothing_is_made(api: Api, alice: User, body: Any, fields: dict[str, str]) -> None:
    answer = create(api, token_of(alice), body)
    assert (answer.status, answer.error) == (422, "validation_failed")
    assert answer.fields == fields
    assert nothing_was_made()


def test_the_example_on_the_page_of_errors_is_what_is_answered(api: Api, alice: User) -> None:
    page = (ROOT / "docs" / "reference" / "errors.md").read_text()
    shown, _ = json.JSONDecoder().raw_decode(page, page.index('{"error"'))
    assert is_like(shown, create(api, token_of(alice), {"name": "x" * 65}).json)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"name=x",
        b'{"name": "x\\u0000"}',
        b'{"name": "\\ud800"}',
        b'{"name": "\xff"}',
        b'{"name": "x", "name": "y"}',
        b'{"name": NaN}',
        b'{"name": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        b'\xef\xbb\xbf{"name": "x"}',
    ],
)
def test_a_body_that_is_no_json_is_400_and_nothing_is_made(api: Api, alice: User, body: bytes) -> None:
    answer = api.post("/v1/projects", token=token_of(alice), body=body, content_type="application/json")
    assert (answer.status, answer.error) == (400, "invalid_request")
    assert nothing_was_made()


def test_two_megabytes_are_413_and_a_form_is_415(api: Api, alice: User) -> None:
    token = token_of(alice)
    assert api.post("/v1/projects", token=token, json={"name": "x" * 2_000_000}).status == 413
    form = api.post("/v1/projects", token=token, body=b"name=x", content_type="application/x-www-form-urlencoded")
    assert form.status == 415
    assert nothing_was_made()


@pytest.mark.parametrize(
    "extra",
    [
        {"id": "prj_01h455vb4pex5vsknk084sn02q"},
        {"created_at": "2020-01-01T00:00:00Z"},
        {"created_by": "usr_01h455vb4pex5vsknk084sn02q"},
        {"cluster": "eu-west-1"},
        {"deleted_at": None},
        {"environments": []},
        {"members": [{"role": "owner"}]},
        {"__proto__": {"plan": "team"}},
    ],
)
def test_unknown_fields_of_other_objects_are_refused(api: Api, alice: User, extra: dict[str, Any]) -> None:
    answer = create(api, token_of(alice), {"name": "x"} | extra)
    assert (answer.status, answer.fields) == (422, dict.fromkeys(extra, "unknown_field"))
    assert nothing_was_made()


# ── Who ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_a_good_token_it_is_401(api: Api, alice: User) -> None:
    assert api.post("/v1/projects", json={"name": "x"}).status == 401
    assert create(api, "nonsense").status == 401
    assert nothing_was_made()


def test_an_accounts_key_needs_the_scope_and_makes_its_accounts_project(api: Api, alice: User) -> None:
    refused = create(api, key_for(None, "projects:read", account=alice))
    assert (refused.status, refused.error) == (403, "forbidden")
    assert nothing_was_made()
    assert create(api, key_for(None, "projects:create", account=alice)).status == 201
    assert Member.objects.get().user_id == alice.pk


def test_environment_keys_and_app_users_make_no_projects(api: Api, alice: User, make_account: Any) -> None:
    production = environment_of(make_project(alice))
    user = make_account("uma", pool_id=production.pk)
    for token in (key_for(production.pk, "projects:read", "environments:write"), token_of(user, production.pk)):
        assert create(api, token).status == 403
    assert Project.objects.count() == 1


# ── Once, and not too often ─────────────────────────────────────────────────────────────────────────────────────────


def test_the_same_idempotency_key_makes_one_project(api: Api, alice: User) -> None:
    token, key = token_of(alice), {"Idempotency-Key": "order-1"}
    first = create(api, token, headers=key)
    again = create(api, token, headers=key)
    assert first.status == again.status == 201
    assert again.body == first.body
    assert again.headers["Idempotency-Replayed"] == "true"
    assert again.headers["Location"] == first.headers["Location"]
    assert create(api, token, {"name": "Other"}, headers=key).status == 422
    assert Project.objects.count() == 1
    assert len(schemas_in("us-east-1")) == 2


def test_twenty_twins_at_once_make_one_project(api: Api, alice: User) -> None:
    token = token_of(alice)
    answers = at_once(20, lambda n: create(api, token, headers={"Idempotency-Key": "twins"}))
    assert {answer.status for answer in answers} <= {201, 409}
    bodies = {answer.body for answer in answers if answer.status == 201}
    assert len(bodies) == 1
    assert Project.objects.count() == 1
    assert len(schemas_in("us-east-1")) == 2


@pytest.mark.exhaustive
def test_thirty_at_once_under_a_quota_of_twenty_make_exactly_twenty(api: Api, alice: User) -> None:
    token = token_of(alice)
    answers = at_once(30, lambda n: create(api, token, {"name": f"Project {n}"}))
    assert sorted(answer.status for answer in answers) == [201] * 20 + [422] * 10
    assert {answer.error for answer in answers if answer.status == 422} == {"quota_exceeded"}
    assert Project.objects.count() == 20
    assert len(schemas_in("us-east-1")) == 40
    # The quota is per plan; a deleted project frees its share.
    assert create(api, token, {"name": "x", "plan": "pro"}).status == 201
    assert create(api, token).status == 422
    freed = next(answer for answer in answers if answer.status == 201).json["id"]
    assert api.delete(f"/v1/projects/{freed}", token=token).status == 204
    assert create(api, token).status == 201


def test_a_change_of_plan_is_no_way_around_the_quota(api: Api, alice: User) -> None:
    token = token_of(alice)
    for n in range(20):
        make_project(alice, f"Project {n}")
    pro = make_project(alice, plan="pro")
    answer = api.patch(f"/v1/projects/{pro.pk}", token=token, json={"plan": "free"})
    assert (answer.status, answer.error) == (422, "quota_exceeded")
    pro.refresh_from_db()
    assert pro.plan == "pro"


# ── An unavailable region ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def eu_is_away() -> Iterator[None]:
    """The region's database takes no connections, and those it had are ended."""
    name = connections["eu-west-1"].settings_dict["NAME"]
    connections["eu-west-1"].close()
    with embedded_postgres.connect(settings.LAYOUT) as server:
        server.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
        try:
            yield
        finally:
            server.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


@pytest.mark.usefixtures("eu_is_away")
def test_unavailable_region_is_503_and_leaves_no_trace(api: Api, alice: User) -> None:
    token = token_of(alice)
    for headers in ({}, {"Idempotency-Key": "later"}):
        answer = create(api, token, {"name": "x", "region": "eu-west-1"}, headers=headers)
        assert (answer.status, answer.error) == (503, "unavailable")
        assert int(answer.headers["Retry-After"]) >= 1
        assert not Project.objects.exists()
        assert not AuditEntry.objects.filter(action="project.created").exists()
    assert create(api, token).status == 201  # the other regions go on


def test_a_schema_that_cannot_be_made_takes_the_whole_project_back(api: Api, alice: User) -> None:
    """The region refuses the second schema: the first one goes, too."""
    with connections["us-east-1"].cursor() as cursor:
        cursor.execute(
            """CREATE FUNCTION platform.refuse() RETURNS event_trigger LANGUAGE plpgsql AS
               $$ BEGIN IF (SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'env%') > 1
                  THEN RAISE disk_full; END IF; END $$"""
        )
    name = connections["us-east-1"].settings_dict["NAME"]
    with embedded_postgres.connect(settings.LAYOUT, name) as server:
        server.execute("CREATE EVENT TRIGGER refuse ON ddl_command_end EXECUTE FUNCTION platform.refuse()")
        try:
            assert create(api, token_of(alice)).status == 503
        finally:
            server.execute("DROP EVENT TRIGGER refuse")
            server.execute("DROP FUNCTION platform.refuse")
    assert nothing_was_made()
    assert not connection.in_atomic_block
