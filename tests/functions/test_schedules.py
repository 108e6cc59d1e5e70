"""Functions on a schedule: set with a deployment, run once when they are due, stopped without a valid run-as identity.
Against real PostgreSQL and Deno; a due time is brought about by putting it into the past."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from django.conf import settings
from django.db import OperationalError, connections, transaction

from accounts import audit
from accounts.models import AuditEntry, ServerKey
from functions import directory, tasks
from functions.models import Function, Run
from functions.runs import completion
from functions.runs import queue as run_queue
from functions.runtime.calls import Outcome
from functions.triggers import cron, schedules
from functions.worker import Worker
from platform_site.embedded import postgres as embedded_postgres
from platform_site.embedded.data_dir import Layout
from platform_site.http.fields import timestamp
from platform_site.identity import plans
from platform_site.identity.callers import EnvironmentRef
from projects import services as projects
from projects.directory.environments import environment_ref
from projects.models import Environment, Member
from projects.provisioning import suspension
from rows.models import OutboxEvent
from rows.tasks import flush_audit_outbox
from tests.projects.conftest import environment_of
from tests.rows.conftest import Tracker
from tests.support.client import Answer
from tests.support.functions import SUM, deploy, invoke, own_key, preview_branch
from tests.support.unavailable import database_unavailable
from webhooks.delivery.relay import relay_batch

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

TELL = "export default (input: any, ctx: any) => ({...input, caller: ctx.caller})"
LISTS = 'export default async (_: any, ctx: any) => (await ctx.rows.list("lists")).data.length'
RARELY = "@yearly"
"""What a test makes due and nothing else does."""
COPIED = {"schedule": RARELY, "next_run_at": None, "schedule_stopped": "copied", "scheduled_as": None}


@pytest.fixture(autouse=True)
def _nobody_is_suspended(environment: EnvironmentRef) -> Any:
    suspension.evict(environment.cluster)
    yield
    suspension.evict(environment.cluster)


def put(tracker: Tracker, who: str, name: str, source: str = TELL, **more: Any) -> Answer:
    return tracker.call(who, "PUT", f"/functions/{name}", json={"source": source, **more})


def shown(tracker: Tracker, name: str) -> dict[str, Any]:
    return dict(tracker.get("owner", f"/functions/{name}").json)


def stored(environment: EnvironmentRef, name: str) -> Function:
    return Function.objects.using(environment.cluster).get(environment_id=environment.environment_id, name=name)


def make_due(environment: EnvironmentRef, name: str, ago: timedelta = timedelta(minutes=3)) -> datetime:
    """Put the next time of the function `ago`; returns it."""
    at = datetime.now(UTC) - ago
    waiting = Function.objects.of(environment).filter(name=name)
    assert waiting.filter(next_run_at__isnull=False).update(next_run_at=at) == 1
    return at


def scheduled(environment: EnvironmentRef) -> list[Run]:
    return list(Run.objects.using(environment.cluster).filter(trigger="schedule").order_by("created_at"))


# ── Setting it ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.exhaustive
def test_a_schedule_is_set_kept_changed_and_taken_away(tracker: Tracker, environment: EnvironmentRef) -> None:
    owner = tracker.project.memberships.get(role="owner").user_id
    began = datetime.now(UTC)
    made = put(tracker, "owner", "report", schedule=" */15  8-18 * * MON-fri")
    assert made.status == 201
    assert made.json["schedule"] == "*/15 8-18 * * mon-fri"
    comes = cron.read("*/15 8-18 * * mon-fri").next_after
    assert made.json["next_run_at"] in {timestamp(comes(began)), timestamp(comes(datetime.now(UTC)))}
    assert (made.json["schedule_stopped"], made.json["scheduled_as"], made.json["last_skipped_at"]) == (
        None,
        owner,
        None,
    )
    again = put(tracker, "owner", "report", attempts=2)
    assert {**again.json, "updated_at": ""} == {**made.json, "attempts": 2, "updated_at": ""}
    assert tracker.get("owner", "/functions").json["data"] == [again.json]
    changed = put(tracker, "owner", "report", schedule="@daily").json
    assert (changed["schedule"], changed["next_run_at"][11:]) == ("@daily", "00:00:00.000000Z")
    taken = put(tracker, "owner", "report", schedule=None).json
    names = ("schedule", "next_run_at", "schedule_stopped", "scheduled_as", "last_skipped_at")
    assert [taken[name] for name in names] == [None] * 5
    assert put(tracker, "owner", "report").json["schedule"] is None
    told = AuditEntry.objects.filter(action="function.deployed").order_by("at", "id").values_list("detail", flat=True)
    assert [entry.get("schedule", "kept") for entry in told] == [
        "*/15 8-18 * * mon-fri", "kept", "@daily", None, "kept",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("60 * * * *", '"60" is not a valid minute'),
        ("* * * * * *", '"*" is a sixth field'),
        ("0 0 30 2 *", "never comes"),
        ("", None),
        ("0," * 5_000 + "0 * * * *", "at most 200"),
        ("٣ * * * *", "is not a valid minute"),
        ("CRON_TZ=Europe/Berlin 0 9 * * *", "is a time zone, and schedule times are UTC."),
        ("0 9 * * * Europe/Berlin", "is a time zone, and schedule times are UTC."),
        ("TZ=UTC @daily", "is a time zone, and schedule times are UTC."),
        ("0 9 * * * CET", "is a time zone, and schedule times are UTC."),
        (5, None),
        (["* * * * *"], None),
    ],
)
def test_what_is_no_schedule_is_refused_and_nothing_is_deployed(
    tracker: Tracker, environment: EnvironmentRef, value: Any, says: str | None
) -> None:
    put(tracker, "owner", "report", schedule="@hourly")
    before = shown(tracker, "report")
    refused = put(tracker, "owner", "report", schedule=value)
    assert (refused.status, [*refused.fields]) == (422, ["schedule"]), refused.json
    if says is not None:
        assert says in refused.json["error"]["fields"][0]["message"]
    assert shown(tracker, "report") == before


def test_a_nul_character_is_refused(tracker: Tracker, environment: EnvironmentRef) -> None:
    refused = put(tracker, "owner", "report", schedule="0\x00 * * * *")
    assert refused.status in {400, 422}
    assert not Function.objects.using(environment.cluster).exists()


def test_what_has_no_schedule_is_what_it_was(tracker: Tracker, environment: EnvironmentRef) -> None:
    deploy(tracker, "sum", SUM)
    assert schedules.queue_due(environment.cluster) == 0
    assert schedules.repair_future_times(environment.cluster) == 0
    run_id = invoke(tracker, "sum", {"a": 1, "b": 2}).json["run_id"]
    queued = tracker.post("owner", "/functions/sum/invoke", {"input": {"a": 1, "b": 2}, "async": True}).json["run_id"]
    assert [tracker.get("owner", f"/functions/sum/runs/{each}").json["trigger"] for each in (run_id, queued)] == [
        "call", "call",
    ]  # fmt: skip


@pytest.mark.exhaustive
def test_the_plan_says_how_many_run_by_a_schedule(
    tracker: Tracker, environment: EnvironmentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = replace(plans.PLANS["free"], schedules_per_environment=1)
    monkeypatch.setattr(plans, "PLANS", {**plans.PLANS, "free": free})
    assert put(tracker, "owner", "one", schedule="@hourly").status == 201
    refused = put(tracker, "owner", "two", schedule="@hourly")
    assert (refused.status, refused.error) == (422, "quota_exceeded")
    assert not Function.objects.using(environment.cluster).filter(name="two").exists()
    assert put(tracker, "owner", "one", schedule="@daily").status == 200, "it has its place"
    assert put(tracker, "owner", "two").status == 201
    assert tracker.get("owner", "/limits").json["limits"]["schedules_per_environment"] == {"limit": 1, "used": 1}
    put(tracker, "owner", "one", schedule=None)
    assert put(tracker, "owner", "two", schedule="@hourly").status == 200


@pytest.mark.exhaustive
def test_the_same_schedule_again_loses_no_time_that_is_due(tracker: Tracker, environment: EnvironmentRef) -> None:
    put(tracker, "owner", "tell", schedule=RARELY)
    due_at = make_due(environment, "tell")
    assert put(tracker, "owner", "tell", schedule=RARELY).json["next_run_at"] == timestamp(due_at)
    assert put(tracker, "owner", "tell", schedule="@monthly").json["next_run_at"] > timestamp(datetime.now(UTC))


# ── When it is due ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.exhaustive
def test_a_due_function_runs_and_says_what_for(tracker: Tracker, environment: EnvironmentRef) -> None:
    owner = tracker.project.memberships.get(role="owner").user
    put(tracker, "owner", "tell", schedule=RARELY)
    put(tracker, "owner", "later", schedule="@yearly")
    due_at = make_due(environment, "tell")
    tasks.queue_scheduled(environment.cluster)
    assert stored(environment, "tell").next_run_at > datetime.now(UTC)  # type: ignore[operator]
    assert Worker(environment.cluster).run() == 1
    (run,) = scheduled(environment)
    detail = tracker.get("owner", f"/functions/tell/runs/{run.pk}").json
    at = timestamp(due_at)
    assert (detail["status"], detail["trigger"], detail["attempts"]) == ("succeeded", "schedule", 1)
    assert detail["output"] == {
        "scheduled_at": at,
        "caller": {"kind": "account", "id": owner.pk, "email": owner.email, "role": None},
    }
    assert (run.is_async, run.version, run.depth, run.request_id, orjson.loads(run.input)) == (
        True, 1, 0, None, {"scheduled_at": at},
    )  # fmt: skip
    listed = tracker.get("owner", "/functions/tell/runs").json["data"]
    assert [(each["trigger"], each["event_id"]) for each in listed] == [("schedule", None)]


def test_the_example_of_the_guide_runs(tracker: Tracker, environment: EnvironmentRef) -> None:
    guide = (settings.BASE_DIR / "docs" / "how-to" / "functions.md").read_text()
    body = json.loads(guide.partition("/v1/functions/digest")[2].partition("-d '")[2].partition("}'\n")[0] + "}")
    assert tracker.call("owner", "PUT", "/functions/digest", json=body).status == 201
    assert run_due(tracker, environment, "digest")["output"] == 0


@pytest.mark.exhaustive
def test_a_due_time_makes_one_run_however_many_look(tracker: Tracker, environment: EnvironmentRef) -> None:
    for number in range(8):
        put(tracker, "owner", f"f{number}", "export default () => 1", schedule=RARELY)
        make_due(environment, f"f{number}")
    ready = threading.Barrier(6)

    def look() -> int:
        ready.wait(10)
        try:
            return sum(schedules.queue_due(environment.cluster) for _ in range(3))
        finally:
            connections.close_all()

    with ThreadPoolExecutor(6) as threads:
        made = [each.result(60) for each in [threads.submit(look) for _ in range(6)]]
    assert sum(made) == 8
    assert sorted(run.function.name for run in scheduled(environment)) == [f"f{number}" for number in range(8)]
    assert Worker(environment.cluster).run() == 8
    assert {run.status for run in scheduled(environment)} == {"succeeded"}


def test_it_is_claimed_and_queued_together_or_not_at_all(
    tracker: Tracker, environment: EnvironmentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tracker, "owner", "tell", schedule=RARELY)
    due_at = make_due(environment, "tell")
    with connections[environment.cluster].cursor() as cursor:
        cursor.execute("""
            CREATE FUNCTION platform.fails() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE 'no room' USING ERRCODE = '53100'; END $$;
            CREATE TRIGGER fails BEFORE UPDATE ON platform.functions_function
            FOR EACH ROW EXECUTE FUNCTION platform.fails()""")
        try:
            with pytest.raises(OperationalError):
                schedules.queue_due(environment.cluster)
        finally:
            cursor.execute("DROP TRIGGER fails ON platform.functions_function; DROP FUNCTION platform.fails()")
    assert (scheduled(environment), stored(environment, "tell").next_run_at) == ([], due_at)
    assert schedules.queue_due(environment.cluster) == 1


def test_what_was_missed_is_made_up_for_once(tracker: Tracker, environment: EnvironmentRef) -> None:
    put(tracker, "owner", "tell", schedule="*/10 * * * *")
    due_at = make_due(environment, "tell", timedelta(hours=5))
    assert schedules.queue_due(environment.cluster) == 1
    assert stored(environment, "tell").next_run_at > due_at + timedelta(hours=5)  # type: ignore[operator]
    assert Worker(environment.cluster).run() == 1
    assert [orjson.loads(run.input) for run in scheduled(environment)] == [{"scheduled_at": timestamp(due_at)}]


@pytest.mark.parametrize("phase", ["queued", "executing"])
def test_it_is_passed_over_while_its_last_run_has_not_ended(
    tracker: Tracker, environment: EnvironmentRef, phase: str
) -> None:
    using = environment.cluster
    put(tracker, "owner", "tell", schedule=RARELY)
    make_due(environment, "tell")
    assert schedules.queue_due(using) == 1
    started = run_queue.claim(using) if phase == "executing" else None
    passed = make_due(environment, "tell")
    assert schedules.queue_due(using) == 0
    (run,) = scheduled(environment)
    assert run.phase == phase
    assert shown(tracker, "tell")["last_skipped_at"] == timestamp(passed)
    assert stored(environment, "tell").next_run_at > datetime.now(UTC)  # type: ignore[operator]
    if started is not None:
        completion.record_end(started[0], Outcome(0.001, "1"))
    else:
        assert Worker(using).run() == 1
    make_due(environment, "tell")
    assert schedules.queue_due(using) == 1


def test_a_call_does_not_keep_it_and_a_call_is_not_kept_by_it(tracker: Tracker, environment: EnvironmentRef) -> None:
    """What is called is not the schedule's; and the claim changes no key, which a call's run names."""
    using = environment.cluster
    put(tracker, "owner", "tell", schedule=RARELY)
    tracker.post("owner", "/functions/tell/invoke", {"async": True})
    make_due(environment, "tell")
    with transaction.atomic(using=using):
        assert schedules._queue_batch(using, {environment.environment_id: "free"})[0] == 1
        with ThreadPoolExecutor(1) as other:

            def call() -> Answer:
                try:
                    return invoke(tracker, "tell", {})
                finally:
                    connections.close_all()

            assert other.submit(call).result(20).status == 200


def test_one_that_is_being_deployed_is_left_to_the_next_look(tracker: Tracker, environment: EnvironmentRef) -> None:
    using = environment.cluster
    put(tracker, "owner", "tell", schedule=RARELY)
    make_due(environment, "tell")
    with transaction.atomic(using=using):
        directory.function_of(environment, "tell", lock=True)
        with ThreadPoolExecutor(1) as other:

            def look() -> int:
                try:
                    return schedules.queue_due(using)
                finally:
                    connections.close_all()

            assert other.submit(look).result(20) == 0
    assert schedules.queue_due(using) == 1


def test_a_suspended_project_s_wait_and_are_made_up_for_once(tracker: Tracker, environment: EnvironmentRef) -> None:
    put(tracker, "owner", "tell", schedule=RARELY)
    due_at = make_due(environment, "tell")
    projects.suspend_project(tracker.project.pk, reason="abuse", actor=audit.SYSTEM)
    assert schedules.queue_due(environment.cluster) == 0
    suspension._known[environment.cluster] = suspension._Known([], 1e12)  # a process that was not told yet
    assert schedules.queue_due(environment.cluster) == 0
    assert (scheduled(environment), stored(environment, "tell").next_run_at) == ([], due_at)
    projects.resume_project(tracker.project.pk, actor=audit.SYSTEM)
    suspension.evict(environment.cluster)
    assert [schedules.queue_due(environment.cluster) for _ in range(2)] == [1, 0]


@pytest.mark.exhaustive
def test_nothing_comes_of_a_deleted_function_or_environment(tracker: Tracker, environment: EnvironmentRef) -> None:
    using = environment.cluster
    for name in ("gone", "left", "there"):
        put(tracker, "owner", name, schedule=RARELY)
        make_due(environment, name)
    assert tracker.delete("owner", "/functions/gone").status == 204
    Function.objects.using(using).filter(name="left").update(environment_id=None)  # with runs still to be removed
    other = environment_ref(environment_of(tracker.project, "development").pk)
    assert other is not None
    Function.objects.using(using).filter(name="there").update(environment_id=other.environment_id)
    put(tracker, "owner", "there", schedule=RARELY)
    make_due(environment, "there")
    Environment.objects.filter(pk=environment.environment_id).update(status="deleting")
    assert schedules.queue_due(using) == 1
    (run,) = scheduled(environment)
    assert run.environment_id == other.environment_id
    assert schedules.queue_due(using) == 0
    Run.objects.using(using).all().delete()
    Environment.objects.filter(pk=environment.environment_id).update(status="ready")
    assert schedules.queue_due(using) == 1
    (run,) = scheduled(environment)
    assert run.function.name == "there"
    # Deleted after it was queued: the run ends, and no notification says that a schedule stopped.
    Environment.objects.filter(pk=environment.environment_id).update(status="deleting")
    assert Worker(using).run() == 1
    assert [run.error["reason"] for run in scheduled(environment)] == ["caller_gone"]
    assert not AuditEntry.objects.filter(action="function.schedule_stopped").exists()


@pytest.mark.exhaustive
def test_one_that_cannot_be_read_stops_and_keeps_nobody_from_running(
    tracker: Tracker, environment: EnvironmentRef
) -> None:
    put(tracker, "owner", "odd", schedule=RARELY)
    put(tracker, "owner", "tell", schedule=RARELY)
    Function.objects.using(environment.cluster).filter(name="odd").update(schedule="every now and then")
    make_due(environment, "odd", timedelta(minutes=9))
    make_due(environment, "tell")
    assert schedules.queue_due(environment.cluster) == 1
    odd = shown(tracker, "odd")
    assert (odd["next_run_at"], odd["schedule_stopped"]) == (None, "unreadable")
    flush_audit_outbox(environment.cluster)
    entry = AuditEntry.objects.get(action="function.schedule_stopped")
    assert (entry.actor_kind, entry.environment_id, entry.detail["name"]) == (
        "system",
        environment.environment_id,
        "odd",
    )
    assert entry.detail["reason"] == "unreadable"
    assert put(tracker, "owner", "odd", schedule=RARELY).json["schedule_stopped"] is None


@pytest.mark.exhaustive
def test_a_clock_that_was_set_back_puts_nothing_off(tracker: Tracker, environment: EnvironmentRef) -> None:
    using = environment.cluster
    later = datetime.now(UTC) + timedelta(days=400)
    ran_at = datetime.now(UTC).replace(second=0, microsecond=0) + timedelta(minutes=50)
    daily = f"{ran_at.minute} {ran_at.hour} * * *"
    for name, text in (("often", "* * * * *"), ("rarely", "0 0 29 2 *"), ("soon", "*/5 * * * *"), ("daily", daily)):
        put(tracker, "owner", name, schedule=text)
    # Set back by less than two hours: what ran in 50 minutes, by the old clock, does not run again.
    times = {"often": later, "soon": ran_at, "daily": ran_at + timedelta(days=1)}
    for name, at in times.items():
        Function.objects.using(using).filter(name=name).update(next_run_at=at)
    rarely = stored(environment, "rarely").next_run_at
    tasks.repair_future_times(using)
    now = datetime.now(UTC)
    assert now - timedelta(minutes=1) < stored(environment, "often").next_run_at <= now + timedelta(minutes=1)  # type: ignore[operator]
    kept = {"rarely": rarely, "soon": times["soon"], "daily": times["daily"]}
    assert {name: stored(environment, name).next_run_at for name in kept} == kept
    assert schedules.repair_future_times(using) == 0


@pytest.mark.exhaustive
def test_many_are_queued_in_batches(
    tracker: Tracker, environment: EnvironmentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "BATCH", 2)
    for number in range(5):
        put(tracker, "owner", f"f{number}", "export default () => 1", schedule=RARELY)
        make_due(environment, f"f{number}")
    assert schedules.queue_due(environment.cluster) == 5


# ── As whom ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def run_due(tracker: Tracker, environment: EnvironmentRef, name: str) -> dict[str, Any]:
    """Let the function become due and run; the run."""
    make_due(environment, name)
    assert schedules.queue_due(environment.cluster) == 1
    assert Worker(environment.cluster).run() == 1
    return dict(tracker.get("owner", f"/functions/{name}/runs/{scheduled(environment)[-1].pk}").json)


@pytest.mark.exhaustive
def test_it_runs_as_the_key_that_deployed_it_and_with_no_right_more(
    tracker: Tracker, environment: EnvironmentRef
) -> None:
    weak = own_key(tracker, "weak", "functions:deploy", "functions:invoke")
    strong = own_key(tracker, "strong", "functions:deploy", "functions:invoke", "rows:read")
    assert put(tracker, "weak", "lists", LISTS, schedule=RARELY).json["scheduled_as"] == weak
    refused = run_due(tracker, environment, "lists")
    assert (refused["status"], refused["trigger"]) == ("failed", "schedule")
    assert shown(tracker, "lists")["next_run_at"] is not None, "a refusal in the code stops nothing"
    assert put(tracker, "strong", "lists", LISTS).json["scheduled_as"] == strong
    assert run_due(tracker, environment, "lists")["output"] == 0
    # Deploying or activating other code gives it the rights of the caller and not those of the previous one.
    assert put(tracker, "weak", "lists", LISTS + "\n").json["scheduled_as"] == weak
    assert run_due(tracker, environment, "lists")["status"] == "failed"
    put(tracker, "strong", "lists", LISTS)
    back = tracker.post("weak", "/functions/lists/activate", {"version": 3})
    assert (back.status, back.json["scheduled_as"]) == (200, weak)
    assert run_due(tracker, environment, "lists")["status"] == "failed"


@pytest.mark.exhaustive
def test_who_may_not_invoke_sets_none_and_deploys_nothing_under_one(
    tracker: Tracker, environment: EnvironmentRef
) -> None:
    own_key(tracker, "deployer", "functions:deploy")
    refused = put(tracker, "deployer", "lists", LISTS, schedule="@daily")
    assert (refused.status, refused.error) == (403, "forbidden")
    assert not Function.objects.using(environment.cluster).exists()
    put(tracker, "owner", "lists", LISTS, schedule="@daily")
    put(tracker, "owner", "lists", LISTS)
    before = shown(tracker, "lists")
    assert put(tracker, "deployer", "lists", LISTS).status == 403
    assert tracker.post("deployer", "/functions/lists/activate", {"version": 1}).status == 403
    assert shown(tracker, "lists") == before
    assert put(tracker, "deployer", "lists", LISTS, schedule=None).json["schedule"] is None


@pytest.mark.exhaustive
def test_one_for_app_users_alone_has_no_schedule(tracker: Tracker, environment: EnvironmentRef) -> None:
    refused = put(tracker, "owner", "tell", schedule="@daily", invoke="user")
    assert (refused.status, refused.fields) == (422, {"schedule": "for_users_only"})
    put(tracker, "owner", "tell", schedule="@daily")
    assert put(tracker, "owner", "tell", invoke="user").status == 422
    assert put(tracker, "owner", "tell", invoke="user", schedule=None).status == 200
    assert put(tracker, "owner", "tell", invoke="key", schedule="@daily").status == 200


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", ["deleted", "expired", "without the scope"])
def test_it_stops_when_its_key_is_gone(tracker: Tracker, environment: EnvironmentRef, how: str) -> None:
    key_id = own_key(tracker, "deployer", "functions:deploy", "functions:invoke")
    put(tracker, "deployer", "tell", schedule=RARELY)
    put(tracker, "owner", "other", schedule=RARELY)
    key = ServerKey.objects.filter(pk=key_id)
    if how == "deleted":
        assert tracker.delete("owner", f"/keys/{key_id}").status == 204
    elif how == "expired":
        key.update(expires_at=datetime.now(UTC) - timedelta(seconds=1))
    else:
        key.update(scopes=["functions:deploy"])
    run = run_due(tracker, environment, "tell")
    assert (run["status"], run["error"]) == (
        "failed",
        "CallerGone: the run-as identity of its schedule may no longer act here",
    )
    stopped = shown(tracker, "tell")
    assert (stopped["schedule"], stopped["next_run_at"], stopped["schedule_stopped"], stopped["scheduled_as"]) == (
        RARELY, None, "caller_gone", key_id,
    )  # fmt: skip
    assert shown(tracker, "other")["next_run_at"] is not None
    entry = AuditEntry.objects.get(action="function.schedule_stopped")
    assert (entry.actor_kind, entry.environment_id, entry.project_id) == (
        "system", environment.environment_id, environment.project_id,
    )  # fmt: skip
    assert entry.detail == {"name": "tell", "reason": "caller_gone", "scheduled_as": key_id}
    assert schedules.queue_due(environment.cluster) == 0
    # Deployed anew it stays stopped; set again it goes on.
    assert put(tracker, "owner", "tell").json["schedule_stopped"] == "caller_gone"
    again = put(tracker, "owner", "tell", schedule=RARELY).json
    assert (again["schedule_stopped"], again["next_run_at"] is not None) == (None, True)
    assert run_due(tracker, environment, "tell")["status"] == "succeeded"


@pytest.mark.exhaustive
def test_it_stops_when_a_member_leaves_or_becomes_a_viewer(tracker: Tracker, environment: EnvironmentRef) -> None:
    viewer = tracker.project.memberships.get(role="viewer")
    viewer.role = Member.Role.DEVELOPER
    viewer.save()
    put(tracker, "viewer", "tell", schedule=RARELY)
    assert run_due(tracker, environment, "tell")["output"]["caller"]["id"] == viewer.user_id
    viewer.role = Member.Role.VIEWER
    viewer.save()
    assert run_due(tracker, environment, "tell")["status"] == "failed"
    assert shown(tracker, "tell")["schedule_stopped"] == "caller_gone"
    viewer.role = Member.Role.DEVELOPER
    viewer.save()
    put(tracker, "viewer", "tell", schedule=RARELY)
    viewer.delete()
    assert run_due(tracker, environment, "tell")["status"] == "failed"
    assert shown(tracker, "tell")["schedule_stopped"] == "caller_gone"


@pytest.mark.exhaustive
def test_it_does_not_stop_where_somebody_else_took_it_over_meanwhile(
    tracker: Tracker, environment: EnvironmentRef
) -> None:
    key_id = own_key(tracker, "deployer", "functions:deploy", "functions:invoke")
    put(tracker, "deployer", "tell", schedule=RARELY)
    make_due(environment, "tell")
    assert schedules.queue_due(environment.cluster) == 1
    tracker.delete("owner", f"/keys/{key_id}")
    own_key(tracker, "successor", "functions:deploy", "functions:invoke")
    put(tracker, "successor", "tell")
    assert Worker(environment.cluster).run() == 1
    assert [run.status for run in scheduled(environment)] == ["failed"]
    assert shown(tracker, "tell")["schedule_stopped"] is None
    assert not AuditEntry.objects.filter(action="function.schedule_stopped").exists()


def test_queued_call_fails_after_its_caller_loses_the_right_to_invoke(
    tracker: Tracker, environment: EnvironmentRef
) -> None:
    key_id = own_key(tracker, "caller", "functions:invoke")
    put(tracker, "owner", "tell", schedule="@daily")
    run_id = tracker.post("caller", "/functions/tell/invoke", {"async": True}).json["run_id"]
    ServerKey.objects.filter(pk=key_id).update(scopes=["rows:read"])
    assert Worker(environment.cluster).run() == 1
    error = tracker.get("owner", f"/functions/tell/runs/{run_id}").json["error"]
    assert error == "CallerGone: the caller may no longer act here"
    assert shown(tracker, "tell")["next_run_at"] is not None


# ── Copies ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.exhaustive
def test_a_branch_has_the_schedule_stopped(tracker: Tracker, environment: EnvironmentRef) -> None:
    put(tracker, "owner", "tell", schedule=RARELY)
    put(tracker, "owner", "sum", SUM)
    _, there = preview_branch(tracker)
    copy = there("GET", "/functions/tell")
    assert {name: copy[name] for name in COPIED} == COPIED
    assert there("GET", "/functions/sum")["schedule_stopped"] is None
    make_due(environment, "tell")
    assert schedules.queue_due(environment.cluster) == 1
    assert {run.environment_id for run in scheduled(environment)} == {environment.environment_id}
    assert there("PUT", "/functions/tell", json={"source": TELL})["schedule_stopped"] == "copied"
    set_again = there("PUT", "/functions/tell", json={"source": TELL, "schedule": RARELY})
    assert (set_again["schedule_stopped"], set_again["next_run_at"] is not None) == (None, True)


def test_nothing_is_lost_without_the_control_database(tracker: Tracker, environment: EnvironmentRef) -> None:
    """The run-as identity and the plan would be unknown."""
    using = environment.cluster
    put(tracker, "owner", "tell", schedule=RARELY)
    due_at = make_due(environment, "tell")
    control = connections["default"].settings_dict["NAME"]
    with (
        embedded_postgres.connect(Layout(Path(os.environ["DATA_DIR"]))) as superuser,
        database_unavailable(superuser, control),
    ):
        with pytest.raises(OperationalError):
            schedules.queue_due(using)
        assert (scheduled(environment), stored(environment, "tell").next_run_at) == ([], due_at)
    connections["default"].close()
    assert schedules.queue_due(using) == 1


@pytest.mark.exhaustive
def test_webhooks_hear_of_its_end(tracker: Tracker, environment: EnvironmentRef) -> None:
    hook = {"url": "https://example.com/hook", "events": ["function.run.succeeded"]}
    webhook_id = tracker.post("owner", "/webhooks", hook).json["id"]
    put(tracker, "owner", "tell", schedule=RARELY)
    run = run_due(tracker, environment, "tell")
    event = OutboxEvent.objects.using(environment.cluster).get(type="function.run.succeeded")
    assert (orjson.loads(event.data)["run_id"], event.request_id) == (run["id"], None)
    relay_batch(environment.cluster)
    (delivery,) = tracker.get("owner", f"/webhooks/{webhook_id}/deliveries").json["data"]
    assert (delivery["event_type"], delivery["event_id"]) == ("function.run.succeeded", event.event_id)
