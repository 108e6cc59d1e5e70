"""`DELETE /v1/projects/{id}/environments/{environment_id}`: gone for everyone at once, and nothing left of it."""

from typing import Any

import pytest
from django.conf import settings as django_settings
from django.db import connections

from accounts.models import AuditEntry, ServerKey, Session, User
from functions.models import Function, Version
from platform_site.embedded import postgres as embedded_postgres
from projects import tasks
from projects.models import Environment
from projects.provisioning import schemas
from rows.models import CurrentVersion, EventInterest, OutboxEvent, SchemaVersion
from tests.branches.conftest import Branch, address, rows
from tests.projects.conftest import at_once, environment_of, key_for, schemas_in, token_of
from tests.rows.conftest import Tracker
from webhooks.models import Delivery, Webhook

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")
REGION = "us-east-1"
IN_THE_REGION = (CurrentVersion, EventInterest, OutboxEvent, SchemaVersion, Webhook, Delivery, Function)


@pytest.mark.exhaustive
def test_everything_of_it_goes_and_nothing_else(tracker: Tracker, branch: Branch) -> None:
    tracker.post("owner", "/webhooks", {"url": "https://hooks.example.com/", "events": ["*"]})
    original = Function.objects.using(REGION).create(
        environment_id=tracker.environment_id, name="hello", active_version=1, last_version=1, timeout_ms=1, memory_mb=64
    )  # fmt: skip
    Version.objects.using(REGION).create(
        function=original, number=1, source="//", source_hash="1", author_kind="system"
    )
    made = branch("preview", data="full").json["id"]
    alice = User.objects.get(pk=tracker.users["alice"])
    key, session = key_for(made, "rows:read", "projects:read"), token_of(alice, made)
    owner = tracker.tokens["owner"]
    body = {"name": "Old", "owner_id": alice.pk}
    assert tracker.api.post("/v1/rows/lists", token=owner, environment=made, json=body).status == 201
    for model in IN_THE_REGION:
        if model is not Delivery:
            assert model.objects.using(REGION).filter(environment_id=made).exists(), model
    before = {model: model.objects.using(REGION).filter(environment_id=tracker.environment_id).count()
              for model in IN_THE_REGION}  # fmt: skip

    answer = tracker.api.delete(address(tracker, made), token=owner)
    assert (answer.status, answer.body) == (204, b"")

    assert made not in schemas_in(REGION)
    for model in IN_THE_REGION:
        assert not model.objects.using(REGION).filter(environment_id=made).exists(), model
        assert model.objects.using(REGION).filter(environment_id=tracker.environment_id).count() == before[model]
    assert Version.objects.using(REGION).count() == 1
    assert not Environment.objects.filter(pk=made).exists()
    assert not ServerKey.objects.filter(environment_id=made).exists()
    assert not Session.objects.filter(environment_id=made).exists()
    assert User.objects.filter(pk=alice.pk).exists()  # of the pool, which stays
    for dead in (key, session):
        assert tracker.api.get("/v1/rows/tasks", token=dead).status == 401
    assert tracker.api.get("/v1/rows/tasks", token=owner, environment=made).status == 404
    assert tracker.api.get(address(tracker, made), token=owner).status == 404
    assert tracker.api.delete(address(tracker, made), token=owner).status == 404
    assert len(rows(tracker, "tasks", tracker.environment_id)) == 2
    assert tracker.get("alice", "/rows/tasks").status == 200
    assert AuditEntry.objects.get(action="environment.deleted").detail["name"] == "preview"


def test_development_and_production_go_with_their_project_only(tracker: Tracker) -> None:
    for name in ("development", "production"):
        environment_id = environment_of(tracker.project, name).pk
        answer = tracker.api.delete(address(tracker, environment_id), token=tracker.tokens["owner"])
        assert (answer.status, answer.error) == (409, "conflict")
        key = key_for(environment_id, "environments:write")
        assert tracker.api.delete(address(tracker, environment_id), token=key).status == 409
        assert tracker.api.delete(address(tracker, environment_id), token=tracker.tokens["viewer"]).status == 403
    assert len(schemas_in(REGION)) == 2
    assert len(rows(tracker, "tasks", tracker.environment_id)) == 2


@pytest.mark.parametrize("environment_id", ["env_01h455vb4pex5vsknk084sn02q", "production", "%00", "é", "x" * 3000])
def test_what_is_no_environment_of_the_project_is_404(tracker: Tracker, environment_id: str) -> None:
    assert tracker.api.delete(address(tracker, environment_id), token=tracker.tokens["owner"]).status == 404
    assert len(schemas_in(REGION)) == 2


def test_two_deletions_at_once_are_one(tracker: Tracker, branch: Branch) -> None:
    made = branch("preview", data="full").json["id"]
    answers = at_once(6, lambda n: tracker.api.delete(address(tracker, made), token=tracker.tokens["owner"]))
    assert sorted(answer.status for answer in answers) == [204] + [404] * 5
    tasks.finish_and_clean()
    assert len(schemas_in(REGION)) == 2


def test_a_large_one_is_left_to_a_worker_and_its_tables_go_in_batches(tracker: Tracker, branch: Branch) -> None:
    made = branch("preview").json["id"]
    with connections[REGION].cursor() as cursor:
        for number in range(100):
            cursor.execute(f'CREATE TABLE "{made}".t{number} (id int PRIMARY KEY)')
    assert tracker.api.delete(address(tracker, made), token=tracker.tokens["owner"]).status == 204
    assert schemas.count_tables(made, REGION) > 100  # not within the request
    assert Environment.objects.get(pk=made).status == "deleting"
    assert tracker.api.get(address(tracker, made), token=tracker.tokens["owner"]).status == 404
    tasks.finish_environment_deletion(made)
    assert made not in schemas_in(REGION)
    assert not Environment.objects.filter(pk=made).exists()


def test_a_table_in_use_delays_only_the_dropping(tracker: Tracker, branch: Branch) -> None:
    made = branch("preview", data="full").json["id"]
    database: Any = connections[REGION].settings_dict["NAME"]
    with embedded_postgres.connect(django_settings.LAYOUT, database) as reader, reader.transaction():
        reader.execute(f'TABLE "{made}".tasks')
        assert tracker.api.delete(address(tracker, made), token=tracker.tokens["owner"]).status == 204
        assert made in schemas_in(REGION)
        assert branch("preview").status == 201  # its name is free already
    tasks.finish_and_clean()
    assert made not in schemas_in(REGION)
    assert not Environment.objects.filter(pk=made).exists()
