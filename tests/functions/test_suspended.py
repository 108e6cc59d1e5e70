"""Runs of a suspended project: queued ones wait and run once, executing ones end by themselves."""

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.db.models.functions import Now

from accounts import audit
from functions.execution import calls
from functions.models import Run
from functions.runs import queue as run_queue
from functions.runs import retention as run_retention
from functions.worker import Worker
from platform_site.identity.callers import EnvironmentRef
from projects import services as projects
from projects.models import Project
from projects.provisioning import suspension
from tests.rows.conftest import Tracker
from tests.support.functions import SUM, deploy, invoke
from tests.support.service import wait_for
from tests.support.tracker import DOCUMENT

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(databases="__all__", transaction=True)]


def suspend(tracker: Tracker) -> None:
    projects.suspend_project(tracker.project.pk, reason="abuse", actor=audit.SYSTEM)


def resume(tracker: Tracker) -> None:
    projects.resume_project(tracker.project.pk, actor=audit.SYSTEM)


def queued(tracker: Tracker, name: str = "sum") -> str:
    got = tracker.post("owner", f"/functions/{name}/invoke", {"input": {"a": 2, "b": 3}, "async": True})
    assert got.status == 202, got.json
    return str(got.json["run_id"])


def test_a_queued_run_waits_and_runs_once(tracker: Tracker, environment: EnvironmentRef) -> None:
    deploy(tracker, "sum", SUM)
    run_id = queued(tracker)
    using = environment.cluster
    suspend(tracker)
    assert run_queue.is_due(using) is False, "no worker is woken for it"
    assert Worker(using).run() == 0
    run = Run.objects.using(using).get(pk=run_id)
    assert (run.phase, run.attempts, run.started_at, run.claimed_until) == ("queued", 0, None, None)
    assert run_retention.purge(using, older_than=timedelta(0)) == 0, "what waits does not expire"
    resume(tracker)
    assert run_queue.is_due(using) is True
    assert Worker(using).run() == 1
    done = tracker.get("owner", f"/functions/sum/runs/{run_id}").json
    assert (done["status"], done["output"], done["attempts"]) == ("succeeded", {"sum": 5}, 1)
    assert Worker(using).run() == 0


def test_claimed_run_returns_to_the_queue_when_suspension_is_noticed(
    tracker: Tracker, environment: EnvironmentRef
) -> None:
    deploy(tracker, "sum", SUM)
    run_id = queued(tracker)
    using = environment.cluster
    assert suspension.suspended_in(using) == []  # this process believes so for KNOWN_SECONDS
    Project.objects.filter(pk=tracker.project.pk).update(suspended_at=Now(), suspension_reason="abuse")
    Worker(using).run()
    run = Run.objects.using(using).get(pk=run_id)
    assert (run.phase, run.attempts, run.slot, run.started_at) == ("queued", 0, None, None)
    assert sorted(suspension.suspended_in(using)) == sorted(
        tracker.project.environments.values_list("pk", flat=True)
    ), "and knows now"
    resume(tracker)
    assert Worker(using).run() == 1
    assert Run.objects.using(using).get(pk=run_id).attempts == 1


def test_neighbours_have_their_turn_whatever_waits(
    tracker: Tracker, environment: EnvironmentRef, make_tracker: Any
) -> None:
    other: Tracker = make_tracker(DOCUMENT, name="Other")
    for each in (tracker, other):
        deploy(each, "sum", SUM)
        for _ in range(3):
            queued(each)
    suspend(tracker)
    assert Worker(environment.cluster).run() == 3
    ended = Run.objects.using(environment.cluster).filter(phase="ended").values_list("environment_id", flat=True)
    assert set(ended) == {other.environment_id}


def test_the_last_run_that_may_is_the_last(tracker: Tracker, environment: EnvironmentRef, make_tracker: Any) -> None:
    """A claim says whether it took the last one; a sibling thread is not called for what has to wait."""
    other: Tracker = make_tracker(DOCUMENT, name="Other")
    for each in (tracker, other):
        deploy(each, "sum", SUM)
        queued(each)
    suspend(tracker)
    found = run_queue.claim(environment.cluster)
    assert found is not None
    assert (found[0].environment_id, found[1]) == (other.environment_id, True)
    assert run_queue.claim(environment.cluster) is None


def test_an_executing_run_ends_by_itself_and_is_answered(tracker: Tracker, environment: EnvironmentRef) -> None:
    slow = "export default async () => { await new Promise((r) => setTimeout(r, 1000)); return 'ended' }"
    deploy(tracker, "slow", slow)
    answers = []

    def call() -> None:
        try:
            answers.append(invoke(tracker, "slow"))
        finally:
            connections.close_all()

    thread = threading.Thread(target=call)
    thread.start()
    wait_for("the run", lambda: Run.objects.using(environment.cluster).filter(phase="executing").exists())
    suspend(tracker)
    assert invoke(tracker, "slow").error == "project_suspended"
    thread.join(30)
    (answer,) = answers
    assert (answer.status, answer.json["output"]) == (200, "ended")


def test_a_run_is_kept_for_a_week_after_it_ended_however_long_it_waited(
    tracker: Tracker, environment: EnvironmentRef
) -> None:
    deploy(tracker, "sum", SUM)
    run_id = queued(tracker)
    old = "run_00000000000000000000000000"  # ids begin with their time: this one is of 1970
    with connections[environment.cluster].cursor() as cursor:
        cursor.execute("UPDATE platform.functions_run SET id = %s WHERE id = %s", [old, run_id])
    assert Worker(environment.cluster).run() == 1
    assert run_retention.purge(environment.cluster) == 0
    Run.objects.using(environment.cluster).update(ended_at=Now() - timedelta(days=8))
    assert run_retention.purge(environment.cluster) == 1


def test_staff_may_cancel_what_waits(tracker: Tracker, environment: EnvironmentRef) -> None:
    deploy(tracker, "sum", SUM)
    run_id = queued(tracker)
    suspend(tracker)
    calls.cancel(environment, Run.objects.using(environment.cluster).get(pk=run_id), actor=audit.SYSTEM)
    resume(tracker)
    assert Worker(environment.cluster).run() == 0
    assert Run.objects.using(environment.cluster).get(pk=run_id).status == "failed"


def test_claiming_asks_the_control_database_once_in_a_while(tracker: Tracker, environment: EnvironmentRef) -> None:
    deploy(tracker, "sum", SUM)
    suspension.evict(environment.cluster)
    for _ in range(10):
        assert run_queue.claim(environment.cluster) is None
    first = suspension._known[environment.cluster]
    assert run_queue.claim(environment.cluster) is None
    assert suspension._known[environment.cluster] is first
