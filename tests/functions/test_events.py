"""Functions that run on events: set with a deployment, one run for each event, whatever dies; as whom, and which events wait for
whom. Through HTTP, against real PostgreSQL and Deno; the relay and the worker are run by hand."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from django.db import OperationalError, connections, transaction

from accounts import audit
from accounts.models import AuditEntry, ServerKey
from functions import directory, signal_handlers, tasks
from functions.models import Function, PendingEvent, Run
from functions.runs import completion
from functions.runs import queue as run_queue
from functions.runtime.calls import Outcome
from functions.triggers import events as event_triggers
from functions.worker import Worker
from platform_site.embedded import postgres as embedded_postgres
from platform_site.embedded.data_dir import Layout
from platform_site.identity import call_depth, plans
from platform_site.identity.callers import EnvironmentRef
from projects import services as projects
from projects.directory.environments import environment_ref
from projects.provisioning import orphaned_rows, suspension
from rows.models import EventInterest, OutboxEvent
from tests.rows.conftest import Tracker
from tests.support.function_events import TELL, put, relay, run_events, runs
from tests.support.function_queue import FREE, pile_up
from tests.support.functions import SUM, deploy, own_key, preview_branch
from tests.support.row_statistics import count_touched_rows
from tests.support.tracker import DOCUMENT
from tests.support.unavailable import database_unavailable
from webhooks.delivery import control_events
from webhooks.delivery.relay import relay_batch
from webhooks.models import Delivery

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

ONE = "export default () => 1"
FURTHER = """export default async ({data}: any, ctx: any) =>
    (await ctx.rows.insert("lists", {name: data.record.name + "+", owner_id: data.record.owner_id})).id"""
FURTHER_IN_A_BATCH = """export default ({data}, ctx) => ctx.rows.batch([
    {op: "insert", table: "lists", values: {name: data.record.name + "+", owner_id: data.record.owner_id}}])"""
HALF = FREE // 2
ALL_SCOPES = ("functions:deploy", "functions:invoke", "rows:read", "webhooks:read")


@pytest.fixture(autouse=True)
def _nobody_is_suspended(environment: EnvironmentRef) -> Any:
    suspension.evict(environment.cluster)
    event_triggers._plan_cache.clear()
    event_triggers._expensive.clear()
    yield
    suspension.evict(environment.cluster)


def shown(tracker: Tracker, name: str) -> dict[str, Any]:
    return dict(tracker.get("owner", f"/functions/{name}").json)


def write(tracker: Tracker, *names: str) -> list[str]:
    """Insert lists of these names, a hundred in a statement; their ids."""
    rows = [{"name": name, "owner_id": tracker.users["alice"]} for name in names or ("Groceries",)]
    ids: list[str] = []
    for first in range(0, len(rows), 100):
        made = tracker.post("key", "/rows/lists", rows[first : first + 100])
        assert made.status == 201, made.json
        ids += [row["id"] for row in made.json["data"]]
    return ids


def waiting(environment: EnvironmentRef) -> int:
    return PendingEvent.objects.using(environment.cluster).count()


def interests(environment: EnvironmentRef) -> set[tuple[str, str]]:
    found = EventInterest.objects.using(environment.cluster).filter(environment_id=environment.environment_id)
    return set(found.values_list("table_name", "action"))


@contextmanager
def refusing(using: str, table: str, when: str = "BEFORE INSERT", condition: str = "true") -> Iterator[None]:
    """PostgreSQL takes no such change of the table: the disk is full."""
    with connections[using].cursor() as cursor:
        cursor.execute(f"""
            CREATE FUNCTION platform.fails() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN IF {condition} THEN RAISE 'no room' USING ERRCODE = '53100'; END IF; RETURN NEW; END $$;
            CREATE TRIGGER fails {when} ON platform.{table} FOR EACH ROW EXECUTE FUNCTION platform.fails()""")
    try:
        yield
    finally:
        with connections[using].cursor() as cursor:
            cursor.execute(f"DROP TRIGGER fails ON platform.{table}; DROP FUNCTION platform.fails()")


def side_by_side(count: int, what: Any) -> list[Any]:
    def once(_: int) -> Any:
        try:
            return what()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(once, range(count)))


# ── Setting them ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.exhaustive
def test_events_are_set_kept_changed_and_taken_away(tracker: Tracker, environment: EnvironmentRef) -> None:
    owner = tracker.project.memberships.get(role="owner").user_id
    plain = put(tracker, "owner", "tell").json
    assert (plain["on"], plain["on_stopped"], plain["on_as"]) == (None, None, None)
    assert interests(environment) == set()
    made = put(tracker, "owner", "tell", on=["lists.insert", "tasks.*"]).json
    assert (made["on"], made["on_stopped"], made["on_as"]) == (["lists.insert", "tasks.*"], None, owner)
    assert interests(environment) == {("lists", "insert"), ("tasks", "*")}
    again = put(tracker, "owner", "tell", attempts=2).json
    assert {**again, "updated_at": ""} == {**made, "attempts": 2, "updated_at": ""}
    assert tracker.get("owner", "/functions").json["data"] == [again]
    assert put(tracker, "owner", "tell", on=["lists.delete"]).json["on"] == ["lists.delete"]
    assert interests(environment) == {("lists", "delete")}
    for nothing in (None, []):
        put(tracker, "owner", "tell", on=["lists.delete"])
        taken = put(tracker, "owner", "tell", on=nothing).json
        assert (taken["on"], taken["on_stopped"], taken["on_as"]) == (None, None, None)
        assert interests(environment) == set()
    said = AuditEntry.objects.filter(action="function.deployed").order_by("at", "id").values_list("detail", flat=True)
    assert [entry.get("on", "kept") for entry in said][:4] == [
        "kept",
        ["lists.insert", "tasks.*"],
        "kept",
        ["lists.delete"],
    ]


def test_webhooks_and_functions_leave_each_other_s_interests(tracker: Tracker, environment: EnvironmentRef) -> None:
    hook = {"url": "https://example.com/hook", "events": ["lists.*", "comments.insert"]}
    webhook_id = tracker.post("owner", "/webhooks", hook).json["id"]
    put(tracker, "owner", "tell", on=["lists.*", "tasks.update"])
    both = {("lists", "*"), ("comments", "insert"), ("tasks", "update")}
    assert interests(environment) == both
    tracker.patch("owner", f"/webhooks/{webhook_id}", {"events": ["comments.insert"]})
    assert interests(environment) == both
    assert tracker.delete("owner", "/functions/tell").status == 204
    assert interests(environment) == {("comments", "insert")}
    put(tracker, "owner", "tell", on=["tasks.update"])
    assert tracker.delete("owner", f"/webhooks/{webhook_id}").status == 204
    assert interests(environment) == {("tasks", "update")}


@pytest.mark.parametrize(
    "value",
    [
        ["function.run.failed"], ["lists.insert", "function.run.succeeded"], ["webhook.test"], ["Lists.insert"],
        ["lists"], ["lists.upsert"], ["lists.insert\x00"], ["lists.insert", "lists.insert"], "lists.insert", [5], {}, 5,
        [f"t{number}.insert" for number in range(21)],
    ],
)  # fmt: skip
def test_what_is_no_event_is_refused_and_nothing_is_deployed(
    tracker: Tracker, environment: EnvironmentRef, value: Any
) -> None:
    put(tracker, "owner", "tell", on=["lists.insert"])
    before = shown(tracker, "tell")
    refused = put(tracker, "owner", "tell", on=value)
    assert refused.status in {400, 422}, refused.json
    if refused.status == 422:
        assert {field.partition(".")[0] for field in refused.fields} == {"on"}
    assert shown(tracker, "tell") == before
    assert interests(environment) == {("lists", "insert")}


@pytest.mark.exhaustive
def test_the_plan_says_how_many_run_on_events(
    tracker: Tracker, environment: EnvironmentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = replace(plans.PLANS["free"], event_functions_per_environment=1)
    monkeypatch.setattr(plans, "PLANS", {**plans.PLANS, "free": free})
    assert put(tracker, "owner", "one", on=["*.insert"]).status == 201
    refused = put(tracker, "owner", "two", on=["*.insert"])
    assert (refused.status, refused.error) == (422, "quota_exceeded")
    assert not Function.objects.using(environment.cluster).filter(name="two").exists()
    assert put(tracker, "owner", "one", on=["*.delete"]).status == 200, "it has its place"
    assert put(tracker, "owner", "two").status == 201
    limit = tracker.get("owner", "/limits").json["limits"]["event_functions_per_environment"]
    assert limit == {"limit": 1, "used": 1}
    put(tracker, "owner", "one", on=None)
    assert put(tracker, "owner", "two", on=["*.insert"]).status == 200


@pytest.mark.exhaustive
def test_one_for_app_users_alone_runs_on_none(tracker: Tracker, environment: EnvironmentRef) -> None:
    refused = put(tracker, "owner", "tell", on=["*.insert"], invoke="user")
    assert (refused.status, refused.fields) == (422, {"on": "for_users_only"})
    put(tracker, "owner", "tell", on=["*.insert"])
    assert put(tracker, "owner", "tell", invoke="user").status == 422
    assert put(tracker, "owner", "tell", invoke="user", on=None).status == 200


# ── What comes of them ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.exhaustive
def test_a_write_makes_a_run_that_is_told_what_a_webhook_is_told(tracker: Tracker, environment: EnvironmentRef) -> None:
    hook = {"url": "https://example.com/hook", "events": ["lists.insert"]}
    assert tracker.post("owner", "/webhooks", hook).status == 201
    owner = tracker.project.memberships.get(role="owner").user
    put(tracker, "owner", "tell", on=["lists.insert"])
    put(tracker, "owner", "other", on=["lists.delete"])
    [row_id] = write(tracker)
    (run,) = run_events(environment)
    detail = tracker.get("owner", f"/functions/tell/runs/{run.pk}").json
    event = OutboxEvent.objects.using(environment.cluster).get(type="lists.insert")
    assert (detail["status"], detail["trigger"], detail["attempts"], detail["event_id"]) == (
        "succeeded", "event", 1, event.event_id,
    )  # fmt: skip
    body = orjson.loads(Delivery.objects.using(environment.cluster).get(event_id=event.event_id).body)
    caller = {"kind": "account", "id": owner.pk, "email": owner.email, "role": None}
    assert detail["output"] == {**body, "caller": caller}
    assert (body["id"], body["type"], body["data"]["id"]) == (event.event_id, "lists.insert", row_id)
    assert (run.is_async, run.version, run.depth, run.request_id) == (True, 1, 0, event.request_id)
    assert waiting(environment) == 0
    listed = tracker.get("owner", "/functions/tell/runs").json["data"]
    assert [(each["trigger"], each["event_id"]) for each in listed] == [("event", event.event_id)]


def test_what_is_called_says_no_event(tracker: Tracker) -> None:
    deploy(tracker, "sum", SUM)
    run_id = tracker.post("owner", "/functions/sum/invoke", {"input": {"a": 1, "b": 1}}).json["run_id"]
    detail = tracker.get("owner", f"/functions/sum/runs/{run_id}").json
    assert (detail["trigger"], detail["event_id"]) == ("call", None)


@pytest.mark.exhaustive
def test_each_event_and_function_is_one_run_and_neighbours_hear_nothing(
    tracker: Tracker, environment: EnvironmentRef, make_tracker: Any
) -> None:
    neighbour: Tracker = make_tracker(DOCUMENT, name="Other")
    put(neighbour, "owner", "theirs", ONE, on=["*"])
    for name in ("first", "second"):
        put(tracker, "owner", name, ONE, on=["lists.*", "*.insert"])
    ids = write(tracker, "a", "b")
    assert tracker.call("key", "PATCH", f"/rows/lists/{ids[0]}", json={"name": "c"}).status == 200
    made = run_events(environment)
    assert sorted((run.function.name, orjson.loads(run.input)["type"]) for run in made) == [
        (name, event) for name in ("first", "second") for event in ("lists.insert", "lists.insert", "lists.update")
    ]
    assert {run.environment_id for run in made} == {environment.environment_id}
    assert {run.status for run in made} == {"succeeded"}


@pytest.mark.exhaustive
def test_it_runs_on_what_happens_to_users(tracker: Tracker, environment: EnvironmentRef) -> None:
    put(tracker, "owner", "welcome", on=["auth.user.created"])
    made = tracker.post("owner", "/users", {"email": "new@example.org", "password": "correct horse battery"})
    assert made.status == 201, made.json
    while control_events.move_to_region(environment.cluster):
        pass
    told = [orjson.loads(run.input)["data"] for run in run_events(environment)]
    assert {"user_id": made.json["id"]} in told
    assert all(data.keys() == {"user_id"} for data in told)


@pytest.mark.exhaustive
def test_a_chain_of_users_and_of_schemas_is_cut(tracker: Tracker, environment: EnvironmentRef) -> None:
    """An API call caused by an event carries the call-depth header of the function's fetch."""
    using = environment.cluster
    put(tracker, "owner", "tell", ONE, on=["auth.user.created", "schema.migrated"])
    tables = dict(DOCUMENT["tables"])
    for depth in (3, call_depth.MAX_DEPTH):
        header = {call_depth.HEADER: call_depth.sign(depth, environment.environment_id)}
        new = {"email": f"new{depth}@example.org", "password": "correct horse battery"}
        assert tracker.post("owner", "/users", new, headers=header).status == 201
        tables[f"t{depth}"] = {"columns": {"a": {"type": "text"}}}
        body = {"document": {"tables": tables}}
        assert tracker.call("owner", "PUT", "/schema", json=body, headers=header).status == 200
    assert tracker.post("owner", "/users", {**new, "email": "plain@example.org"}).status == 201
    while control_events.move_to_region(using):
        pass
    made = run_events(environment)
    assert sorted((run.depth, run.status) for run in made if run.depth) == [
        (3, "succeeded"), (3, "succeeded"), (call_depth.MAX_DEPTH, "failed"), (call_depth.MAX_DEPTH, "failed"),
    ]  # fmt: skip
    assert 0 in {run.depth for run in made}, "one request's chain is not the next one's"


@pytest.mark.exhaustive
def test_a_chain_of_users_that_take_their_rows_along_is_cut(tracker: Tracker, environment: EnvironmentRef) -> None:
    """A function that runs on the end of a row, and by the API makes and deletes a user whose row ends with them."""
    lists = DOCUMENT["tables"]["lists"]
    columns = {**lists["columns"], "owner": {"type": "user", "on_delete": "delete"}}
    tracker.apply({"tables": {**DOCUMENT["tables"], "lists": {**lists, "columns": columns}}})
    put(tracker, "owner", "tell", ONE, on=["lists.delete"])
    for who, depth in (("alice", 3), ("bob", call_depth.MAX_DEPTH)):
        made = tracker.post("key", "/rows/lists", {"name": who, "owner_id": tracker.users[who]})
        assert made.status == 201, made.json
        header = {call_depth.HEADER: call_depth.sign(depth, environment.environment_id)}
        assert tracker.call("owner", "DELETE", f"/users/{tracker.users[who]}", headers=header).status == 204
    assert [(run.depth, run.status) for run in run_events(environment)] == [
        (3, "succeeded"),
        (call_depth.MAX_DEPTH, "failed"),
    ]


@pytest.mark.exhaustive
def test_everything_is_not_the_end_of_runs(tracker: Tracker, environment: EnvironmentRef) -> None:
    put(tracker, "owner", "tell", ONE, on=["*"])
    write(tracker)
    for _ in range(3):
        run_events(environment)
    assert [orjson.loads(run.input)["type"] for run in runs(environment)] == ["lists.insert"]
    ends = OutboxEvent.objects.using(environment.cluster).filter(type__startswith="function.run.")
    assert ends.count() == 0, "it is not triggered"
    tracker.post("owner", "/webhooks", {"url": "https://example.com/rows", "events": ["*.*", "*.insert"]})
    write(tracker)
    run_events(environment)
    assert (len(runs(environment)), ends.count()) == (2, 0)
    tracker.post("owner", "/webhooks", {"url": "https://example.com/all", "events": ["*"]})
    write(tracker)
    run_events(environment)
    assert [event.type for event in ends] == ["function.run.succeeded"]
    assert len(runs(environment)) == 3


@pytest.mark.exhaustive
def test_everything_is_each_write_and_each_system_event(tracker: Tracker, environment: EnvironmentRef) -> None:
    put(tracker, "owner", "tell", ONE, on=["*"])
    assert interests(environment) == {
        ("*", "insert"), ("*", "update"), ("*", "delete"),
        ("auth.user", "*"), ("environment", "*"), ("schema", "*"), ("webhook", "*"),
    }  # fmt: skip
    [row_id] = write(tracker)
    assert tracker.patch("key", f"/rows/lists/{row_id}", {"name": "Other"}).status == 200
    assert tracker.delete("key", f"/rows/lists/{row_id}").status == 204
    heard_of = [orjson.loads(run.input)["type"] for run in run_events(environment)]
    assert heard_of == ["lists.insert", "lists.update", "lists.delete"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("source", [FURTHER, FURTHER_IN_A_BATCH])
def test_a_chain_of_rows_is_cut_and_says_so(tracker: Tracker, environment: EnvironmentRef, source: str) -> None:
    hook = {"url": "https://example.com/hook", "events": ["function.run.failed"]}
    tracker.post("owner", "/webhooks", hook)
    tracker.tokens["further"] = ""
    own_key(tracker, "further", *ALL_SCOPES, "rows:write")
    put(tracker, "further", "further", source, on=["lists.insert"])
    write(tracker)
    for _ in range(call_depth.MAX_DEPTH + 4):
        run_events(environment)
    made = runs(environment)
    assert [(run.depth, run.status) for run in made] == [
        *((depth, "succeeded") for depth in range(call_depth.MAX_DEPTH)), (call_depth.MAX_DEPTH, "failed"),
    ]  # fmt: skip
    assert (made[-1].error["reason"], made[-1].attempts, made[-1].phase) == ("chain_cut", 0, "ended")
    assert len(tracker.get("key", "/rows/lists").json["data"]) == 1 + call_depth.MAX_DEPTH
    assert OutboxEvent.objects.using(environment.cluster).filter(type="function.run.failed").count() == 1


@pytest.mark.exhaustive
def test_rows_hidden_from_role_server_are_not_sent(tracker: Tracker, environment: EnvironmentRef) -> None:
    table = DOCUMENT["tables"]["lists"]
    server = {"read": {"where": {"name": {"$ne": "hidden"}}, "columns": ["name"]}, "insert": {}, "update": {}}
    tracker.apply({"tables": {**DOCUMENT["tables"], "lists": {**table, "rules": {**table["rules"], "server": server}}}})
    put(tracker, "owner", "tell", on=["lists.insert"])
    write(tracker, "hidden", "shown")
    (run,) = run_events(environment)
    assert orjson.loads(run.input)["data"]["record"].keys() == {"id", "name"}
    assert orjson.loads(run.input)["data"]["record"]["name"] == "shown"
    assert waiting(environment) == 0


@pytest.mark.exhaustive
def test_a_failure_is_tried_again_as_the_policy_says(tracker: Tracker, environment: EnvironmentRef) -> None:
    put(tracker, "owner", "fails", "export default () => { throw new Error('no') }", on=["lists.insert"], attempts=2)
    write(tracker)
    (run,) = run_events(environment)
    assert (run.phase, run.attempts) == ("queued", 1)
    Run.objects.using(environment.cluster).update(claimed_until=None)
    assert Worker(environment.cluster).run() == 1
    (run,) = runs(environment)
    assert (run.status, run.attempts) == ("failed", 2)


# ── Once, whatever happens ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.exhaustive
def test_one_run_for_each_event_however_many_relay_and_queue(tracker: Tracker, environment: EnvironmentRef) -> None:
    put(tracker, "owner", "tell", ONE, on=["lists.insert"])
    ids = write(tracker, *(f"list {number}" for number in range(300)))

    def both() -> None:
        for _ in range(3):
            relay_batch(environment.cluster, batch=20)
            event_triggers.queue(environment.cluster)

    while OutboxEvent.objects.using(environment.cluster).filter(relayed_at=None).exists():
        side_by_side(4, both)
        Run.objects.using(environment.cluster).filter(phase="queued").update(phase="ended")
    while waiting(environment):
        side_by_side(4, lambda: event_triggers.queue(environment.cluster))
        Run.objects.using(environment.cluster).filter(phase="queued").update(phase="ended")
    assert sorted(orjson.loads(run.input)["data"]["id"] for run in runs(environment)) == sorted(ids)


@pytest.mark.exhaustive
def test_an_event_is_settled_and_heard_together_or_not_at_all(tracker: Tracker, environment: EnvironmentRef) -> None:
    using = environment.cluster
    tracker.post("owner", "/webhooks", {"url": "https://example.com/hook", "events": ["lists.insert"]})
    put(tracker, "owner", "tell", ONE, on=["lists.insert"])
    write(tracker)
    for table, when in (("functions_pendingevent", "BEFORE INSERT"), ("rows_outboxevent", "BEFORE UPDATE")):
        with refusing(using, table, when), pytest.raises(OperationalError):
            relay_batch(using)
        assert (waiting(environment), Delivery.objects.using(using).count()) == (0, 0)
        assert OutboxEvent.objects.using(using).filter(relayed_at=None).count() == 1
    relay(using)
    assert (waiting(environment), Delivery.objects.using(using).count()) == (1, 1)
    for table, when in (("functions_run", "BEFORE INSERT"), ("functions_pendingevent", "BEFORE DELETE")):
        with refusing(using, table, when):
            assert event_triggers.queue(using) == 0
        assert (waiting(environment), runs(environment)) == (1, [])
    assert [event_triggers.queue(using) for _ in range(2)] == [1, 0]
    # As if the process had died before either mark: what was done is not done again.
    OutboxEvent.objects.using(using).update(relayed_at=None)
    (run,) = run_events(environment)
    assert (waiting(environment), run.status) == (0, "succeeded")


def test_what_cannot_be_written_fails_alone_and_visibly(tracker: Tracker, environment: EnvironmentRef) -> None:
    using = environment.cluster
    put(tracker, "owner", "tell", ONE, on=["lists.insert"])
    write(tracker, "good", "poison", "better")
    relay(using)
    with connections[using].cursor() as cursor:
        cursor.execute("ALTER TABLE platform.functions_run ADD CONSTRAINT picky CHECK (input NOT LIKE '%poison%')")
    try:
        for _ in range(4):
            event_triggers.queue(using)
    finally:
        with connections[using].cursor() as cursor:
            cursor.execute("ALTER TABLE platform.functions_run DROP CONSTRAINT picky")
    assert waiting(environment) == 0
    assert sorted((run.phase, (run.error or {}).get("reason")) for run in runs(environment)) == [
        ("ended", "platform"), ("queued", None), ("queued", None),
    ]  # fmt: skip


def test_what_no_input_can_be_made_of_ends_visibly(
    tracker: Tracker, environment: EnvironmentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    using = environment.cluster
    put(tracker, "owner", "tell", ONE, on=["lists.insert"])
    write(tracker, "small", "large" * 20, "gone", "odd")
    relay(using)
    monkeypatch.setattr(event_triggers, "MAX_INPUT_BYTES", 330)
    OutboxEvent.objects.using(using).filter(data__contains='"gone"').delete()
    OutboxEvent.objects.using(using).filter(data__contains='"odd"').update(data="no JSON")
    assert event_triggers.queue(using) == 1
    assert sorted((run.error or {}).get("reason", "") for run in runs(environment)) == [
        "", "event_gone", "event_too_large", "platform",
    ]  # fmt: skip
    assert {run.attempts for run in runs(environment, phase="ended")} == {0}
    assert waiting(environment) == 0


@pytest.mark.exhaustive
def test_what_changes_meanwhile(tracker: Tracker, environment: EnvironmentRef) -> None:
    """Between the event and its run: what is deployed then is what runs, if it runs on that event still."""
    using = environment.cluster
    for name in ("deleted", "deaf", "without", "newer", "back"):
        put(tracker, "owner", name, "export default () => 'old'", on=["lists.insert"])
    put(tracker, "owner", "back", "export default () => 'new'")
    write(tracker)
    relay(using)
    assert waiting(environment) == 5
    assert tracker.delete("owner", "/functions/deleted").status == 204
    put(tracker, "owner", "deleted", "export default () => 'another of that name'", on=["lists.insert"])
    put(tracker, "owner", "deaf", on=None)
    put(tracker, "owner", "without", on=["lists.delete"])
    successor = own_key(tracker, "successor", *ALL_SCOPES)
    put(tracker, "successor", "newer", "export default () => 'new'")
    assert tracker.post("owner", "/functions/back/activate", {"version": 1}).status == 200
    Worker(using).run()
    assert sorted((run.function.name, run.output) for run in runs(environment)) == [
        ("back", '"old"'),
        ("newer", '"new"'),
    ]
    assert [run.caller_id for run in runs(environment, function__name="newer")] == [successor]
    assert waiting(environment) == 0


def test_a_queued_run_of_a_deleted_function_does_not_begin(tracker: Tracker, environment: EnvironmentRef) -> None:
    put(tracker, "owner", "tell", on=["lists.insert"])
    write(tracker)
    relay(environment.cluster)
    assert event_triggers.queue(environment.cluster) == 1
    assert tracker.delete("owner", "/functions/tell").status == 204
    assert (Worker(environment.cluster).run(), runs(environment)) == (0, [])


def test_a_deployment_at_that_moment_is_waited_for(tracker: Tracker, environment: EnvironmentRef) -> None:
    """Its function is not taken for a deleted one."""
    using = environment.cluster
    put(tracker, "owner", "tell", on=["lists.insert"])
    write(tracker)
    relay(using)
    with ThreadPoolExecutor(1) as other:

        def queue() -> int:
            try:
                return event_triggers.queue(using)
            finally:
                connections.close_all()

        with transaction.atomic(using=using):
            directory.function_of(environment, "tell", lock=True)
            queueing = other.submit(queue)
            while not _is_waited_for(using):
                assert not queueing.done()
        assert queueing.result(20) == 1


def _is_waited_for(using: str) -> bool:
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")
        return bool(cursor.fetchone()[0])


@pytest.mark.exhaustive
def test_a_table_that_is_renamed_is_another_one(tracker: Tracker, environment: EnvironmentRef) -> None:
    """As for webhooks: patterns are names."""
    put(tracker, "owner", "tell", on=["secrets.insert", "riddles.insert"])
    list_id = write(tracker)[0]
    task = {"title": "t", "list_id": list_id, "owner_id": tracker.users["alice"]}
    task_id = tracker.post("key", "/rows/tasks", task).json["id"]
    assert tracker.post("key", "/rows/secrets", {"body": "before", "task_id": task_id}).status == 201
    relay(environment.cluster)
    tables = {name: table for name, table in DOCUMENT["tables"].items() if name != "secrets"}
    riddles = {**DOCUMENT["tables"]["secrets"], "renamed_from": "secrets"}
    tracker.apply({"tables": {**tables, "riddles": riddles}})
    assert tracker.post("key", "/rows/riddles", {"body": "after", "task_id": task_id}).status == 201
    assert [orjson.loads(run.input)["data"]["record"]["body"] for run in run_events(environment)] == ["after"]
    assert waiting(environment) == 0


def test_lost_notification_costs_one_period(
    tracker: Tracker, environment: EnvironmentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(tasks, "_notify_worker", seen.append)
    put(tracker, "owner", "tell", ONE, on=["lists.insert"])
    tasks.queue_pending_events(environment.cluster)
    write(tracker)
    relay(environment.cluster)
    assert seen == []
    tasks.queue_pending_events(environment.cluster)
    assert seen == [environment.cluster]
    assert [run.phase for run in runs(environment)] == ["queued"]


def test_events_survive_control_database_outage_and_webhooks_continue(
    tracker: Tracker, environment: EnvironmentRef
) -> None:
    using = environment.cluster
    tracker.post("owner", "/webhooks", {"url": "https://example.com/hook", "events": ["lists.insert"]})
    put(tracker, "owner", "tell", ONE, on=["lists.insert"])
    write(tracker)
    control_name = connections["default"].settings_dict["NAME"]
    with (
        embedded_postgres.connect(Layout(Path(os.environ["DATA_DIR"]))) as superuser,
        database_unavailable(superuser, control_name),
    ):
        assert relay(using) == 1
        assert Delivery.objects.using(using).count() == 1
        with pytest.raises(OperationalError):
            event_triggers.queue(using)
        assert (waiting(environment), runs(environment)) == (1, [])
    connections["default"].close()
    (run,) = run_events(environment)
    assert run.status == "succeeded"


# ── Who waits for whom ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.exhaustive
def test_many_wait_in_order_and_few_of_them_are_queued(
    tracker: Tracker, environment: EnvironmentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_triggers, "MAX_QUEUED", 4)
    put(tracker, "owner", "tell", "export default ({data}: any) => data.record.name", on=["lists.insert"])
    names = [f"list {number:02}" for number in range(14)]
    for name in names:
        write(tracker, name)
    relay(environment.cluster)
    assert [event_triggers.queue(environment.cluster) for _ in range(3)] == [4, 0, 0]
    assert (waiting(environment), [orjson.loads(run.input)["data"]["record"]["name"] for run in runs(environment)]) == (
        10,
        names[:4],
    )
    assert Worker(environment.cluster).run() == 14
    assert [orjson.loads(run.output or "") for run in runs(environment)] == names
    assert waiting(environment) == 0


def test_of_large_ones_fewer_are_queued(
    tracker: Tracker, environment: EnvironmentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_triggers, "MAX_QUEUED", 20)
    put(tracker, "owner", "tell", ONE, on=["lists.insert"])
    for _ in range(4):
        write(tracker)
    relay(environment.cluster)
    assert event_triggers.queue(environment.cluster) == 4
    write(tracker)
    relay(environment.cluster)
    queued = Run.objects.using(environment.cluster).filter(phase="queued")
    small = runs(environment)[0].input
    queued.update(input="x" * (plans.PLANS["free"].queued_bytes // 4))
    assert event_triggers.queue(environment.cluster) == 0
    assert waiting(environment) == 1
    queued.update(input=small)
    assert event_triggers.queue(environment.cluster) == 1
    assert (waiting(environment), queued.count()) == (0, 5)


@pytest.mark.exhaustive
def test_flood_of_events_delays_neither_own_calls_nor_other_tenants(
    tracker: Tracker, environment: EnvironmentRef, make_tracker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    using = environment.cluster
    monkeypatch.setattr(event_triggers, "MAX_QUEUED", 20)
    neighbour: Tracker = make_tracker(DOCUMENT, name="Other")
    put(tracker, "owner", "tell", ONE, on=["lists.insert"])
    put(neighbour, "owner", "tell", ONE, on=["lists.insert"])
    write(tracker, *(f"list {number}" for number in range(1_000)))
    write(neighbour)
    relay(using)
    assert event_triggers.queue(using) == 21, "both have a turn"
    body = {"input": {}, "async": True}
    own = [tracker.post("owner", "/functions/tell/invoke", body).json["run_id"] for _ in range(2)]
    began = [found[0] for _ in range(2 * FREE) if (found := run_queue.claim(using)) is not None]
    of_ours = [started for started in began if started.environment_id == environment.environment_id]
    assert [started.run_id for started in of_ours[:2]] == own, "calls come first"
    assert [started.trigger for started in of_ours] == ["call"] * 2 + ["event"] * HALF
    assert len(began) - len(of_ours) == 1, "the neighbour does not wait"
    late = tracker.post("owner", "/functions/tell/invoke", body).json["run_id"]
    for started in of_ours[:2]:
        completion.record_end(started, Outcome(0.001, "1"))
    found = run_queue.claim(using)
    assert found is not None
    assert found[0].run_id == late, "half of the slots are never theirs"
    assert run_queue.claim(using) is None


def slow_to_read(make_tracker: Any) -> Tracker:
    """Role `server` reads a note unless some patterns are in it: tenths of a second for such as LONG."""
    hard = {"$or": [{"body": {"$like": f"%a{'_' * (2 * gap + 1)}b%"}} for gap in range(45)] + [{"n": 1}]}
    columns = {"body": {"type": "text"}, "n": {"type": "integer", "default": 1}}
    rules = {"server": {"read": {"where": hard}, "insert": {}}}
    made: Tracker = make_tracker({"tables": {"notes": {"columns": columns, "rules": rules}}}, name="Slow")
    put(made, "owner", "tell", ONE, on=["notes.insert"])
    for _ in range(2):  # by a key that no rule binds: for another one each answer would take as long
        assert made.post("operator", "/rows/notes", [{"body": "ab" * 20_000}] * 20).status == 201
    return made


@pytest.mark.exhaustive
def test_slow_events_are_evaluated_in_small_batches_after_others(
    tracker: Tracker, environment: EnvironmentRef, make_tracker: Any
) -> None:
    using = environment.cluster
    slow = slow_to_read(make_tracker)
    put(tracker, "owner", "tell", ONE, on=["lists.insert"])
    relay(using)
    assert 0 < event_triggers.queue(using) < 20
    write(tracker)
    relay(using)
    assert list(event_triggers._expensive[using]) == [slow.environment_id]
    assert 1 < event_triggers.queue(using) < 20
    assert len(runs(environment, environment_id=environment.environment_id)) == 1
    made = runs(environment, environment_id=slow.environment_id)
    left = PendingEvent.objects.using(using).filter(environment_id=slow.environment_id)
    assert len(made) == 40 - left.count(), "one run for each that is gone"
    assert len({run.event_id for run in made}) == len(made)
    assert not left.filter(event_id__in=[run.event_id for run in made]).exists()


def test_what_a_function_heard_that_is_gone_is_not_decided(
    environment: EnvironmentRef, make_tracker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    using = environment.cluster
    slow = slow_to_read(make_tracker)
    relay(using)
    assert slow.delete("owner", "/functions/tell").status in (200, 204)
    monkeypatch.setattr(event_triggers, "_decide", None)  # whoever asks fails
    assert event_triggers.queue(using) == 0
    assert waiting(environment) == 0
    assert list(event_triggers._expensive[using]) == []


@pytest.mark.exhaustive
def test_a_function_is_deleted_while_its_events_are_decided(
    environment: EnvironmentRef, make_tracker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not locked for so long, and has no run after it is gone."""
    using = environment.cluster
    slow = slow_to_read(make_tracker)
    relay(using)
    decide, answers = event_triggers._decide, []

    def decide_meanwhile(*args: Any, **more: Any) -> Any:
        if not answers:
            answers.extend(side_by_side(1, lambda: slow.delete("owner", "/functions/tell").status))
        return decide(*args, **more)

    monkeypatch.setattr(event_triggers, "_decide", decide_meanwhile)
    assert event_triggers.queue(using) == 0
    assert answers[0] in (200, 204)
    assert runs(environment) == []
    event_triggers.queue(using)
    assert waiting(environment) == 0


@pytest.mark.exhaustive
def test_a_bulk_write_of_thousands_is_heard_in_bounded_turns(
    tracker: Tracker, environment: EnvironmentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhooks.delivery.relay.MAX_EVENTS_PER_PASS", 10)
    for number in range(4):
        put(tracker, "owner", f"f{number}", ONE, on=["lists.insert"])
    write(tracker, *(f"list {number}" for number in range(10)))
    assert relay_batch(environment.cluster) == 3
    assert waiting(environment) == 12
    relay(environment.cluster)
    assert waiting(environment) == 40


@pytest.mark.exhaustive
@pytest.mark.parametrize("statistics", ["none", "of an almost empty table", "of all"])
def test_what_waits_costs_no_more_the_more_there_is(
    tracker: Tracker, environment: EnvironmentRef, make_tracker: Any, statistics: str
) -> None:
    """Neither its own nor another tenant's, and the environment's own and anonymous calls are not read."""
    using = environment.cluster
    neighbour: Tracker = make_tracker(DOCUMENT, name="Other")
    for each in (tracker, neighbour):
        put(each, "owner", "sum", ONE, on=["lists.insert"])
        write(each)
    relay(using)
    [first] = PendingEvent.objects.using(using).filter(environment_id=environment.environment_id)

    def add(environment_id: str, function_id: str) -> None:
        with connections[using].cursor() as cursor:
            cursor.execute(
                "INSERT INTO platform.functions_pendingevent (environment_id, function_id, event_id, sequence)"
                " SELECT %s, %s, 'evt_' || n, 1000000 + n FROM generate_series(1, 20000) n ON CONFLICT DO NOTHING",
                [environment_id, function_id],
            )

    def vacuum() -> None:
        with connections[using].cursor() as cursor:
            cursor.execute("SET statement_timeout = 0")
            cursor.execute("VACUUM ANALYZE platform.functions_pendingevent")
            cursor.execute("RESET statement_timeout")

    if statistics == "of an almost empty table":  # many pages, of which the last one has a row
        add("env_gone", "fn_gone")
        gone = PendingEvent.objects.using(using).filter(environment_id="env_gone")
        last = gone.latest("pk").pk
        gone.exclude(pk=last).delete()
        vacuum()
        gone.delete()
    for environment_id in (neighbour.environment_id, environment.environment_id):
        add(environment_id, first.function_id + environment_id[-1])
    if statistics == "of all":
        vacuum()
    pile_up(environment, 20_000, "key")
    with (
        count_touched_rows(using, "platform.functions_pendingevent") as of_heard,
        count_touched_rows(using, "platform.functions_run") as of_runs,
    ):
        assert event_triggers.queue(using) == 2
    assert of_heard.read < 2 * event_triggers.ROUNDS * 6 * event_triggers.MAX_QUEUED
    assert of_runs.read < 2 * event_triggers.ROUNDS * 3 * event_triggers.MAX_QUEUED
    assert len(runs(environment)) == 2
    calls = 1
    while waiting(environment) > 40_002 - 2 * event_triggers.ROUNDS * (event_triggers.MAX_QUEUED - 1):
        event_triggers.queue(using)
        calls += 1
    assert calls <= 2 * event_triggers.ROUNDS, (
        "unwanted events are handled in batches, and in many of them while there is time"
    )


def test_a_suspended_project_s_wait(tracker: Tracker, environment: EnvironmentRef) -> None:
    using = environment.cluster
    put(tracker, "owner", "tell", ONE, on=["lists.insert"])
    write(tracker)
    projects.suspend_project(tracker.project.pk, reason="abuse", actor=audit.SYSTEM)
    suspension.evict(using)
    assert relay(using) == 1
    assert event_triggers.queue(using) == 0
    suspension._known[using] = suspension._Known([], 1e12)  # a process that was not told yet
    assert event_triggers.queue(using) == 0
    assert (waiting(environment), runs(environment)) == (1, [])
    projects.resume_project(tracker.project.pk, actor=audit.SYSTEM)
    suspension.evict(using)
    assert [event_triggers.queue(using) for _ in range(2)] == [1, 0]


def test_nothing_stays_of_an_environment_that_goes(
    tracker: Tracker, environment: EnvironmentRef, make_tracker: Any
) -> None:
    neighbour: Tracker = make_tracker(DOCUMENT, name="Other")
    for each in (tracker, neighbour):
        put(each, "owner", "tell", ONE, on=["lists.insert"])
        write(each)
    relay(environment.cluster)
    assert PendingEvent in orphaned_rows._in_regions
    for _ in range(2):
        signal_handlers.delete_environment(environment_id=environment.environment_id, cluster=environment.cluster)
    left = PendingEvent.objects.using(environment.cluster).values_list("environment_id", flat=True)
    assert list(left) == [neighbour.environment_id]


# ── As whom ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.exhaustive
def test_it_runs_as_who_deployed_last_and_with_no_right_more(tracker: Tracker, environment: EnvironmentRef) -> None:
    weak = own_key(tracker, "weak", *ALL_SCOPES)
    strong = own_key(tracker, "strong", *ALL_SCOPES, "rows:write")
    assert put(tracker, "weak", "further", FURTHER, on=["lists.insert"]).json["on_as"] == weak
    write(tracker)
    (refused,) = run_events(environment)
    assert (refused.status, refused.error["reason"]) == ("failed", "user_error")
    assert shown(tracker, "further")["on_stopped"] is None, "a refusal in the code stops nothing"
    assert put(tracker, "strong", "further", FURTHER).json["on_as"] == strong
    assert put(tracker, "weak", "further", FURTHER + "\n").json["on_as"] == weak
    back = tracker.post("strong", "/functions/further/activate", {"version": 1})
    assert (back.status, back.json["on_as"]) == (200, strong)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("on", "missing"),
    [
        (["lists.insert"], "functions:invoke"), (["lists.insert"], "rows:read"), (["auth.user.created"], "rows:read"),
        (["webhook.disabled"], "webhooks:read"), (["*"], "webhooks:read"),
    ],
)  # fmt: skip
def test_who_may_not_hear_names_none_and_deploys_nothing_under_them(
    tracker: Tracker, environment: EnvironmentRef, on: list[str], missing: str
) -> None:
    own_key(tracker, "deployer", *(scope for scope in ALL_SCOPES if scope != missing))
    refused = put(tracker, "deployer", "tell", on=on)
    assert (refused.status, refused.error) == (403, "forbidden")
    assert missing in refused.json["error"]["message"]
    assert (Function.objects.using(environment.cluster).count(), interests(environment)) == (0, set())
    put(tracker, "owner", "tell", on=on)
    put(tracker, "owner", "tell")
    before = shown(tracker, "tell")
    assert put(tracker, "deployer", "tell").status == 403
    assert tracker.post("deployer", "/functions/tell/activate", {"version": 1}).status == 403
    assert shown(tracker, "tell") == before
    assert put(tracker, "deployer", "tell", on=None).json["on"] is None


def test_row_events_need_no_scope_of_webhooks(tracker: Tracker) -> None:
    own_key(tracker, "deployer", "functions:deploy", "functions:invoke", "rows:read")
    assert put(tracker, "deployer", "tell", on=["lists.*", "schema.migrated"]).status == 201


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", ["deleted", "expired", "may not invoke", "may not read"])
def test_it_stops_when_its_key_is_gone(tracker: Tracker, environment: EnvironmentRef, how: str) -> None:
    key_id = own_key(tracker, "deployer", *ALL_SCOPES)
    put(tracker, "deployer", "tell", on=["lists.insert"])
    put(tracker, "owner", "other", ONE, on=["lists.*"])
    write(tracker, "before", "too")
    key = ServerKey.objects.filter(pk=key_id)
    if how == "deleted":
        assert tracker.delete("owner", f"/keys/{key_id}").status == 204
    elif how == "expired":
        key.update(expires_at=datetime.now(UTC) - timedelta(seconds=1))
    else:
        lost = "functions:invoke" if how == "may not invoke" else "rows:read"
        key.update(scopes=[scope for scope in ALL_SCOPES if scope != lost])
    run_events(environment)
    assert {run.error["reason"] for run in runs(environment, function__name="tell")} == {"caller_gone"}
    stopped = shown(tracker, "tell")
    assert (stopped["on"], stopped["on_stopped"], stopped["on_as"]) == (["lists.insert"], "caller_gone", key_id)
    assert (shown(tracker, "other")["on_stopped"], interests(environment)) == (None, {("lists", "*")})
    entry = AuditEntry.objects.get(action="function.events_stopped")
    assert (entry.actor_kind, entry.environment_id, entry.project_id, entry.detail) == (
        "system", environment.environment_id, environment.project_id,
        {"name": "tell", "reason": "caller_gone", "runs_as": key_id},
    )  # fmt: skip
    count = len(runs(environment, function__name="tell"))
    write(tracker, "unheard")
    run_events(environment)
    assert len(runs(environment, function__name="tell")) == count
    # Deployed anew it stays stopped; named again it goes on.
    assert put(tracker, "owner", "tell").json["on_stopped"] == "caller_gone"
    assert put(tracker, "owner", "tell", on=["lists.insert"]).json["on_stopped"] is None
    write(tracker, "heard")
    assert run_events(environment)[-1].status == "succeeded"
    assert len(runs(environment, function__name="tell")) == count + 1
    put(tracker, "owner", "tell", on=None)
    assert tracker.delete("owner", "/functions/other").status == 204
    assert interests(environment) == set()


@pytest.mark.exhaustive
def test_it_does_not_stop_where_somebody_else_took_it_over_meanwhile(
    tracker: Tracker, environment: EnvironmentRef
) -> None:
    key_id = own_key(tracker, "deployer", *ALL_SCOPES)
    put(tracker, "deployer", "tell", on=["lists.insert"])
    write(tracker)
    relay(environment.cluster)
    assert event_triggers.queue(environment.cluster) == 1
    tracker.delete("owner", f"/keys/{key_id}")
    put(tracker, "owner", "tell")
    assert Worker(environment.cluster).run() == 1
    assert [run.status for run in runs(environment)] == ["failed"]
    assert shown(tracker, "tell")["on_stopped"] is None
    assert not AuditEntry.objects.filter(action="function.events_stopped").exists()


# ── Copies ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.exhaustive
def test_a_branch_has_them_stopped(tracker: Tracker, environment: EnvironmentRef) -> None:
    put(tracker, "owner", "tell", on=["lists.insert"])
    branch_id, there = preview_branch(tracker)
    copy = there("GET", "/functions/tell")
    assert (copy["on"], copy["on_stopped"], copy["on_as"]) == (["lists.insert"], "copied", None)
    branch = environment_ref(branch_id)
    assert branch is not None
    assert interests(branch) == set()
    there("POST", "/rows/lists", json={"name": "x", "owner_id": tracker.users["alice"]})
    write(tracker)
    assert {run.environment_id for run in run_events(environment)} == {environment.environment_id}
    assert there("PUT", "/functions/tell", json={"source": TELL})["on_stopped"] == "copied"
    again = there("PUT", "/functions/tell", json={"source": TELL, "on": ["lists.insert"]})
    assert (again["on_stopped"], interests(branch)) == (None, {("lists", "insert")})
