"""`POST /v1/config/plan` with `version`: back to what an applied plan replaced."""

from typing import Any

import pytest

from accounts import audit
from platform_site.config import versions
from platform_site.config.models import ConfigVersion
from projects import services
from projects.models import Project
from tests.config.conftest import SOURCE, Configured
from tests.projects.conftest import environment_of, key_for
from tests.support.client import Answer

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(transaction=True, databases="__all__")]
REGION = "us-east-1"


def back(configured: Configured, version: str) -> Answer:
    return configured.ask({"version": version})


def renamed(configured: Configured) -> Any:
    document = configured.config("?parts=schema")["config"]["schema"]
    columns = document["tables"]["notes"]["columns"]
    columns["heading"] = {**columns.pop("title"), "renamed_from": "title"}
    return document


@pytest.mark.usefixtures("receivers_here")
def test_the_url_of_a_removed_webhook_is_a_secret_that_is_missing(configured: Configured) -> None:
    [webhook] = configured.config("?parts=webhooks")["config"]["webhooks"]
    plan = configured.plan(webhooks={})
    assert configured.apply(plan).status == 200
    undo = back(configured, plan["version"]).json
    assert undo["missing_secrets"] == [f"webhooks.{webhook}.url"]
    assert configured.apply(undo).fields == {f"config.webhooks.{webhook}.url": "secret_missing"}


def test_there_and_back(configured: Configured) -> None:
    configured.call("POST", "/v1/rows/notes", {"title": "Tea"})
    parts = "?parts=schema,functions,auth,origins"
    before = configured.config(parts)
    functions = {"digest": {"source": "export default () => 2", "timeout_ms": 1000}, "new": {"source": SOURCE}}
    plan = configured.plan(schema=renamed(configured), functions=functions, auth={"sign_up": "off"}, origins=[])
    assert plan["version"] == before["version"]
    assert configured.apply(plan).status == 200
    undo = back(configured, plan["version"]).json
    assert configured.apply(undo).status == 200
    assert configured.config(parts)["config"] == before["config"]
    [row] = configured.call("GET", "/v1/rows/notes")["data"]
    assert row["title"] == "Tea"
    redo = back(configured, undo["version"]).json
    assert configured.apply(redo).status == 200
    assert configured.config(parts)["config"]["functions"]["new"]["source"] == SOURCE


def test_versions_of_others_and_unknown_ones(configured: Configured, project: Project) -> None:
    plan = configured.plan(origins=[])
    assert back(configured, plan["version"]).status == 404, "it is not stored before it is replaced"
    configured.apply(plan)
    key = key_for(configured.id, "environments:read")
    answer = configured.ask({"version": plan["version"]}, key)
    assert (answer.status, "environments:write" in answer.json["error"]["message"]) == (403, True)
    configured.id = environment_of(project, "development").pk
    assert back(configured, plan["version"]).status == 404
    both = configured.ask({"version": plan["version"], "config": {"origins": []}})
    assert both.fields == {"config": "required"}


def test_the_oldest_go_and_all_with_the_environment(
    configured: Configured, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "MAX_VERSIONS", 2)
    path = f"/v1/projects/{project.pk}/environments"
    configured.id = configured.call("POST", path, {"name": "blue", "from": "production"})["id"]
    plans = [configured.plan(origins=[f"https://{name}.example"]) for name in "x"]
    configured.apply(plans[0])
    for name in "yz":
        plans.append(configured.plan(origins=[f"https://{name}.example"]))
        configured.apply(plans[-1])
    assert [back(configured, plan["version"]).status for plan in plans] == [404, 200, 200]
    services.delete_environment(project.pk, configured.id, actor=audit.SYSTEM)
    assert not ConfigVersion.objects.using(REGION).filter(environment_id=configured.id).exists()
