"""Writes that are under way while their environment is deleted: it is written before the removal, which finds it, or
not at all. Never afterwards, where it would stay for ever, secrets included.

Each uses its own entry point and is stopped inside its transaction, between two statements.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core.management import CommandError, call_command
from django.db import DEFAULT_DB_ALIAS, connections

from accounts.models import ServerKey, User
from accounts.signal_handlers import OF_ENVIRONMENTS
from functions.models import Function, PendingEvent, Run, Secret, Version
from platform_site.embedded import postgres as embedded_postgres
from platform_site.identity import ids
from projects import tasks
from projects.errors import NoSuchEnvironment
from projects.models import Environment, Project
from projects.provisioning import orphaned_rows
from rows.models import CurrentVersion, EventInterest, OutboxEvent, PendingUserReferences, SchemaVersion
from tests.projects.conftest import key_for, schemas_in, token_of
from tests.rows.conftest import Tracker, make_tracker  # noqa: F401 - a fixture
from tests.support.client import Answer, Api
from webhooks.models import Delivery, Webhook

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(transaction=True, databases="__all__")]
REGION = "us-east-1"
DOCUMENT: dict[str, Any] = {"tables": {"notes": {"columns": {"text": {"type": "text", "max_length": 10}}}}}
OPENED = {"tables": {"notes": DOCUMENT["tables"]["notes"] | {"rules": {"user": {"read": {}}}}}}
"""The same tables under other rules: a change that touches no table."""
IN_THE_REGION = (
    CurrentVersion,
    SchemaVersion,
    EventInterest,
    OutboxEvent,
    PendingUserReferences,
    Webhook,
    Delivery,
    Function,
    PendingEvent,
)


@dataclass
class Door:
    method: str
    path: str
    body: dict[str, Any]
    using: str = REGION
    """The database of the write."""
    is_repeatable: bool = True
    """Whether it honours an Idempotency-Key."""


DOORS = {
    "function": Door(
        "PUT", "/functions/keeper", {"source": "export default () => 1", "secrets": {"TOKEN": "hunter2"}}, REGION, False
    ),
    "webhook": Door("POST", "/webhooks", {"url": "https://hooks.example.com/secret", "events": ["*"]}),
    "schema": Door("PUT", "/schema", {"document": OPENED}, REGION, False),
    "key": Door("POST", "/keys", {"name": "late", "scopes": ["rows:read"]}, DEFAULT_DB_ALIAS),
    "user": Door("POST", "/users", {"email": "late@example.com", "password": "correct horse 7"}, DEFAULT_DB_ALIAS),
    "identity provider": Door(
        "POST", "/identity-providers",
        {"name": "google", "issuer": "https://accounts.google.com", "client_id": "x", "client_secret": "hunter2"},
        DEFAULT_DB_ALIAS,
    ),
    "redirect URIs": Door(
        "PUT", "/redirect-uris", {"redirect_uris": ["https://app.example.com/late"]}, DEFAULT_DB_ALIAS, False
    ),
    "sign-up settings": Door("PATCH", "/auth/settings", {"app_name": "Late"}, DEFAULT_DB_ALIAS),
}  # fmt: skip


@pytest.fixture
def doomed(make_tracker: Callable[..., Tracker], settings: Any) -> Tracker:  # noqa: F811
    settings.ORPHAN_GRACE_SECONDS = settings.DELETION_GRACE_SECONDS = 0
    return make_tracker(DOCUMENT, "Doomed", users=())


@pytest.fixture
def kept(make_tracker: Callable[..., Tracker], doomed: Tracker) -> Tracker:  # noqa: F811
    """A neighbour with one of each, which nothing here may touch."""
    made = make_tracker(DOCUMENT, "Kept", users=())
    for door in DOORS.values():
        assert call(made, door).status in (200, 201)
    return made


def call(tracker: Tracker, door: Door, **headers: str) -> Answer:
    body = door.body | ({"environment_id": tracker.environment_id} if door.path == "/keys" else {})
    return tracker.api.request(
        door.method, f"/v1{door.path}", token=tracker.tokens["owner"], environment=tracker.environment_id, json=body,
        headers=headers,
    )  # fmt: skip


@dataclass
class Stopped:
    """A call in a thread, which stops inside its transaction until `go_on`."""

    thread: threading.Thread
    answers: list[Answer]
    here: threading.Event = field(default_factory=threading.Event)
    further: threading.Event = field(default_factory=threading.Event)

    def go_on(self) -> Answer:
        self.further.set()
        self.thread.join(30)
        (answer,) = self.answers
        return answer


@contextmanager
def stopped(tracker: Tracker, door: Door, *, at: str, **headers: str) -> Iterator[Stopped]:
    """The call, as it comes to the first statement in its transaction that holds the text `at`."""
    answers: list[Answer] = []

    def run() -> None:
        def pausing(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
            if not made.here.is_set() and connections[door.using].in_atomic_block and at in sql:
                made.here.set()
                assert made.further.wait(30)
            return execute(sql, *rest)

        try:
            with ExitStack() as stack:
                stack.enter_context(connections[door.using].execute_wrapper(pausing))
                answers.append(call(tracker, door, **headers))
        finally:
            connections.close_all()

    made = Stopped(threading.Thread(target=run), answers)
    made.thread.start()
    try:
        assert made.here.wait(30), answers
        yield made
    finally:
        made.further.set()
        made.thread.join(30)


def named_anywhere(environment_id: str) -> dict[str, int]:
    """How many rows name the environment, by table, in the region and in the control database."""
    counts = {model.__name__: model._default_manager.using(REGION).filter(environment_id=environment_id).count()
              for model in (*IN_THE_REGION, Run)}  # fmt: skip
    counts |= {model.__name__: model._default_manager.filter(environment_id=environment_id).count()
               for model in OF_ENVIRONMENTS}  # fmt: skip
    counts["Environment"] = Environment.objects.filter(pk=environment_id).count()
    return {name: count for name, count in counts.items() if count}


def delete(tracker: Tracker) -> None:
    path = f"/v1/projects/{tracker.project.pk}"
    assert tracker.api.delete(path, token=tracker.tokens["owner"]).status == 204


@pytest.mark.parametrize("name", DOORS)
def test_what_comes_after_the_removal_is_refused(name: str, doomed: Tracker, kept: Tracker) -> None:
    door, before = DOORS[name], named_anywhere(kept.environment_id)
    with stopped(doomed, door, at="") as writing:
        delete(doomed)
        assert named_anywhere(doomed.environment_id) == {}
        answer = writing.go_on()
    assert (answer.status, answer.error) == (404, "not_found")
    assert named_anywhere(doomed.environment_id) == {}
    assert (Secret.objects.using(REGION).count(), Version.objects.using(REGION).count()) == (1, 1)
    assert named_anywhere(kept.environment_id) == before


@pytest.mark.parametrize("name", [name for name, door in DOORS.items() if door.is_repeatable])
def test_what_was_written_before_the_removal_is_removed(name: str, doomed: Tracker, kept: Tracker) -> None:
    """The call has written all of it and has not committed when the environment is deleted."""
    door, before = DOORS[name], named_anywhere(kept.environment_id)
    with stopped(doomed, door, at='UPDATE "api_idempotencyrecord"', **{"Idempotency-Key": "once"}) as writing:
        path = f"/v1/projects/{doomed.project.pk}"
        answer = doomed.api.delete(path, token=doomed.tokens["owner"])
        if door.using == DEFAULT_DB_ALIAS:  # waited for, and not for ever
            assert (answer.status, answer.error) == (503, "unavailable")
            assert Project.objects.live().filter(pk=doomed.project.pk).exists()
        else:
            assert answer.status == 204
            tasks.finish_and_clean()
            assert doomed.environment_id in schemas_in(REGION)
        assert writing.go_on().status in (200, 201)
    if door.using == DEFAULT_DB_ALIAS:
        delete(doomed)
    tasks.finish_and_clean()
    assert named_anywhere(doomed.environment_id) == {}
    assert doomed.environment_id not in schemas_in(REGION)
    assert named_anywhere(kept.environment_id) == before


def leave_behind(environment_id: str) -> None:
    """One row of each table that names an environment, that nothing else refers to."""
    values: dict[type[Any], dict[str, Any]] = {
        Function: {"name": "f", "active_version": 1, "last_version": 1, "timeout_ms": 1, "memory_mb": 64},
        Webhook: {"url": "https://x.example/", "host": "x.example:443", "events": ["*"], "sealed_secret": b"x"},
        CurrentVersion: {"version": 1},
        SchemaVersion: {"version": 1, "document_text": "{}", "source_digest": "", "author_kind": "system"},
        EventInterest: {"table_name": "*", "action": "*"},
        OutboxEvent: {"event_id": ids.new("evt"), "type": "webhook.test", "data": "{}"},
        PendingUserReferences: {"since": "2026-01-01T00:00:00Z"},
        PendingEvent: {"function_id": ids.new("fn"), "event_id": ids.new("evt"), "sequence": 1},
    }
    made = {
        model: model.objects.using(REGION).create(environment_id=environment_id, **more)
        for model, more in values.items()
    }
    Version.objects.using(REGION).create(function=made[Function], number=1, source="", source_hash="", author_kind="x")
    Secret.objects.using(REGION).create(function=made[Function], name="TOKEN", sealed_value=b"hunter2")
    ServerKey.objects.create(
        name="left", environment_id=environment_id, prefix="sk_", secret_hash=environment_id.encode(), scopes=[]
    )
    User.objects.create(environment_id=environment_id, email="left@example.com")


def test_periodic_job_removes_only_leftovers_of_deleted_environments(kept: Tracker) -> None:
    gone, before = ids.new("env"), named_anywhere(kept.environment_id)
    leave_behind(gone)
    assert set(named_anywhere(gone)) == {model.__name__ for model in IN_THE_REGION} - {"Delivery"} | {
        "PoolSize",
        "ServerKey",
        "User",
    }
    told = StringIO()
    with pytest.raises(CommandError, match="differ in 1"):
        call_command("cleanup", check=True, stdout=told)
    assert f"{REGION}  {gone}  rows of a deleted environment: removed by the next cleanup" in told.getvalue()
    assert named_anywhere(gone)
    tasks.remove_orphaned_rows()
    assert named_anywhere(gone) == {}
    assert (Secret.objects.using(REGION).count(), Version.objects.using(REGION).count()) == (1, 1)
    assert named_anywhere(kept.environment_id) == before
    tasks.remove_orphaned_rows()
    assert named_anywhere(kept.environment_id) == before


def test_periodic_job_continues_past_its_batch(kept: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphaned_rows, "AT_ONCE", 2)
    gone = [ids.new("env") for _ in range(7)]
    for environment_id in gone:
        EventInterest.objects.using(REGION).create(environment_id=environment_id, table_name="*", action="*")
    tasks.remove_orphaned_rows()
    assert set(EventInterest.objects.using(REGION).values_list("environment_id", flat=True)) == {kept.environment_id}


def test_periodic_job_removes_nothing_without_certainty(kept: Tracker, settings: Any) -> None:
    """Young ones; ones in creation; ones that have a schema, which another periodic job handles."""
    young, made, dressed = ids.new("env"), ids.new("env"), ids.new("env")
    for environment_id in (young, made, dressed):
        leave_behind(environment_id)
    before = {each: named_anywhere(each) for each in (young, made, dressed)}
    with connections[REGION].cursor() as cursor:
        cursor.execute(f'CREATE SCHEMA "{dressed}"')
    settings.ORPHAN_GRACE_SECONDS = 3600
    tasks.remove_orphaned_rows()
    assert {each: named_anywhere(each) for each in before} == before
    settings.ORPHAN_GRACE_SECONDS = 0
    for model in OF_ENVIRONMENTS:
        model._default_manager.filter(environment_id__in=before).delete()
    before = {each: named_anywhere(each) for each in (young, made, dressed)}
    with making(made):
        tasks.remove_orphaned_rows()
    assert named_anywhere(young) == {}
    assert (named_anywhere(made), named_anywhere(dressed)) == (before[made], before[dressed])
    tasks.remove_orphaned_rows()
    assert (named_anywhere(made), named_anywhere(dressed)) == ({}, before[dressed])


@contextmanager
def making(environment_id: str) -> Iterator[None]:
    """A transaction of another session that is about to bring the record."""
    name = connections[DEFAULT_DB_ALIAS].settings_dict["NAME"]
    with embedded_postgres.connect(django_settings.LAYOUT, name) as session, session.transaction():
        session.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [environment_id])
        yield


def test_environment_with_lost_schema_accepts_no_functions_or_webhooks(api: Api, doomed: Tracker) -> None:
    """Its region was restored from an older backup: nothing is begun anew in half of an environment."""
    with connections[REGION].cursor() as cursor:
        cursor.execute(f'DROP SCHEMA "{doomed.environment_id}" CASCADE')
    CurrentVersion.objects.using(REGION).all().delete()
    SchemaVersion.objects.using(REGION).all().delete()
    for name in ("function", "webhook", "schema"):
        answer = call(doomed, DOORS[name])
        assert (answer.status, answer.error) == (409, "conflict"), name
        assert "restored from a backup" in answer.json["error"]["message"]
    tasks.remove_orphaned_rows()
    assert set(named_anywhere(doomed.environment_id)) == {"Environment", "ServerKey"}
    token = token_of(doomed.project.memberships.get(role="owner").user)
    assert api.delete(f"/v1/projects/{doomed.project.pk}", token=token).status == 204
    assert named_anywhere(doomed.environment_id) == {}


def test_a_key_is_no_longer_made_by_commands_either(doomed: Tracker) -> None:
    delete(doomed)
    with pytest.raises(NoSuchEnvironment):
        key_for(doomed.environment_id, "rows:read")
    assert named_anywhere(doomed.environment_id) == {}
