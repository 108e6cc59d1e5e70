"""Concurrency slots, queues, cancelling and leases: which run executes, when, and for how long. With PostgreSQL and
Deno."""

import io
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import OperationalError, connections, transaction

from accounts.models import AuditEntry
from functions.deploy import service as deploy_service
from functions.errors import NoSuchFunction, TooManyRuns
from functions.execution import calls, executor, request_concurrency
from functions.execution.host_api import RunHost
from functions.models import Run
from functions.runs import completion, leases, statement_batching
from functions.runs import lease_renewer as watching
from functions.runs import queue as run_queue
from functions.runs.start import CreatedRun, NewRun, start_run
from functions.runtime.calls import HostError, Outcome
from functions.worker import Worker
from platform_site.embedded import postgres as embedded_postgres
from platform_site.embedded.data_dir import Layout
from platform_site.identity import call_depth
from platform_site.identity.callers import EnvironmentRef
from platform_site.postgres import loop_connections
from projects.directory.environments import environment_ref
from rows.outbox.models import OutboxEvent
from tests.projects.conftest import environment_of, make_project
from tests.rows.conftest import Tracker
from tests.support.concurrency import waiting_for_locks
from tests.support.function_queue import FREE, claimed, held, key_of
from tests.support.functions import SUM, deploy, invoke
from tests.support.service import wait_for
from tests.support.threads import refuse_new_threads
from tests.support.unavailable import database_unavailable

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(databases="__all__", transaction=True)]

ENDLESS = "export default () => { while (true) {} }"


def in_threads(count: int, work: Any) -> list[Any]:
    """What `work()` gave or raised in each of so many threads that begin together."""
    ready = threading.Barrier(count)

    def begin() -> Any:
        ready.wait(10)
        try:
            return work()
        except TooManyRuns as error:
            return error
        finally:
            connections.close_all()

    with ThreadPoolExecutor(count) as threads:
        return [each.result(60) for each in [threads.submit(begin) for _ in range(count)]]


def test_ten_concurrent_calls_take_exactly_the_plans_slots(tracker: Tracker, environment: EnvironmentRef) -> None:
    deploy(tracker, "sum", SUM, timeout_ms=1_500)
    began = in_threads(10, lambda: start_run(NewRun(environment, key_of(environment), "sum", "{}")))
    assert sum(isinstance(each, CreatedRun) for each in began) == FREE
    assert sum(isinstance(each, TooManyRuns) for each in began) == 10 - FREE
    assert Run.objects.using(environment.cluster).count() == FREE, "what is refused is no run"
    refused = invoke(tracker, "sum", {"a": 1, "b": 1})
    assert (refused.status, refused.error, refused.headers["Retry-After"]) == (429, "rate_limited", "1")
    ending = next(each for each in began if isinstance(each, CreatedRun))
    completion.record_end(ending, Outcome(0.001, "1"))
    assert invoke(tracker, "sum", {"a": 1, "b": 1}).json["output"] == {"sum": 2}


def test_a_queued_run_whose_caller_nobody_can_look_up_loses_no_try(
    tracker: Tracker, environment: EnvironmentRef
) -> None:
    deploy(tracker, "sum", SUM)
    queued = tracker.post("owner", "/functions/sum/invoke", {"input": {"a": 1, "b": 2}, "async": True})
    kept = Run.objects.using(environment.cluster).filter(pk=queued.json["run_id"])
    control = connections["default"].settings_dict["NAME"]
    with (
        embedded_postgres.connect(Layout(Path(os.environ["DATA_DIR"]))) as superuser,
        database_unavailable(superuser, control),
    ):
        with pytest.raises(OperationalError):
            Worker(environment.cluster).run()
        assert kept.values_list("phase", "attempts", "slot", "started_at").get() == ("queued", 0, None, None)
    connections["default"].close()
    wait_for("it is tried again", lambda: Worker(environment.cluster).run() == 1, every=0.2)
    assert kept.values_list("status", "attempts").get() == ("succeeded", 1)


def test_a_queued_run_waits_for_a_process_that_has_the_key_of_its_secrets(
    tracker: Tracker, environment: EnvironmentRef, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During a key rotation, data is encrypted with a new key before each process knows it: accepted runs are not lost.
    Not for ever, like any run; and a call that a client waits for fails at once."""
    known, new = settings.ENCRYPTION_KEYS, "ab" * 32
    source = "export default (_: unknown, ctx: any) => ctx.secrets.TOKEN"
    deploy(tracker, "tell", source, secrets={"TOKEN": "hush"})
    kept = Run.objects.using(environment.cluster)
    settings.ENCRYPTION_KEYS = [new, *known]
    call_command("rotate_encryption_keys", stdout=io.StringIO())
    settings.ENCRYPTION_KEYS = known
    queued = tracker.post("owner", "/functions/tell/invoke", {"async": True}).json["run_id"]
    monkeypatch.setattr(executor, "_UNKNOWN_KEY_DELAY", timedelta(seconds=1))
    assert Worker(environment.cluster).run() == 1
    assert kept.values_list("id", "phase", "attempts", "slot").get() == (queued, "queued", 0, None)
    called = invoke(tracker, "tell")
    assert (called.json["status"], called.json["error"].partition(":")[0]) == ("failed", "SecretsClosed")
    settings.ENCRYPTION_KEYS = [*known, new]
    wait_for("it is tried again", lambda: Worker(environment.cluster).run() == 1, every=0.2)
    assert kept.values_list("status", "output", "attempts").get(pk=queued) == ("succeeded", '"hush"', 1)
    settings.ENCRYPTION_KEYS = known
    monkeypatch.setattr(executor, "_UNKNOWN_KEY_LIMIT", timedelta(0))
    late = tracker.post("owner", "/functions/tell/invoke", {"async": True}).json["run_id"]
    assert Worker(environment.cluster).run() == 1
    ended = kept.get(pk=late)
    assert (ended.status, ended.error["name"], ended.attempts) == ("failed", "SecretsClosed", 1)
    settings.ENCRYPTION_KEYS = [*known, new]
    call_command("rotate_encryption_keys", stdout=io.StringIO())


def test_synchronous_run_lost_in_postgresql_crash_is_recorded_at_its_end(
    tracker: Tracker, environment: EnvironmentRef
) -> None:
    deploy(tracker, "sum", SUM)
    hook = {"url": "https://example.com/hook", "events": ["function.run.succeeded"]}
    assert tracker.post("owner", "/webhooks", hook).status == 201
    kept = Run.objects.using(environment.cluster)
    ending = Outcome(0.007, '{"sum":5}', sandbox_layers=("limits", "landlock"))
    whole = (
        "status",
        "phase",
        "output",
        "input",
        "sandbox_layers",
        "caller_id",
        "trigger",
        "address_id",
        "version",
        "attempts",
        "slot",
        "environment_id",
    )
    started = [
        start_run(NewRun(environment, key_of(environment), "sum", '{"a":2}', endpoint_id="inb_x")) for _ in range(2)
    ]
    kept.filter(pk=started[0].run_id).delete()  # its commit had not reached the disk
    assert [completion.record_end(each, ending) for each in started] == [True, True]
    events = OutboxEvent.objects.using(environment.cluster).filter(type="function.run.succeeded")
    assert events.count() == 2
    forgotten, remembered = (kept.values(*whole).get(pk=each.run_id) for each in started)
    assert forgotten == remembered
    # Once, and not if it is gone because its function is.
    assert not completion.record_end(started[0], ending)
    last = start_run(NewRun(environment, key_of(environment), "sum", "{}"))
    deploy_service.delete_function(environment, "sum", actor=key_of(environment))
    assert not completion.record_end(last, ending)
    assert events.count() == 2
    assert not kept.filter(environment_id=environment.environment_id).exists()


def test_run_lost_in_a_crash_is_recorded_unless_its_function_is_deleted(
    tracker: Tracker, environment: EnvironmentRef
) -> None:
    deploy(tracker, "sum", SUM)
    forgotten, remembered, taken = (start_run(NewRun(environment, key_of(environment), "sum", "{}")) for _ in range(3))
    kept = Run.objects.using(environment.cluster)
    kept.filter(pk=forgotten.run_id).delete()
    kept.filter(pk=taken.run_id).update(attempts=2)
    ours = {forgotten.run_id, remembered.run_id}
    assert leases.renew(environment.cluster, [forgotten, remembered, taken]) == ours
    deploy_service.delete_function(environment, "sum", actor=key_of(environment))
    assert leases.renew(environment.cluster, [forgotten, remembered, taken]) == set()


def test_a_run_is_on_disk_before_anything_of_it_leaves(tracker: Tracker, environment: EnvironmentRef) -> None:
    deploy(tracker, "sum", SUM)
    with connections[environment.cluster].cursor() as cursor:
        cursor.execute("SET synchronous_commit = on")  # what tests go without
        try:
            start_run(NewRun(environment, key_of(environment), "sum", "{}"))
            cursor.execute("SELECT pg_current_wal_insert_lsn()")
            (lsn,) = cursor.fetchone()
            statement_batching.wait_until_durable(environment.cluster)
            cursor.execute("SELECT pg_current_wal_flush_lsn() >= %s::pg_lsn", [lsn])
            assert cursor.fetchone() == (True,)
            cursor.execute("SHOW synchronous_commit")
            assert cursor.fetchone() == ("on",)
            # With an Idempotency-Key it shares a transaction with the record, and that is never lost.
            with transaction.atomic(using=environment.cluster):
                start_run(NewRun(environment, key_of(environment), "sum", "{}"))
                cursor.execute("SHOW synchronous_commit")
                assert cursor.fetchone() == ("on",)
        finally:
            cursor.execute("RESET synchronous_commit")


def test_a_fetch_waits_until_its_run_is_on_disk(environment: EnvironmentRef, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []
    monkeypatch.setattr(statement_batching, "wait_until_durable", waited.append)
    host = RunHost(key_of(environment), environment, allowed_hosts=("a.example",), depth=0)
    for _ in range(2):
        host._fetch({"method": "GET", "url": "http://a.example/"}, 1)
    assert waited == [environment.cluster]


def test_a_fetch_reaches_only_the_allowed_port_and_sends_our_depth(
    environment: EnvironmentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statement_batching, "wait_until_durable", lambda using: None)
    host = RunHost(key_of(environment), environment, allowed_hosts=("a.example:8080",), depth=0)
    asked = {"method": "GET", "url": "http://a.example:8080/", "headers": {call_depth.HEADER.upper(): "0"}}
    fetch: Any = host._fetch(asked, 1)
    assert list(fetch.args[2]) == [call_depth.HEADER.lower()]
    with pytest.raises(HostError, match="allowed_hosts"):
        host._fetch(asked | {"url": "https://a.example/"}, 1)


def test_a_run_that_is_over_asks_and_fetches_nothing(environment: EnvironmentRef) -> None:
    host = RunHost(key_of(environment), environment, allowed_hosts=("a.example",), depth=0)
    connection = loop_connections.connection(environment.cluster, environment.project_id)
    with host._interruptible():
        connection.ensure_connection()
        host.interrupt()
    assert connection.connection is None, "the cancel request could reach another statement"
    with pytest.raises(HostError, match="over"), host._interruptible():
        pass
    with pytest.raises(HostError, match="over"):
        host._request("GET", "http://a.example/", {}, b"", 1)


def test_function_deleted_during_calls_returns_not_found_to_callers(
    tracker: Tracker, environment: EnvironmentRef
) -> None:
    """A commit during the deletion: neither is refused because of the other, and no run is left."""
    deploy(tracker, "sum", SUM, secrets={"A": "b"})

    def begin(is_async: bool) -> Any:
        try:
            return start_run(NewRun(environment, key_of(environment), "sum", "{}", is_async=is_async))
        except NoSuchFunction as error:
            return error
        finally:
            connections.close_all()

    with ThreadPoolExecutor(9) as threads, transaction.atomic(using=environment.cluster):
        with connections[environment.cluster].cursor() as cursor:
            cursor.execute("SELECT FROM platform.functions_secret FOR UPDATE")
        deleting = threads.submit(tracker.call, "owner", "DELETE", "/functions/sum")
        wait_for("it waits for the lock", lambda: waiting_for_locks(environment.cluster))
        callers = [threads.submit(begin, number % 2 == 0) for number in range(8)]
        wait_for("one of each kind is at its commit", lambda: waiting_for_locks(environment.cluster) == 3)
        transaction.set_rollback(True, using=environment.cluster)
    assert deleting.result().status == 204
    assert [type(call.result()) for call in callers] == [NoSuchFunction] * 8
    assert not Run.objects.using(environment.cluster).exists()


def test_queued_runs_have_separate_slots(tracker: Tracker, environment: EnvironmentRef) -> None:
    deploy(tracker, "sum", SUM)
    for _ in range(FREE):
        start_run(NewRun(environment, key_of(environment), "sum", "{}"))
    for _ in range(FREE + 2):
        calls.enqueue(NewRun(environment, key_of(environment), "sum", "{}"))
    mine = [claimed(environment.cluster) for _ in range(FREE + 2)]
    assert [each is not None for each in mine] == [True] * FREE + [False] * 2
    assert mine[0] is not None
    completion.record_end(mine[0], Outcome(0.001, "1"))
    assert claimed(environment.cluster) is not None


def test_many_workers_claim_each_run_once(tracker: Tracker, environment: EnvironmentRef) -> None:
    deploy(tracker, "sum", SUM)
    team = environment_ref(environment_of(make_project(tracker.project.created_by, "Team", plan="team")).pk)
    assert team is not None
    deploy_service.deploy(team, "sum", {"source": SUM}, actor=key_of(team))
    queued = {calls.enqueue(NewRun(team, key_of(team), "sum", "{}")) for _ in range(40)}

    def work() -> list[str]:
        mine = []
        while (started := claimed(team.cluster)) is not None:
            mine.append(started.run_id)
        return mine

    claims = [run_id for mine in in_threads(6, work) for run_id in mine]
    # One that finds the last of them locked by another one stops; the periodic job would send another.
    claims += work()
    assert sorted(claims) == sorted(queued)


def queue_in_two(tracker: Tracker, environment: EnvironmentRef) -> EnvironmentRef:
    """Twenty runs in `environment`, and then one in another, which is returned."""
    other = environment_ref(environment_of(make_project(tracker.project.created_by, "Other")).pk)
    assert other is not None
    deploy(tracker, "sum", SUM)
    deploy_service.deploy(other, "sum", {"source": SUM}, actor=key_of(other))
    for _ in range(20):
        calls.enqueue(NewRun(environment, key_of(environment), "sum", "{}"))
    calls.enqueue(NewRun(other, key_of(other), "sum", "{}"))
    return other


def test_a_worker_without_further_threads_executes_all_runs(
    tracker: Tracker, environment: EnvironmentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy(tracker, "sum", SUM)
    for _ in range(3):
        tracker.post("owner", "/functions/sum/invoke", {"input": {"a": 1, "b": 2}, "async": True})
    refuse_new_threads(monkeypatch, "function-worker")
    assert Worker(environment.cluster).run() == 3
    assert {run.status for run in Run.objects.using(environment.cluster)} == {"succeeded"}


def test_environments_take_turns(tracker: Tracker, environment: EnvironmentRef) -> None:
    other = queue_in_two(tracker, environment)
    order = [started.environment_id for _ in range(3) if (started := claimed(environment.cluster))]
    assert sorted(order[:2]) == sorted([environment.environment_id, other.environment_id])
    assert order[2] == environment.environment_id


def test_an_older_backlog_is_not_worked_off_first(tracker: Tracker, environment: EnvironmentRef) -> None:
    """Backlogs of as many environments as a worker has threads would delay every other one's runs."""
    queue_in_two(tracker, environment)
    order = []
    while (started := claimed(environment.cluster)) is not None:
        order.append(started.environment_id)
        completion.record_end(started, Outcome(0.001, "1"))
    assert (len(order), order[-1]) == (21, environment.environment_id), "one in a million runs of this test fails"


def test_reserved_threads_are_for_short_runs_of_idle_environments(
    tracker: Tracker, environment: EnvironmentRef
) -> None:
    other, using = queue_in_two(tracker, environment), environment.cluster
    assert claimed(using) is not None
    assert claimed(using) is not None
    assert run_queue.claim(using, is_reserved=True) is None, "both execute one"
    Run.objects.using(using).filter(environment_id=other.environment_id).delete()
    for timeout_ms, expected in ((run_queue.SHORT_MS + 1, False), (run_queue.SHORT_MS, True)):
        values = {"source": SUM, "timeout_ms": timeout_ms}
        deploy_service.deploy(other, "sum", values, actor=key_of(other))
        calls.enqueue(NewRun(other, key_of(other), "sum", "{}"))
        found = run_queue.claim(using, is_reserved=True)
        assert (found is not None) is expected
    assert found is not None
    assert found[0].environment_id == other.environment_id


def test_slow_runs_of_one_environment_leave_threads_to_others(
    tracker: Tracker, environment: EnvironmentRef, settings: Any
) -> None:
    """Of a plan with more concurrency than a worker has threads, they delayed all others for up to five minutes."""
    settings.FUNCTION_WORKER_THREADS = FREE
    other = environment_ref(environment_of(make_project(tracker.project.created_by, "Other")).pk)
    assert other is not None
    slow = "export default () => new Promise((resolve) => setTimeout(resolve, 4_000))"
    deploy(tracker, "slow", slow)
    deploy_service.deploy(other, "sum", {"source": SUM}, actor=key_of(other))

    def enqueue(at: EnvironmentRef, name: str) -> str:
        owner = replace(key_of(at), kind="account", id=str(tracker.project.created_by_id))
        return calls.enqueue(NewRun(at, owner, name, '{"a": 1, "b": 2}'))

    for _ in range(FREE + 1):
        enqueue(environment, "slow")
    worker, runs = Worker(environment.cluster), Run.objects.using(environment.cluster)

    def work() -> None:
        try:
            worker.run()
        finally:
            connections.close_all()

    def executing() -> int:
        return runs.filter(function__name="slow", phase="executing").count()

    with ThreadPoolExecutor(2) as threads:
        threads.submit(work)
        wait_for("slow runs", lambda: executing() == FREE - 1)
        wait_for("the reserved thread finds nothing", lambda: worker._nothing_short_at > 0)
        with worker._reserved_slots:  # it has ended
            run_id = enqueue(other, "sum")
        threads.submit(work)
        wait_for("the other run", lambda: runs.filter(pk=run_id, status="succeeded").exists())
        assert executing() == FREE - 1
    assert runs.filter(function__name="slow", status="succeeded").count() == FREE + 1


def test_a_run_in_its_waiting_time_lets_others_pass(tracker: Tracker, environment: EnvironmentRef) -> None:
    deploy(tracker, "sum", SUM)
    waits, comes = (calls.enqueue(NewRun(environment, key_of(environment), "sum", "{}")) for _ in range(2))
    Run.objects.using(environment.cluster).filter(pk=waits).update(claimed_until="2999-01-01T00:00:00Z")
    found = run_queue.claim(environment.cluster)
    assert found is not None
    assert (found[0].run_id, found[1]) == (comes, True)
    assert claimed(environment.cluster) is None


def test_a_long_run_holds_up_no_other_and_is_cancelled(tracker: Tracker, environment: EnvironmentRef) -> None:
    deploy(tracker, "endless", ENDLESS, timeout_ms=10_000)
    deploy(tracker, "sum", SUM)
    worker = Worker(environment.cluster)
    long = tracker.post("owner", "/functions/endless/invoke", {"async": True}).json["run_id"]
    done: list[int] = []

    def work() -> None:
        done.append(worker.run())
        connections.close_all()

    thread = threading.Thread(target=work)
    thread.start()
    run = Run.objects.using(environment.cluster).filter(pk=long)
    wait_for("it executes", lambda: run.get().phase == "executing")
    short = tracker.post("owner", "/functions/sum/invoke", {"input": {"a": 1, "b": 1}, "async": True}).json["run_id"]
    assert worker.run() == 1
    assert tracker.get("owner", f"/functions/sum/runs/{short}").json["status"] == "succeeded"
    assert run.get().phase == "executing"
    assert tracker.post("owner", f"/functions/endless/runs/{long}/cancel", {}).status == 200
    thread.join(20)
    assert done == [1]
    ended = tracker.get("owner", f"/functions/endless/runs/{long}").json
    assert (ended["status"], ended["error"]) == ("failed", "Cancelled: the run was cancelled")


@pytest.fixture
def executing(tracker: Tracker, environment: EnvironmentRef, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An endless synchronous run in a thread of its own, watched closely; the answer is put into the list."""
    monkeypatch.setattr(watching, "RENEW_SECONDS", 0.05)
    settings.FUNCTION_LEASE = timedelta(seconds=3)
    deploy(tracker, "endless", ENDLESS, timeout_ms=10_000)
    answers: list[Any] = []

    def call() -> None:
        answers.append(invoke(tracker, "endless"))
        connections.close_all()

    thread = threading.Thread(target=call)
    thread.start()
    run = Run.objects.using(environment.cluster).filter(phase="executing")
    wait_for("it executes", run.exists)
    yield run.get(), answers
    thread.join(20)


def test_a_run_of_another_process_is_cancelled(executing: Any, environment: EnvironmentRef) -> None:
    run, answers = executing
    assert completion.request_cancel(environment.cluster, run.pk)  # all that the other process does
    wait_for("it ends", lambda: answers, 15)
    assert (answers[0].status, answers[0].json["error"]) == (200, "Cancelled: the run was cancelled")


def test_a_run_that_executes_is_cancelled_by_the_first_who_asks(tracker: Tracker, environment: EnvironmentRef) -> None:
    deploy(tracker, "sum", SUM)
    calls.enqueue(NewRun(environment, key_of(environment), "sum", "{}"))
    started = claimed(environment.cluster)  # by a process that does not look
    assert started is not None
    run, path = (
        Run.objects.using(environment.cluster).filter(pk=started.run_id),
        f"/functions/sum/runs/{started.run_id}/cancel",
    )
    assert [tracker.post("owner", path, {}).status for _ in range(3)] == [200, 200, 200]
    [entry] = AuditEntry.objects.filter(action="run.cancelled")
    assert (entry.target_id, entry.actor_kind) == (started.run_id, "account")
    asked_at = run.get().cancel_requested_at
    assert tracker.post("owner", path, {}).json["phase"] == "executing"
    assert run.get().cancel_requested_at == asked_at
    completion.record_end(started, Outcome(0.001, "1"))
    assert tracker.post("owner", path, {}).status == 409
    assert AuditEntry.objects.filter(action="run.cancelled").count() == 1


def test_the_lease_of_a_run_is_renewed_while_it_lives(executing: Any, environment: EnvironmentRef) -> None:
    run, _ = executing
    rows = Run.objects.using(environment.cluster).filter(pk=run.pk)
    wait_for("its lease is renewed", lambda: rows.get().claimed_until > run.claimed_until + timedelta(seconds=1))
    assert leases.settle_lost(environment.cluster) == (0, 0)
    completion.request_cancel(environment.cluster, run.pk)


@pytest.mark.parametrize("change", [{"attempts": 7}, {"phase": "queued", "slot": None}])
def test_a_run_that_another_process_took_over_is_given_up(
    executing: Any, environment: EnvironmentRef, change: dict[str, Any]
) -> None:
    run, answers = executing
    rows = Run.objects.using(environment.cluster).filter(pk=run.pk)
    rows.update(**change)
    wait_for("it is given up", lambda: answers, 15)
    assert answers[0].json["error"] == "Cancelled: the run was cancelled", "and not by its timeout"
    assert rows.get().phase == change.get("phase", "executing"), "only the attempt that is current writes an outcome"
    rows.update(phase="ended", status="failed", slot=None)


def test_a_run_claimed_again_by_its_own_process_has_one_attempt_there(
    tracker: Tracker, environment: EnvironmentRef
) -> None:
    """As after a machine that slept: the first attempt ends, and the second keeps its lease and can be cancelled."""
    deploy(tracker, "endless", ENDLESS, timeout_ms=10_000)
    run_id = tracker.post("owner", "/functions/endless/invoke", {"async": True}).json["run_id"]
    run = Run.objects.using(environment.cluster).filter(pk=run_id)
    done: list[int] = []

    def work() -> None:
        done.append(Worker(environment.cluster).run())
        connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(2)]
    threads[0].start()
    wait_for("the first attempt executes", lambda: executor.pool().sizes()[1] == 1)
    run.update(phase="queued", slot=None, claimed_until=None)  # as `leases.settle_lost` does
    threads[1].start()
    wait_for("the first attempt ends", lambda: done, 5)
    assert run.values_list("phase", "attempts").get() == ("executing", 2)
    assert completion.request_cancel(environment.cluster, run_id)  # all that another process does
    wait_for("the second attempt ends", lambda: len(done) == 2, 5)
    for thread in threads:
        thread.join(20)
    assert run.get().error["name"] == "Cancelled"


def test_an_attempt_that_is_over_puts_no_run_back(tracker: Tracker, environment: EnvironmentRef) -> None:
    deploy(tracker, "sum", SUM, attempts=3)
    calls.enqueue(NewRun(environment, key_of(environment), "sum", "{}"))
    started = claimed(environment.cluster)
    assert started is not None
    run = Run.objects.using(environment.cluster).filter(pk=started.run_id)
    run.update(attempts=2)  # another process has taken it over
    assert not run_queue.retry_later(started, timedelta())
    run_queue.release(started, timedelta())
    assert (run.get().phase, run.get().attempts) == ("executing", 2)


def test_a_run_that_fails_while_it_is_being_cancelled_is_not_tried_again(
    tracker: Tracker, environment: EnvironmentRef
) -> None:
    deploy(tracker, "sum", SUM, attempts=3)
    for is_asked, is_again in ((False, True), (True, False)):
        calls.enqueue(NewRun(environment, key_of(environment), "sum", "{}"))
        started = claimed(environment.cluster)
        assert started is not None
        if is_asked:
            assert completion.request_cancel(environment.cluster, started.run_id)
        assert run_queue.retry_later(started, timedelta(minutes=1)) is is_again


def test_a_cancelled_run_is_not_begun_again_and_tells_its_webhooks(
    tracker: Tracker, environment: EnvironmentRef
) -> None:
    deploy(tracker, "sum", SUM)
    hook = {"url": "https://example.com/hook", "events": ["function.run.failed"]}
    assert tracker.post("owner", "/webhooks", hook).status == 201
    queued, begun = (calls.enqueue(NewRun(environment, key_of(environment), "sum", "{}")) for _ in range(2))
    assert tracker.post("owner", f"/functions/sum/runs/{queued}/cancel", {}).status == 200
    started = claimed(environment.cluster)
    assert started is not None
    assert started.run_id == begun
    assert completion.request_cancel(environment.cluster, begun)
    Run.objects.using(environment.cluster).filter(pk=begun).update(claimed_until="2020-01-01T00:00:00Z")
    assert leases.settle_lost(environment.cluster) == (0, 1)
    told = [event.data for event in OutboxEvent.objects.using(environment.cluster).filter(type="function.run.failed")]
    assert sorted(run_id for run_id in (queued, begun) for data in told if run_id in data) == sorted([queued, begun])
    assert all("Cancelled" in data for data in told)


def test_requests_that_wait_never_take_every_thread(
    tracker: Tracker, environment: EnvironmentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slow calls of one environment leave slots for other tenants' calls, and all of them for everything else."""
    deploy(tracker, "sum", SUM)
    room = request_concurrency.ConcurrencyLimiter(slots=4, shared=3)
    monkeypatch.setattr(request_concurrency, "limiter", room)
    with held(room, environment.environment_id, "env_other"):
        assert invoke(tracker, "sum", {"a": 1, "b": 1}).status == 200
        with held(room, "env_other"):
            with held(room, "env_third"), pytest.raises(request_concurrency.Full), room.slot("env_fourth"):
                pass
            refused = invoke(tracker, "sum", {"a": 1, "b": 1})
            assert (refused.status, refused.error) == (429, "rate_limited")
            assert int(refused.headers["Retry-After"]) >= 1
            assert not Run.objects.using(environment.cluster).filter(status="running").exists()
            queued = invoke(tracker, "sum", {"a": 1, "b": 1}, headers={"Prefer": "respond-async, wait=30"})
            assert queued.status == 202, "with an id in hand there is nothing to wait for here"
    assert invoke(tracker, "sum", {"a": 1, "b": 1}).status == 200


def test_longer_backlog_takes_no_more_threads(tracker: Tracker, environment: EnvironmentRef) -> None:
    """Each thread has a connection to the region and one to the control database."""
    deploy(tracker, "sum", SUM)
    for _ in range(250):
        assert tracker.post("owner", "/functions/sum/invoke", {"input": {"a": 1, "b": 1}, "async": True}).status == 202
    most, is_over = [0], threading.Event()

    def watch() -> None:
        while not is_over.wait(0.01):
            working = [thread for thread in threading.enumerate() if thread.name == "function-worker"]
            most[0] = max(most[0], len(working))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        assert Worker(environment.cluster).run() == 250
    finally:
        is_over.set()
        watcher.join()
    assert 0 < most[0] <= 2 * settings.FUNCTION_WORKER_THREADS, "some may be about to end"
    assert not Run.objects.using(environment.cluster).exclude(phase="ended").exists()
