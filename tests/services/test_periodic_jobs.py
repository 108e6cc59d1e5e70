"""Periodic jobs: one process at a time, by two clocks."""

import inspect
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from celery.contrib.testing.worker import start_worker
from django.apps import apps
from django.conf import settings
from django.db import InterfaceError, OperationalError, connections

import functions.runs.retention
import functions.tasks
import platform_site.config.tasks
import platform_site.tasks
import projects.tasks
import rows.outbox.audit
import rows.tasks
import webhooks.delivery.control_events
import webhooks.delivery.retention
import webhooks.tasks
from functions.runs import queue as run_queue
from platform_site.background import periodic
from platform_site.celery import app, stop_schedulers
from platform_site.config import stored_plans
from platform_site.console import rollups
from projects.provisioning import deletion as project_deletion
from projects.provisioning import orphaned_rows, schemas
from rows.models import CurrentVersion, PendingUserDeletion, PendingUserReferences
from tests.faults.inject import FAKETIME
from tests.support.service import wait_for
from tests.support.unavailable import terminate_connection

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@pytest.fixture
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the periodic jobs of the test."""
    monkeypatch.setattr(periodic, "_jobs", {})


def in_a_thread(job: periodic.PeriodicJob, ran: list[bool]) -> threading.Thread:
    def work() -> None:
        try:
            ran.append(job.run())
        finally:
            connections.close_all()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_job_running_in_another_process_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    running, go_on = threading.Event(), threading.Event()
    calls: list[int] = []

    def slow() -> None:
        calls.append(1)
        running.set()
        assert go_on.wait(10)

    job, ran = periodic.PeriodicJob("tests.slow", 1, slow), []
    first = in_a_thread(job, ran)
    assert running.wait(10)
    assert periodic.PeriodicJob("tests.slow", 1, slow).run() is False
    assert periodic.PeriodicJob("tests.other", 1, lambda: None).run() is True, "another job has a lock of its own"
    monkeypatch.setattr(periodic, "_MIN_STALL_SECONDS", 0.0)
    assert periodic.PeriodicJob("tests.slow", 60, slow).run() is False, "it may take its time"
    time.sleep(0.2)
    past: list[int] = []
    assert periodic.PeriodicJob("tests.slow", 0.05, lambda: past.append(1)).run() is True, "a stalled one is skipped"
    assert past == [1]
    go_on.set()
    first.join(10)
    assert ran == [True]
    assert calls == [1]


def test_failed_job_or_lost_connection_does_not_block_the_next_run() -> None:
    def bad() -> None:
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        periodic.PeriodicJob("tests.bad", 1, bad).run()
    assert periodic.PeriodicJob("tests.bad", 1, lambda: None).run() is True

    assert periodic.PeriodicJob("tests.cut", 1, lambda: terminate_connection(connections["default"])).run() is True
    connections.close_all()
    assert periodic.PeriodicJob("tests.cut", 1, lambda: None).run() is True


@pytest.mark.usefixtures("empty")
def test_a_worker_has_a_clock_for_each_database_until_it_ends() -> None:
    def clocks() -> set[str]:
        return {thread.name for thread in threading.enumerate() if thread.name.startswith("jobs-")}

    try:
        with start_worker(
            app, pool="solo", perform_ping_check=False, loglevel="ERROR", queues=["nobody-sends"], shutdown_timeout=20
        ):
            assert clocks() == {f"jobs-{alias}" for alias in connections}
    finally:
        stop_schedulers()  # as Celery's signal does; this way of ending a worker sends none
    assert clocks() == set()


@pytest.fixture
def clock() -> Iterator[periodic.SchedulerThread]:
    clock = periodic.SchedulerThread(tick=0.02)
    yield clock
    clock.stop()
    clock.join(60)
    assert not clock.is_alive()


@pytest.mark.usefixtures("empty")
def test_second_clock_runs_missed_jobs_and_survives_failures(
    clock: periodic.SchedulerThread,
) -> None:
    calls: dict[str, list[float]] = {"forsaken": [], "seen": [], "broken": []}

    def forsaken() -> None:
        calls["forsaken"].append(time.monotonic())

    def seen() -> None:
        calls["seen"].append(time.monotonic())

    def broken() -> None:
        calls["broken"].append(time.monotonic())
        raise ValueError("broken")

    for function, every in ((broken, 0.1), (forsaken, 0.1), (seen, 60)):
        periodic.periodic_job(every=every)(function)
    begun = time.monotonic()
    clock.start()
    wait_for("both ran twice", lambda: len(calls["forsaken"]) >= 2 and len(calls["broken"]) >= 2)
    assert calls["forsaken"][0] - begun >= 0.25, "beat had its three periods"
    assert calls["forsaken"][1] - calls["forsaken"][0] >= 0.25
    assert calls["seen"] == []


@pytest.mark.usefixtures("empty")
def test_job_at_the_start_waits_for_no_period(clock: periodic.SchedulerThread) -> None:
    ran = threading.Event()
    periodic.periodic_job(every=3600, at_start=True)(ran.set)
    clock.start()
    assert ran.wait(10)


def test_every_module_with_periodic_jobs_is_one_that_celery_imports() -> None:
    packages = ("platform_site", "accounts", "projects", "rows", "webhooks", "functions")
    files = [file for package in packages for file in Path(settings.BASE_DIR, package).rglob("*.py")]
    with_jobs = {file for file in files if "\n@periodic_job" in file.read_text()}
    assert with_jobs
    assert with_jobs <= {Path(found.path, "tasks.py") for found in apps.get_app_configs()}


def test_beat_knows_every_periodic_job() -> None:
    app.loader.import_default_modules()
    names = {found.name for found in periodic.all_jobs()}
    assert "projects.tasks.finish_and_clean" in names
    schedule = app.conf.beat_schedule.values()
    for task in schedule:
        assert task["task"] == "platform.run_sweep"
        expires = task["options"]["expires"]
        assert 900 <= expires <= 3600, "stale notifications do not pile up, and a clock may be wrong by minutes"
    every = {name: task["schedule"].run_every.total_seconds() for task in schedule for name in task["args"]}
    assert {found.name: found.every for found in periodic.all_jobs()}.items() <= every.items()
    assert sum(1 / task["schedule"].run_every.total_seconds() for task in schedule) < 4, "tasks per second when idle"


@pytest.mark.usefixtures("empty")
def test_frequent_jobs_share_a_task_and_a_failure_ends_no_other() -> None:
    ran: list[str] = []

    def fails() -> None:
        ran.append("fails")
        raise ValueError

    def works() -> None:
        ran.append("works")

    def rare() -> None:
        ran.append("rare")

    def rare_too() -> None:
        ran.append("rare")

    for function, every in ((fails, 2), (works, 2), (rare, 60), (rare_too, 60)):
        periodic.periodic_job(every=every)(function)
    names = [task["args"] for task in periodic.beat_schedule().values()]
    assert [len(each) for each in names] == [2, 1, 1]
    periodic.run_jobs(*names[0])
    assert ran == ["fails", "works"]


BEAT = """
import sys, time
import django
django.setup()
from celery import Celery
from celery.beat import Scheduler
from platform_site.background import periodic

periodic._jobs.clear()
periodic.periodic_job(every=0.1)(lambda: None)
app = Celery(broker="memory://")
app.conf.beat_schedule = periodic.beat_schedule()
beat = Scheduler(app)
for offset in ("+3d", "+0", "+3d"):
    with open(sys.argv[1], "w") as clock:
        clock.write(offset)
    sent = sum(entry.total_run_count for entry in beat.schedule.values())
    until = time.monotonic() + 20
    while time.monotonic() < until and sum(entry.total_run_count for entry in beat.schedule.values()) < sent + 5:
        until_next = time.monotonic() + min(beat.tick(), 1)
        while time.monotonic() < until_next:
            pass
    print(time.strftime("%d"), sum(entry.total_run_count for entry in beat.schedule.values()) - sent)
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(not FAKETIME.exists(), reason="there is no libfaketime on this machine")
def test_beat_goes_on_when_its_hosts_clock_is_set_back_or_forward(tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    clock.write_text("+3d")
    shifted = {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    said = subprocess.run(
        [sys.executable, "-c", BEAT, str(clock)], env=os.environ | shifted, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    [ahead, back, forward] = [line.split() for line in said]
    assert ahead[0] != back[0] != forward[0], "the clock was moved"
    assert [nudges for _, nudges in (ahead, back, forward)] == ["5"] * 3


@pytest.mark.usefixtures("empty")
def test_a_task_runs_its_job_and_an_unknown_name_is_another_releases() -> None:
    calls: list[int] = []
    periodic.periodic_job(every=60)(lambda: calls.append(1))
    [found] = periodic.all_jobs()
    periodic.run_jobs(found.name)
    periodic.run_jobs("of.another.release")
    assert calls == [1]
    periodic.run_jobs(found.name)
    assert calls == [1], "of many notifications one is enough"


@pytest.mark.usefixtures("empty")
def test_notification_of_a_frequent_job_goes_to_its_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    using = settings.REGION_DATABASES[0]
    ran: list[tuple[str, int]] = []
    busy, go_on = threading.Event(), threading.Event()

    def frequent(using: str) -> None:
        ran.append((threading.current_thread().name, connections[using].connection.info.backend_pid))

    def slow(using: str) -> None:
        busy.set()
        assert go_on.wait(30)

    def rare(using: str) -> None:
        frequent(using)

    for function, every in ((frequent, 15), (slow, 15), (rare, 16)):
        periodic.periodic_job_per_region(every=every)(function)

    def nudge(function: Callable[[str], None]) -> int:
        name = f"{function.__module__}.{function.__qualname__}@{using}"
        monkeypatch.setattr(periodic._jobs[name], "ran_at", -1e9)
        periodic.run_jobs(name)
        return len(ran)

    here, clock = threading.current_thread().name, periodic.SchedulerThread(using, tick=3600)
    assert nudge(frequent) == 1, "no clock: it is run here, at once"
    clock.start()
    try:
        wait_for("the clock waits", lambda: clock._is_waiting)
        for times in (2, 3):
            nudge(frequent)
            wait_for("it ran, and the clock waits again", lambda: len(ran) == times and clock._is_waiting)  # noqa: B023
        assert nudge(rare) == 4
        nudge(slow)
        assert busy.wait(30)
        assert nudge(frequent) == 5, "the clock is at another, which keeps this one from nothing"
    finally:
        go_on.set()
        clock.stop()
        clock.join(30)
    assert nudge(frequent) == 6, "the clock has ended"
    assert [thread for thread, _ in ran] == [here, clock.name, clock.name, here, here, here]
    assert ran[1] == ran[2], "one connection"


def _walks() -> Iterator[tuple[str, Callable[[], object], tuple[Any, str]]]:
    """Every periodic job over regions, and its query for each, whose first argument is the region."""
    yield (
        "control events",
        webhooks.tasks.move_remaining_control_events,
        (webhooks.delivery.control_events, "move_to_region"),
    )
    yield "the audit log", rows.tasks.flush_remaining_audit_outbox, (rows.outbox.audit, "flush_oldest")
    yield "orphans", projects.tasks.finish_and_clean, (schemas, "drop_orphans")
    yield "leftovers", projects.tasks.remove_orphaned_rows, (orphaned_rows, "find")
    yield "indexes", rows.tasks.settle, (CurrentVersion.objects, "using")
    yield "the departed", rows.tasks.apply_pending_user_deletions, (PendingUserReferences.objects, "using")
    yield "the leaving", rows.tasks.finish_user_deletions, (PendingUserDeletion.objects, "using")
    yield "old plans", platform_site.config.tasks.delete_old_plans, (stored_plans, "delete_old")
    yield "figures", platform_site.tasks.measure_regions, (rollups, "_queues")


@pytest.mark.parametrize("error", [InterfaceError, OperationalError, KeyError])
@pytest.mark.parametrize(("job", "asked"), [pytest.param(*walk[1:], id=walk[0]) for walk in _walks()])
def test_a_region_that_fails_keeps_no_other_from_its_turn(
    monkeypatch: pytest.MonkeyPatch,
    error: type[Exception],
    job: Callable[[], object],
    asked: tuple[Any, str],
) -> None:
    regions: list[str] = []

    def fail(using: str, *args: Any, **options: Any) -> None:
        regions.append(using)
        raise error("of this region alone")

    monkeypatch.setattr(*asked, fail)
    job()
    assert regions == list(settings.REGION_DATABASES)


def test_every_job_over_regions_is_checked() -> None:
    walking = {
        found.name
        for found in periodic.all_jobs()
        if "@" not in found.name
        and not found.name.startswith("tests.")
        and "REGION_DATABASES" in _source_with_helpers(found.function)
    }
    asked = {f"{walk[1].__module__}.{walk[1].__qualname__}" for walk in _walks()}
    assert walking <= asked


@pytest.mark.usefixtures("empty")
def test_regional_job_has_its_lock_and_clock_in_the_region(clock: periodic.SchedulerThread) -> None:
    first, second = settings.REGION_DATABASES[:2]
    ran: dict[str, threading.Event] = {using: threading.Event() for using in settings.REGION_DATABASES}
    periodic.periodic_job_per_region(every=0.1)(lambda using: ran[using].set())
    of_first, of_second = (found for found in periodic.all_jobs() if found.using in (first, second))
    with connections[first].cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", [f"job:{of_first.name}"])
        elsewhere: list[bool] = []
        in_a_thread(of_first, elsewhere).join(10)
        in_a_thread(of_second, elsewhere).join(10)
        cursor.execute("SELECT pg_advisory_unlock_all()")
    assert elsewhere == [False, True]
    ran[second].clear()
    clock.start()
    of_region = periodic.SchedulerThread(first, tick=0.02)
    of_region.start()
    assert ran[first].wait(20)
    of_region.stop()
    of_region.join(20)
    assert not ran[second].is_set(), "each clock has the jobs of one database"


def test_what_a_region_does_by_itself_asks_no_other_database() -> None:
    of_regions = [found for found in periodic.all_jobs() if found.using != "default"]
    assert {found.using for found in of_regions} == set(settings.REGION_DATABASES)

    def refuse(*_: Any) -> None:
        raise AssertionError("another database was asked")

    for found in of_regions:
        others = [connections[alias] for alias in connections if alias != found.using]
        with ExitStack() as stack:
            for other in others:
                stack.enter_context(other.execute_wrapper(refuse))
            assert found.run(), found.name


def _source_with_helpers(function: Callable[[], object]) -> str:
    """The source of a job and of the private functions of its module that it names."""
    module = inspect.getmodule(function)
    named = [getattr(module, name, None) for name in function.__code__.co_names if name.startswith("_")]
    return "".join(map(inspect.getsource, [function, *filter(inspect.isfunction, named)]))


def test_a_deletion_that_fails_keeps_no_other_from_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def finish(project_id: str) -> bool:
        asked.append(project_id)
        raise InterfaceError("of this region alone")

    monkeypatch.setattr(project_deletion, "unfinished", lambda after="": [] if after else ["prj_a", "prj_b"])
    monkeypatch.setattr(project_deletion, "finish", finish)
    projects.tasks.finish_and_clean()
    assert asked == ["prj_a", "prj_b"]


def test_a_worker_outlives_a_region_whose_connection_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    def claim(using: str, **_: bool) -> None:
        raise InterfaceError("the connection is closed")

    monkeypatch.setattr(run_queue, "claim", claim)
    functions.tasks.work(settings.REGION_DATABASES[0])
