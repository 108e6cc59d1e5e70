"""`POST …/environments/{environment_id}/reset`: a preview branch becomes a copy of its parent again."""

import threading
from typing import Any

import pytest
from django.db import connections, transaction

from accounts.models import AuditEntry
from platform_site.postgres.row_access import row_access
from projects import tasks
from projects.models import Environment
from projects.provisioning import branching
from tests.branches.conftest import Branch, address, row, rows
from tests.projects.conftest import key_for, make_account, schemas_in, token_of  # noqa: F401 - a fixture
from tests.rows.conftest import Tracker
from tests.support.client import Answer

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(transaction=True, databases="__all__")]
SOURCE = {"source": "export default () => 'production'"}
HOOK = {"name": "crm", "url": "https://example.com/crm", "events": ["lists.insert"]}


def reset(tracker: Tracker, environment_id: str, *, who: str = "owner", token: str = "", **body: Any) -> Answer:
    path = f"{address(tracker, environment_id)}/reset"
    return tracker.api.post(path, token=token or tracker.tokens[who], json=body)


def change(tracker: Tracker, method: str, path: str, environment: str, body: Any = None) -> Answer:
    answer = tracker.api.request(
        method, f"/v1/{path}", token=tracker.tokens["owner"], environment=environment, json=body
    )
    assert answer.status in (200, 201, 204), answer.json
    return answer


def tables_of(tracker: Tracker, environment: str) -> set[str]:
    return set(change(tracker, "GET", "schema", environment).json["document"]["tables"])


@pytest.fixture
def changed(tracker: Tracker, branch: Branch) -> str:
    """A branch whose tables, rows, functions and webhooks all differ from those of production."""
    change(tracker, "PUT", "functions/hello", tracker.environment_id, SOURCE)
    change(tracker, "POST", "webhooks", tracker.environment_id, HOOK)
    made = str(branch("preview", data="full").json["id"])
    row(tracker, "lists", environment=made, name="Only here", owner_id=tracker.users["alice"])
    document = change(tracker, "GET", "schema", made).json["document"]
    document["tables"]["extra"] = {"columns": {"name": {"type": "text"}}, "rules": {"server": {"read": {}}}}
    change(tracker, "PUT", "schema", made, {"document": document})
    change(tracker, "PUT", "functions/hello", made, {"source": "export default () => 'branch'"})
    change(tracker, "PUT", "functions/other", made, SOURCE)
    change(tracker, "POST", "webhooks", made, {**HOOK, "name": "other", "url": "https://example.com/other"})
    return made


def test_everything_is_that_of_the_parent_again(tracker: Tracker, changed: str) -> None:
    row(tracker, "lists", name="Newer", owner_id=tracker.users["alice"])
    before = change(tracker, "GET", "schema", changed).json["version"]
    answer = reset(tracker, changed, data="full")
    assert (answer.status, answer.json["id"], answer.json["status"]) == (200, changed, "ready")
    assert answer.json["schema_version"] == before + 1, "processes know schemas by their version"
    assert tables_of(tracker, changed) == tables_of(tracker, tracker.environment_id)
    for table in ("lists", "tasks"):
        assert rows(tracker, table, changed) == rows(tracker, table, tracker.environment_id)
    functions = change(tracker, "GET", "functions", changed).json["data"]
    assert [each["name"] for each in functions] == ["hello"]
    config = change(tracker, "GET", "config?parts=functions", changed).json["config"]
    assert config["functions"]["hello"]["source"] == SOURCE["source"]
    hooks = change(tracker, "GET", "webhooks", changed).json["data"]
    assert [(each["url"], each["enabled"]) for each in hooks] == [(HOOK["url"], False)]
    entry = AuditEntry.objects.get(action="environment.reset")
    assert (entry.target_id, entry.detail["source"]) == (changed, tracker.environment_id)
    assert not [name for name in schemas_in("us-east-1") if name.startswith("reset_")]


def test_without_data_the_tables_are_empty_and_can_be_written(tracker: Tracker, changed: str) -> None:
    assert reset(tracker, changed).status == 200
    assert rows(tracker, "lists", changed) == []
    row(tracker, "lists", environment=changed, name="New", owner_id=tracker.users["alice"])


def test_what_belongs_to_the_branch_alone_stays(tracker: Tracker, changed: str) -> None:
    key = key_for(changed, "rows:read")
    origins = {"allowed_origins": ["https://preview.example.com"]}
    assert tracker.api.patch(address(tracker, changed), token=tracker.tokens["owner"], json=origins).status == 200
    assert reset(tracker, changed, data="full").json["allowed_origins"] == origins["allowed_origins"]
    assert tracker.api.get("/v1/rows/lists", token=key).status == 200


def test_a_merge_after_a_reset_has_nothing_to_do(tracker: Tracker, changed: str) -> None:
    assert reset(tracker, changed).status == 200
    plan = change(tracker, "POST", "config/plan", tracker.environment_id, {"from": changed}).json
    assert (plan["changes"], plan["conflicts"]) == ([], [])


def test_a_plan_of_before_cannot_be_applied(tracker: Tracker, changed: str) -> None:
    plan = change(tracker, "POST", "config/plan", tracker.environment_id, {"from": changed}).json
    assert reset(tracker, changed).status == 200
    answer = tracker.api.post(
        "/v1/config/apply",
        token=tracker.tokens["owner"],
        environment=tracker.environment_id,
        json={"plan": plan["plan"], "confirm": plan["confirm"]},
    )
    assert answer.status == 412


# ── Who may ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_viewers_and_app_users_cannot(tracker: Tracker, changed: str) -> None:
    for who in ("viewer", "alice"):
        assert reset(tracker, changed, who=who).status == 403
    assert "extra" in tables_of(tracker, changed)


def test_a_key_of_the_branch_cannot_fetch_rows_of_the_parent(tracker: Tracker, changed: str) -> None:
    key = key_for(changed, "environments:write", "environments:read", "rows:read")
    assert reset(tracker, changed, token=key, data="full").status == 403


def test_a_key_of_the_parent_needs_the_scope(tracker: Tracker, changed: str) -> None:
    reads = key_for(tracker.environment_id, "environments:read")
    assert reset(tracker, changed, token=reads).status == 403
    writes = key_for(tracker.environment_id, "environments:write", "environments:read")
    assert reset(tracker, changed, token=writes).status == 200


def test_other_tenants_see_no_such_branch(tracker: Tracker, changed: str, make_account: Any) -> None:  # noqa: F811
    stranger = make_account("mallory")
    assert reset(tracker, changed, token=token_of(stranger)).status == 404
    assert "extra" in tables_of(tracker, changed)


# ── What cannot be reset ────────────────────────────────────────────────────────────────────────────────────────────


def test_production_has_no_parent(tracker: Tracker) -> None:
    assert reset(tracker, tracker.environment_id).status == 409


def test_bad_input_changes_nothing(tracker: Tracker, changed: str) -> None:
    for body in ({"data": "some"}, {"data": None}, {"rows": "full"}):
        assert reset(tracker, changed, **body).status == 422
    assert reset(tracker, f"env_{'0' * 26}").status == 404
    assert "extra" in tables_of(tracker, changed)


def test_a_branch_whose_parent_was_deleted(tracker: Tracker, branch: Branch) -> None:
    parent = branch("parent").json["id"]
    child = branch("child", **{"from": parent}).json["id"]
    assert tracker.api.delete(address(tracker, parent), token=tracker.tokens["owner"]).status == 204
    assert reset(tracker, child).status == 409


def test_while_a_configuration_is_applied_it_waits(tracker: Tracker, changed: str) -> None:
    Environment.objects.filter(pk=tracker.environment_id).update(applying_plan="pln_x")
    assert reset(tracker, changed).status == 409


def test_tables_in_use_change_nothing(tracker: Tracker, changed: str, settings: Any) -> None:
    settings.SCHEMA_LOCK_TIMEOUT_MS = 50
    held, release = threading.Event(), threading.Event()

    def read() -> None:
        with row_access(), transaction.atomic(using="us-east-1"), connections["us-east-1"].cursor() as cursor:
            cursor.execute(f'LOCK TABLE "{changed}".lists IN ACCESS SHARE MODE')
            held.set()
            release.wait(30)
        connections.close_all()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert held.wait(10)
        assert reset(tracker, changed, data="full").status == 503
    finally:
        release.set()
        reader.join()
    assert "extra" in tables_of(tracker, changed)
    assert not AuditEntry.objects.filter(action="environment.reset").exists()


# ── By a worker ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_many_rows_are_copied_by_a_worker(tracker: Tracker, changed: str, settings: Any) -> None:
    settings.BRANCH_AT_ONCE_BYTES = 0
    assert reset(tracker, changed, data="full").json["status"] == "creating"
    assert tracker.api.get("/v1/rows/lists", token=tracker.tokens["owner"], environment=changed).status == 404
    assert reset(tracker, changed, data="full").status == 409
    tasks.finish_branches()
    assert Environment.objects.get(pk=changed).status == "ready"
    assert rows(tracker, "lists", changed) == rows(tracker, "lists", tracker.environment_id)
    row(tracker, "lists", environment=changed, name="Later", owner_id=tracker.users["alice"])
    tasks.finish_branches()
    assert len(rows(tracker, "lists", changed)) == 2, "it is not reset again"
    assert AuditEntry.objects.filter(action="environment.reset").count() == 1


def test_a_worker_that_comes_late_does_not_reset_again(tracker: Tracker, changed: str, settings: Any) -> None:
    settings.BRANCH_AT_ONCE_BYTES = 0
    assert reset(tracker, changed, data="full").json["status"] == "creating"
    late = Environment.objects.select_related("project", "parent").get(pk=changed)
    assert branching.finish(changed)
    row(tracker, "lists", environment=changed, name="Later", owner_id=tracker.users["alice"])
    assert not branching._finish_reset(late)
    assert "Later" in [each["name"] for each in rows(tracker, "lists", changed)]


def test_a_reset_that_cannot_succeed_leaves_the_branch(tracker: Tracker, changed: str, settings: Any) -> None:
    settings.BRANCH_AT_ONCE_BYTES = 0
    assert reset(tracker, changed, data="full").status == 200
    settings.BRANCH_GIVE_UP_SECONDS = -1
    assert branching.finish(changed)
    found = Environment.objects.get(pk=changed)
    assert (found.status, found.applying_since) == ("ready", None)
    assert found.status_reason
    assert "extra" in tables_of(tracker, changed)
