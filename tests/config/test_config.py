"""`GET /v1/config`: the whole configuration, the same each time, without secrets and only for callers that may read
its parts."""

import hashlib
from typing import Any

import pytest

from accounts import audit
from accounts.models import User
from projects import services
from projects.models import Environment, Project
from tests.config.conftest import SCHEMA, SECRETS, SOURCE, Configured
from tests.projects.conftest import environment_of, key_for, make_project, publishable_key_for, token_of
from tests.support.client import Api

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

SCOPES = (
    "schema:read", "functions:read", "webhooks:read", "users:manage", "environments:read", "environments:write",
)  # fmt: skip


def test_it_has_every_part_and_no_secret(configured: Configured) -> None:
    answer = configured.api.get("/v1/config", token=configured.token, environment=configured.id)
    config = answer.json["config"]
    assert list(config) == ["schema", "functions", "webhooks", "auth", "origins"]
    assert config["schema"] == SCHEMA
    assert config["functions"] == {
        "digest": {
            "source": SOURCE, "timeout_ms": 5000, "memory_mb": 128, "invoke": None, "attempts": 1, "schedule": None,
            "allowed_hosts": ["a.example.com", "b.example.com"], "on": [], "secret_names": ["API_TOKEN"],
        }
    }  # fmt: skip
    [webhook] = config["webhooks"].values()
    assert webhook["url"] == "http://127.0.0.1:8080/$secret:path?key=$secret:key"
    assert webhook["events"] == ["notes.insert", "notes.update"]
    assert {name: config["auth"][name] for name in ("sign_up", "app_name", "redirect_uris")} == {
        "sign_up": "open", "app_name": "Notes", "redirect_uris": ["https://a.example/done"]
    }  # fmt: skip
    assert config["auth"]["providers"]["acme"]["client_id"] == "notes"
    assert config["origins"] == ["https://a.example"]
    for secret in (*SECRETS, hashlib.sha256(SECRETS[0].encode()).hexdigest()):
        assert secret not in answer.body.decode()


@pytest.mark.exhaustive
def test_the_same_configuration_has_the_same_version(configured: Configured) -> None:
    first = configured.config()
    assert configured.config() == first
    assert first["version"].startswith("cfg_")
    configured.call("PUT", "/v1/functions/digest", {"source": "export default () => 2;\n"})
    second = configured.config()
    assert second["version"] != first["version"]
    configured.call("PUT", "/v1/functions/digest", {"source": SOURCE})
    assert configured.config()["version"] == first["version"]


def test_a_webhook_appears_by_its_name_and_keeps_it_in_a_branch(configured: Configured, project: Project) -> None:
    [webhook] = configured.config("?parts=webhooks")["config"]["webhooks"]
    assert webhook.startswith("wh_")
    configured.call("PATCH", f"/v1/webhooks/{webhook}", {"name": "crm"})
    named = configured.config("?parts=webhooks")["config"]["webhooks"]
    assert list(named) == ["crm"]
    path = f"/v1/projects/{project.pk}/environments"
    configured.id = configured.call("POST", path, {"name": "blue", "from": "production"})["id"]
    plan = configured.plan(webhooks=named)
    assert [change["path"] for change in plan["changes"]] == ["webhooks.crm.enabled"], "a branch sends nothing"


def test_some_of_its_parts(configured: Configured) -> None:
    assert list(configured.config("?parts=origins,schema")["config"]) == ["schema", "origins"]
    for wrong in ("", "schema,secrets", "schema,,functions"):
        answer = configured.api.get(f"/v1/config?parts={wrong}", token=configured.token, environment=configured.id)
        assert (answer.status, answer.fields) == (422, {"parts": "not_among"})


def test_an_empty_environment(api: Api, alice: User, project: Project) -> None:
    development = environment_of(project, "development")
    answer = api.get("/v1/config", token=token_of(alice), environment=development.pk)
    assert answer.status == 200
    assert answer.json["config"]["functions"] == answer.json["config"]["webhooks"] == {}
    assert answer.json["config"]["schema"] == {"tables": {}}


def test_a_preview_branch_has_no_sign_in_of_its_own(configured: Configured, project: Project) -> None:
    path = f"/v1/projects/{project.pk}/environments"
    branch = configured.call("POST", path, {"name": "blue", "from": "production"})
    answer = configured.api.get("/v1/config?parts=auth", token=configured.token, environment=branch["id"])
    assert list(answer.json["config"]["auth"]) == ["redirect_uris"]


def test_a_part_whose_scopes_the_caller_lacks_is_left_out(configured: Configured, project: Project, bob: User) -> None:
    whole = configured.config()["config"]
    held = ("schema:read", "functions:read", "users:manage", "environments:read")
    answer = configured.api.get("/v1/config", token=key_for(configured.id, *held))
    assert (answer.status, list(answer.json["config"])) == (200, ["schema", "functions", "origins"])
    assert answer.json == configured.config("?parts=origins,functions,schema"), "the version is that of these parts"
    assert answer.json["config"] == {name: whole[name] for name in answer.json["config"]}
    services.add_member(project.pk, email=bob.email, role="viewer", actor=audit.SYSTEM)
    viewed = configured.api.get("/v1/config", token=token_of(bob), environment=configured.id)
    assert list(viewed.json["config"]) == ["schema", "functions", "webhooks", "origins"]


def test_what_was_left_out_stays_when_the_document_is_sent_back(configured: Configured) -> None:
    whole = configured.config()
    key = key_for(configured.id, "schema:read", "schema:write", "functions:read", "functions:deploy")
    part = configured.api.get("/v1/config", token=key).json
    plan = configured.ask({"config": part["config"]}, key).json
    assert (plan["changes"], plan["confirm"], plan["version"]) == ([], [], part["version"])
    part["config"]["functions"]["digest"]["timeout_ms"] = 4000
    plan = configured.ask({"config": part["config"]}, key).json
    assert [each["path"] for each in plan["changes"]] == ["functions.digest.timeout_ms"]
    assert configured.apply(plan, key).status == 200
    whole["config"]["functions"]["digest"]["timeout_ms"] = 4000
    assert configured.config()["config"] == whole["config"]


@pytest.mark.parametrize("held", [(), ("users:manage",), ("environments:write", "webhooks:write")])
def test_without_a_readable_part_every_missing_scope_is_named(
    api: Api, production: Environment, held: tuple[str, ...]
) -> None:
    answer = api.get("/v1/config", token=key_for(production.pk, "rows:read", *held))
    assert (answer.status, answer.error) == (403, "forbidden")
    assert {scope for scope in SCOPES if scope in answer.json["error"]["message"]} == set(SCOPES) - set(held)


def test_each_part_that_the_caller_names_needs_its_scopes(configured: Configured) -> None:
    key = key_for(configured.id, "functions:read")
    assert configured.api.get("/v1/config?parts=functions", token=key).status == 200
    refused = configured.api.get("/v1/config?parts=functions,auth,schema", token=key)
    assert (refused.status, refused.error) == (403, "forbidden")
    assert "environments:write, schema:read, users:manage" in refused.json["error"]["message"]


def test_viewers_do_not_read_sign_in_and_users_nothing(
    configured: Configured, api: Api, bob: User, charlie: User, project: Project, make_account: Any
) -> None:
    services.add_member(project.pk, email=bob.email, role="viewer", actor=audit.SYSTEM)
    assert api.get("/v1/config?parts=auth", token=token_of(bob), environment=configured.id).status == 403
    assert api.get("/v1/config?parts=schema", token=token_of(bob), environment=configured.id).status == 200
    user = make_account("ada", pool_id=configured.id)
    for query in ("", "?parts=functions", "?parts=origins"):  # an app user has these scopes, for other things
        assert api.get(f"/v1/config{query}", token=token_of(user, configured.id)).status == 403
    assert api.get("/v1/config", token=publishable_key_for(configured.id)).status == 403
    assert api.get("/v1/config", token=token_of(charlie), environment=configured.id).status == 404
    assert api.get("/v1/config").status == 401


def test_a_key_reads_its_own_environment_and_no_other(configured: Configured, api: Api, bob: User) -> None:
    other = environment_of(make_project(bob, "Other", plan="pro"))
    key = key_for(other.pk, *SCOPES)
    assert api.get("/v1/config", token=key, environment=configured.id).status == 404
    assert api.get("/v1/config", token=key).json["config"]["functions"] == {}
