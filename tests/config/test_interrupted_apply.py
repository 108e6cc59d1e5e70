"""An apply whose process dies at each step: the environment has all of it or nothing, after at most one run of the
periodic job, and meanwhile nothing else changes what the rest of it will change."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.db.models import F

from accounts import audit
from accounts.models import AuditEntry, IdentityProvider
from accounts.oauth import providers
from platform_site.config import tasks
from platform_site.config.models import StoredPlan
from platform_site.config.parts import control_part
from platform_site.http.errors import Conflict
from projects.models import Environment, Project
from rows.tasks import settle
from tests.config.conftest import READ, SCHEMA, SOURCE, WRITE, Configured
from tests.projects.conftest import key_for
from tests.support.project_crashes import Run

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(transaction=True, databases="__all__")]
REGION = "us-east-1"
WANTED: dict[str, Any] = {
    "schema": {"tables": {**SCHEMA["tables"], "tags": {"columns": {"name": {"type": "text"}}}}},
    "functions": {"digest": {"timeout_ms": 1000}, "hourly": {"source": SOURCE}},
    "webhooks": {},
    "auth": {"sign_up": "off", "providers": {}},
    "origins": ["https://b.example"],
}


@pytest.fixture
def key(configured: Configured) -> str:
    return key_for(configured.id, *READ, *WRITE)


@pytest.fixture
def plan(configured: Configured, key: str) -> Any:
    answer = configured.ask({"config": WANTED}, key)
    assert answer.status == 200, answer.json
    return answer.json


def order(plan: Any, key: str) -> dict[str, Any]:
    return {"do": "apply config", "key": key, "body": {"plan": plan["plan"], "confirm": plan["confirm"]}}


def is_applied(configured: Configured) -> bool:
    """Raises AssertionError for something in between."""
    changes = configured.plan(**WANTED)["changes"]
    paths = {change["path"].partition(".")[0] for change in changes}
    assert paths in (set(), {"schema", "functions", "webhooks", "auth", "origins"}), "all or nothing"
    return not changes


def a_minute_passes() -> None:
    Environment.objects.update(applying_since=F("applying_since") - timedelta(minutes=2))


@pytest.mark.parametrize(
    ("failpoint", "changed"),
    [
        ("config.journalled", False),
        ("schema.tables_changed", False),
        ("schema.before_commit", False),
        ("config.before_region_commit", False),
        ("config.after_region_commit", True),
        ("config.after_control_commit", True),
    ],
)
def test_killed(configured: Configured, run: Run, plan: Any, key: str, failpoint: str, changed: bool) -> None:
    assert run(**order(plan, key), failpoint=failpoint)["signal"] == 9
    is_over = failpoint == "config.after_control_commit"
    settle()
    environment = Environment.objects.get(pk=configured.id)
    assert environment.status == ("ready" if is_over else "migrating")
    if not is_over:
        settings = configured.api.request(
            "PATCH", "/v1/auth/settings", token=configured.token, environment=configured.id, json={"app_name": "X"}
        )
        assert (settings.status, settings.error) == (409, "conflict")
        provider = IdentityProvider.objects.get(environment_id=configured.id)
        with pytest.raises(Conflict):
            providers.change(provider, actor=audit.SYSTEM, display_name="X")
    tasks.settle_interrupted_applies()
    environment.refresh_from_db()
    assert environment.status == ("ready" if changed else "migrating"), "it may still run"
    a_minute_passes()
    tasks.settle_interrupted_applies()
    environment.refresh_from_db()
    assert (environment.applying_plan, environment.status) == (None, "ready")
    assert is_applied(configured) == changed
    assert AuditEntry.objects.filter(action="config.applied").count() == changed
    answer = configured.apply(plan, key)
    assert (answer.status, answer.json["status"]) == (200, "applied"), "once or again"
    assert AuditEntry.objects.filter(action="config.applied").count() == 1
    assert is_applied(configured)


def test_the_author_completes_it_by_repeating_the_request(
    configured: Configured, run: Run, plan: Any, key: str
) -> None:
    assert run(**order(plan, key), failpoint="config.after_region_commit")["signal"] == 9
    answer = configured.apply(plan, key)
    assert (answer.status, answer.json["status"]) == (200, "applied")
    assert is_applied(configured)
    assert Environment.objects.get(pk=configured.id).status == "ready"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PATCH", "/v1/auth/settings", {"app_name": "X"}),
        ("PUT", "/v1/redirect-uris", {"redirect_uris": []}),
        ("POST", "/v1/identity-providers", {"name": "gl", "preset": "gitlab", "client_id": "x", "client_secret": "y"}),
        ("PATCH", "/v1/projects/{project}/environments/{environment}", {"allowed_origins": []}),
        ("POST", "/v1/projects/{project}/environments", {"name": "blue", "from": "production"}),
    ],
)
def test_other_changes_of_the_rest_are_409_meanwhile(
    configured: Configured, project: Project, run: Run, plan: Any, key: str, method: str, path: str, body: Any
) -> None:  # fmt: skip
    assert run(**order(plan, key), failpoint="config.after_region_commit")["signal"] == 9
    path = path.format(project=project.pk, environment=configured.id)
    named = None if "project" in path else configured.id
    answer = configured.api.request(method, path, token=configured.token, environment=named, json=body)
    assert (answer.status, answer.error) == (409, "conflict")
    a_minute_passes()
    tasks.settle_interrupted_applies()
    assert is_applied(configured)
    assert configured.api.request(method, path, token=configured.token, environment=named, json=body).status < 300


def test_the_environment_may_be_deleted_meanwhile(configured: Configured, run: Run, project: Project) -> None:
    branches = f"/v1/projects/{project.pk}/environments"
    configured.id = configured.call("POST", branches, {"name": "blue", "from": "production"})["id"]
    key = key_for(configured.id, *READ, *WRITE)
    plan = configured.ask({"config": {"origins": []}}, key).json
    assert run(**order(plan, key), failpoint="config.after_region_commit")["signal"] == 9
    path = f"{branches}/{configured.id}"
    assert configured.api.request("DELETE", path, token=configured.token).status == 204
    a_minute_passes()
    tasks.settle_interrupted_applies()
    assert not StoredPlan.objects.using(REGION).filter(pk=plan["plan"]).exists()


def test_a_running_apply_is_left_alone(configured: Configured, run: Run, plan: Any, key: str) -> None:
    assert run(**order(plan, key), failpoint="config.journalled")["signal"] == 9
    tasks.settle_interrupted_applies()
    assert Environment.objects.get(pk=configured.id).applying_plan == plan["plan"], "it has begun a moment ago"
    a_minute_passes()
    connection = connections[REGION].copy()
    try:
        connection.set_autocommit(False)
        with connection.cursor() as cursor:
            cursor.execute("SELECT FROM config_plan WHERE id = %s FOR UPDATE", [plan["plan"]])
        tasks.settle_interrupted_applies()
        assert Environment.objects.get(pk=configured.id).applying_plan == plan["plan"]
    finally:
        connection.close()
    tasks.settle_interrupted_applies()
    assert Environment.objects.get(pk=configured.id).applying_plan is None


def test_an_apply_that_was_ended_from_outside_does_not_go_on(
    configured: Configured, plan: Any, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = control_part.begin

    def begin_and_stall(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        a_minute_passes()
        tasks.settle_interrupted_applies()
        assert Environment.objects.get(pk=configured.id).status == "ready"

    monkeypatch.setattr(control_part, "begin", begin_and_stall)
    answer = configured.apply(plan, key)
    assert (answer.status, answer.error) == (503, "unavailable")
    assert not is_applied(configured)
    monkeypatch.undo()
    assert configured.apply(plan, key).status == 200
