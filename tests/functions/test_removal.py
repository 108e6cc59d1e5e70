"""Deleting a function with a long history: it is gone at once, its name is free, and no statement is as long as that
history."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connections

from functions import directory, tasks
from functions.deploy import deletion as function_deletion
from functions.execution import calls, executor
from functions.models import Function, Run, Secret, Version
from functions.runs import completion, leases
from functions.runs.start import NewRun, start_run
from functions.runtime.calls import Outcome
from platform_site.identity.callers import EnvironmentRef
from platform_site.postgres import statements
from projects import tasks as projects
from tests.rows.conftest import Tracker
from tests.support.function_queue import claimed, key_of
from tests.support.functions import SUM, deploy, invoke
from tests.support.service import wait_for

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

LONG = 3 * function_deletion.BATCH + 7
_HISTORY = """
INSERT INTO platform.functions_run
       (id, environment_id, function_id, version, status, phase, is_async, input, logs, sandbox_layers, caller_kind, caller_id,
        depth, attempts, created_at, ended_at)
SELECT 'run_' || lpad(n::text, 26, '0'), %s, %s, 1, 'succeeded', 'ended', false, '{}', '[]', '{}', 'key', 'key_x',
       0, 1, now() + n * %s * interval '1 ms', now()
  FROM generate_series(1, %s) n
"""


@pytest.fixture
def using(environment: EnvironmentRef) -> str:
    return environment.cluster


def function_of(environment: EnvironmentRef, name: str) -> Function:
    return directory.function_of(environment, name)


def with_history(environment: EnvironmentRef, name: str, *, newer: bool = False) -> Function:
    """LONG runs that have ended, older than those that are there or newer."""
    function = function_of(environment, name)
    with connections[environment.cluster].cursor() as cursor:
        cursor.execute(_HISTORY, [environment.environment_id, function.pk, 1 if newer else -1, LONG])
    return function


@contextmanager
def rows_of_statements(using: str) -> Iterator[list[int]]:
    """How many rows each statement within touched or found."""
    touched: list[int] = []

    def note(execute: Callable[..., Any], sql: str, parameters: Any, many: bool, context: Any) -> Any:
        result = execute(sql, parameters, many, context)
        touched.append(context["cursor"].rowcount)
        return result

    with connections[using].execute_wrapper(note):
        yield touched


@pytest.mark.exhaustive
def test_it_is_gone_at_once_and_a_new_one_of_its_name_has_none_of_its_runs(
    tracker: Tracker, environment: EnvironmentRef, using: str
) -> None:
    deploy(tracker, "sum", SUM, secrets={"TOKEN": "hunter2"})
    deploy(tracker, "other", SUM)
    kept = invoke(tracker, "other", {"a": 1, "b": 1}).json["run_id"]
    old = with_history(environment, "sum")
    last = invoke(tracker, "sum", {"a": 1, "b": 1}).json["run_id"]
    first = "run_" + "1".zfill(26)
    for run_id in (first, last):
        assert tracker.get("owner", f"/functions/sum/runs/{run_id}").status == 200

    with rows_of_statements(using) as touched:
        assert tracker.call("owner", "DELETE", "/functions/sum").status == 204
    assert max(touched) <= function_deletion.BATCH
    assert not Secret.objects.using(using).exists()
    assert not Version.objects.using(using).filter(function=old.pk).exists()
    assert Run.objects.using(using).filter(function=old.pk).count() > function_deletion.BATCH, (
        "this is about what is left"
    )
    for method, path in (
        ("GET", ""),
        ("DELETE", ""),
        ("GET", "/runs"),
        ("GET", f"/runs/{first}"),
        ("GET", "/versions"),
    ):
        assert tracker.call("owner", method, f"/functions/sum{path}").status == 404, path
    assert invoke(tracker, "sum").status == 404
    assert [each["name"] for each in tracker.get("owner", "/functions").json["data"]] == ["other"]
    assert directory.count_functions(environment) == 1

    assert deploy(tracker, "sum", SUM).status == 201
    new = invoke(tracker, "sum", {"a": 2, "b": 2}).json["run_id"]
    assert [run["id"] for run in tracker.get("owner", "/functions/sum/runs").json["data"]] == [new]
    for run_id in (first, last):
        assert tracker.get("owner", f"/functions/sum/runs/{run_id}").status == 404

    with rows_of_statements(using) as touched:
        tasks.remove_deleted(using)
    assert max(touched) <= function_deletion.BATCH
    assert set(Run.objects.using(using).values_list("pk", flat=True)) == {kept, new}
    assert sorted(Function.objects.using(using).values_list("name", flat=True)) == ["other", "sum"]
    tasks.remove_deleted(using)
    assert set(Run.objects.using(using).values_list("pk", flat=True)) == {kept, new}


def test_queued_runs_of_deleted_function_never_start_and_delay_no_others(
    tracker: Tracker, environment: EnvironmentRef, using: str
) -> None:
    deploy(tracker, "sum", SUM)
    deploy(tracker, "other", SUM)
    waiting = calls.enqueue(NewRun(environment, key_of(environment), "sum", "{}"))
    with_history(environment, "sum", newer=True)  # so that it is on no first page
    behind = calls.enqueue(NewRun(environment, key_of(environment), "other", "{}"))
    assert tracker.call("owner", "DELETE", "/functions/sum").status == 204
    assert Run.objects.using(using).get(pk=waiting).phase == "queued"
    got = claimed(using)
    assert got is not None
    assert got.run_id == behind
    assert claimed(using) is None
    tasks.remove_deleted(using)
    assert list(Run.objects.using(using).values_list("pk", flat=True)) == [behind]


def test_what_executes_of_it_is_ended_and_leaves_nothing(
    tracker: Tracker, environment: EnvironmentRef, using: str
) -> None:
    deploy(tracker, "sum", SUM)
    executing, forgotten = (start_run(NewRun(environment, key_of(environment), "sum", '{"a":1}')) for _ in range(2))
    with_history(environment, "sum", newer=True)
    Run.objects.using(using).filter(pk=forgotten.run_id).delete()  # as a crash of PostgreSQL does
    assert leases.renew(using, [executing, forgotten]) == {executing.run_id, forgotten.run_id}
    assert tracker.call("owner", "DELETE", "/functions/sum").status == 204
    assert Run.objects.using(using).filter(pk=executing.run_id).exists()
    assert leases.renew(using, [executing, forgotten]) == set()
    assert not completion.record_end(forgotten, Outcome(0.001, "1"))
    completion.record_end(executing, Outcome(0.001, reason="crashed"))  # its process was notified, and reports this
    tasks.remove_deleted(using)
    assert not Run.objects.using(using).exists()


@pytest.mark.exhaustive
def test_the_process_of_a_run_is_ended_when_its_function_goes(
    tracker: Tracker, environment: EnvironmentRef, using: str, settings: Any
) -> None:
    """Over HTTP, while it executes, although its row is not removed yet."""
    settings.FUNCTION_LEASE = timedelta(seconds=2)
    deploy(tracker, "endless", "export default () => { while (true) {} }", timeout_ms=10_000)
    started = start_run(NewRun(environment, key_of(environment), "endless", "{}"))
    with_history(environment, "endless", newer=True)
    assert tracker.call("owner", "DELETE", "/functions/endless").status == 204
    assert Run.objects.using(using).filter(pk=started.run_id).exists()
    # As where it was called before.
    executor._sources[started.program_key] = b"export default () => { while (true) {} }"
    ended = executor.execute(started, key_of(environment), environment)
    assert (ended.status, ended.reason) == ("failed", "cancelled")


def test_run_that_starts_during_deletion_is_removed_by_the_periodic_job(
    tracker: Tracker, environment: EnvironmentRef, using: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy(tracker, "sum", SUM)
    old = with_history(environment, "sum")
    assert tracker.call("owner", "DELETE", "/functions/sum").status == 204
    pages = function_deletion._remove_page

    def late(using: str, function_id: str, after: Any) -> Any:
        ended_at = pages(using, function_id, after)
        if ended_at is None:
            statements.execute(using, _HISTORY, [environment.environment_id, old.pk, 1, 1])
        return ended_at

    with monkeypatch.context() as patched:
        patched.setattr(function_deletion, "_remove_page", late)
        with pytest.raises(IntegrityError):
            function_deletion.finish(using, old.pk)
        tasks.remove_deleted(using)  # says so in the log and goes on
    assert Function.objects.using(using).filter(pk=old.pk).exists()
    tasks.remove_deleted(using)
    assert not Run.objects.using(using).exists()
    assert not Function.objects.using(using).exists()


@pytest.mark.exhaustive
def test_what_is_gone_is_in_no_answer_and_no_replay(
    tracker: Tracker,
    environment: EnvironmentRef,
    using: str,
) -> None:
    deploy(tracker, "sum", SUM)
    keyed = {"headers": {"Idempotency-Key": "once"}}
    run_id = invoke(tracker, "sum", {"a": 1, "b": 1}, **keyed).json["run_id"]
    with_history(environment, "sum", newer=True)
    paths = ("/functions/sum", f"/functions/sum/runs/{run_id}", "/functions/sum/runs")
    assert [tracker.get("owner", path).status for path in paths] == [200] * 3
    assert invoke(tracker, "sum", {"a": 1, "b": 1}, **keyed).json["run_id"] == run_id
    assert tracker.call("owner", "DELETE", "/functions/sum").status == 204
    assert Run.objects.using(using).filter(pk=run_id).exists()
    assert invoke(tracker, "sum", {"a": 1, "b": 1}, **keyed).status == 404
    assert [tracker.get("owner", path).status for path in paths] == [404] * 3


@pytest.mark.exhaustive
def test_with_its_environment_it_goes_as_well(
    tracker: Tracker, environment: EnvironmentRef, using: str, settings: Any
) -> None:
    settings.DELETION_GRACE_SECONDS = 0
    deploy(tracker, "sum", SUM, secrets={"TOKEN": "hunter2"})
    deploy(tracker, "small", SUM)
    invoke(tracker, "small", {"a": 1, "b": 1})
    with_history(environment, "sum")
    with rows_of_statements(using) as touched:
        path = f"/v1/projects/{tracker.project.pk}"
        assert tracker.api.delete(path, token=tracker.tokens["owner"]).status == 204
        projects.finish_and_clean()
    assert max(touched) <= function_deletion.BATCH
    assert not Secret.objects.using(using).exists()
    assert not Version.objects.using(using).exists()
    assert [each.environment_id for each in Function.objects.using(using).all()] == [None]
    wait_for("no run is left", lambda: (tasks.remove_deleted(using), not Run.objects.using(using).exists())[1])
    assert not Function.objects.using(using).exists()
