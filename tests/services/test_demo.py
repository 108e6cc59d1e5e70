"""The demo's seed: done once, completed by a later release, and never against its owner's will."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from accounts.audit import SYSTEM
from accounts.models import ServerKey, User
from accounts.users import service as accounts
from functions.execution import calls
from functions.execution.run_as import restore_caller
from functions.runs.start import NewRun
from platform_site import demo
from platform_site.embedded.data_dir import Layout
from projects import services as projects
from projects.directory.environments import environment_ref
from projects.models import Environment, Project
from rows import services as rows
from rows.migrate import service as schema_service
from rows.migrate import versions as schema_versions
from rows.query.service import ListQuery
from rows.rules.principal import Principal
from webhooks.delivery import signing
from webhooks.models import Webhook

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


def complete(layout: Layout) -> demo.Facts:
    return demo.complete(layout, base_url="http://127.0.0.1:8000")


def everything() -> tuple[int, int, int, int]:
    return User.objects.count(), Project.objects.count(), Environment.objects.count(), ServerKey.objects.count()


@pytest.mark.exhaustive
def test_a_second_run_changes_nothing_but_the_address(layout: Layout) -> None:
    first = complete(layout)
    made = everything()
    second = demo.complete(layout, base_url="http://127.0.0.1:9000")
    assert everything() == made
    assert second == {**first, "base_url": "http://127.0.0.1:9000"}
    assert json.loads(layout.demo_file.read_text()) == second


def test_a_step_that_an_older_release_did_not_know_is_done_later(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = dict(demo.STEPS)
    with monkeypatch.context() as older:
        older.setattr(demo, "STEPS", {name: steps[name] for name in ("people", "project")})
        before = complete(layout)
    assert "app_users" not in before
    after = complete(layout)
    assert {name: after[name] for name in before} == before
    assert len(after["app_users"]) == 2


def test_a_schema_of_the_owners_own_gets_none_of_the_rows(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = dict(demo.STEPS)
    with monkeypatch.context() as older:
        older.setattr(demo, "STEPS", {name: steps[name] for name in ("people", "project", "app users")})
        facts = complete(layout)
    environment = environment_ref(facts["environments"]["production"])
    assert environment is not None
    own = {"tables": {"lists": {"columns": {"name": {"type": "text"}}, "rules": {"user": {"read": {}}}}}}
    schema_service.change(environment, own, actor=SYSTEM)
    complete(layout)
    assert schema_versions.current(environment).version == 1


@pytest.mark.exhaustive
def test_what_it_seeds_answers_each_user_with_their_own(layout: Layout) -> None:
    facts = complete(layout)
    environment_id = facts["environments"]["production"]
    titles: list[set[str]] = []
    for user in facts["app_users"]:
        found = restore_caller("user", user["id"], environment_id)
        assert found is not None
        caller, environment = found
        seen = json.loads(rows.list_rows(environment, Principal.of(caller), "tasks", ListQuery()).body)["data"]
        assert seen
        assert {row["owner_id"] for row in seen} == {user["id"]}
        titles.append({row["title"] for row in seen if not row["done"]})
        _, ended = calls.invoke(NewRun(environment, caller, "open-tasks", "null"))
        assert ended.output is not None, ended.error
        assert {task["title"] for task in json.loads(ended.output)} == titles[-1]
        _, ended = calls.invoke(NewRun(environment, caller, "sum", '{"a": 2, "b": 3}'))
        assert json.loads(ended.output or "") == {"sum": 5}
    assert not titles[0] & titles[1]


def test_a_cut_off_step_makes_no_row_twice(layout: Layout) -> None:
    facts = complete(layout)
    found = restore_caller("user", facts["app_users"][0]["id"], facts["environments"]["production"])
    assert found is not None
    caller, environment = found

    def count() -> list[int]:
        who, asked = Principal.of(caller), ListQuery(limit=100)
        return [
            len(json.loads(rows.list_rows(environment, who, t, asked).body)["data"])
            for t in ("lists", "tasks", "comments")
        ]

    made = count()
    steps = json.loads(layout.demo_steps_file.read_text())["done"]
    layout.demo_steps_file.write_text(json.dumps({"done": steps[: steps.index("schema")]}))
    complete(layout)
    assert count() == made


@pytest.mark.exhaustive
def test_interrupted_step_finds_what_it_had_created(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    class Cut(Exception):
        pass

    def write(path: Path, content: demo.Facts) -> None:
        raise Cut

    monkeypatch.setattr(demo, "write_private", write)
    with pytest.raises(Cut):
        complete(layout)
    assert User.objects.filter(email="owner@example.com").exists()
    monkeypatch.undo()
    facts = complete(layout)
    assert User.objects.filter(email="owner@example.com").count() == 1
    assert User.objects.get(pk=facts["account"]["id"]).check_password(facts["account"]["password"])


def test_what_its_owner_deleted_stays_deleted(layout: Layout) -> None:
    facts = complete(layout)
    accounts.delete_user(User.objects.get(pk=facts["app_users"][0]["id"]), actor=SYSTEM)
    projects.delete_project(facts["project_id"], actor=SYSTEM)
    made = everything()
    complete(layout)
    assert everything() == made


@pytest.mark.exhaustive
def test_another_database_gets_the_whole_demo_anew(layout: Layout) -> None:
    first = complete(layout)
    Project.objects.all().delete()
    User.objects.all().delete()
    second = complete(layout)
    assert User.objects.count() == 4
    assert second["project_id"] != first["project_id"]
    assert second["server_key"] != first["server_key"]


def test_its_webhook_tells_the_service_itself_wherever_it_listens(
    layout: Layout, settings: Any, client: Client
) -> None:
    settings.OUTBOUND_ALLOWED_NETWORKS = ["127.0.0.0/8"]
    settings.DATA_DIR = layout.data_dir
    facts = complete(layout)
    environment = environment_ref(facts["environments"]["production"])
    assert environment is not None

    def url() -> str:
        return Webhook.objects.of(environment).get().url

    assert url() == "http://127.0.0.1:8000/demo/receiver"
    moved = demo.complete(layout, base_url="http://127.0.0.1:9000")
    assert url() == "http://127.0.0.1:9000/demo/receiver"
    assert moved["webhook"] == facts["webhook"]

    def deliver(secret: str, at: datetime, **headers: str) -> int:
        body = '{"type": "tasks.insert"}'
        sent = signing.headers([secret], "evt_1", at, body) | headers
        return client.post("/demo/receiver", body, content_type="application/json", headers=sent).status_code

    now = datetime.now(UTC)
    assert deliver(facts["webhook"]["secret"], now) == 204
    assert deliver(facts["webhook"]["secret"], now - timedelta(seconds=400)) == 401
    assert deliver(facts["webhook"]["secret"], now, **{"webhook-timestamp": str(10**400)}) == 401
    assert deliver(facts["webhook"]["secret"], now, **{"webhook-signature": "v1"}) == 401
    assert deliver(signing.new_secret(), now) == 401
    assert client.post("/demo/receiver", b"{}", content_type="application/json").status_code == 401
    assert client.get("/demo/receiver").status_code == 405


@pytest.mark.exhaustive
def test_its_webhook_stays_away_where_this_machine_may_not_be_called(layout: Layout, settings: Any) -> None:
    settings.OUTBOUND_ALLOWED_NETWORKS = []
    assert "webhook" not in complete(layout)
