"""Sweeps: one process at a time, by two clocks."""

import inspect
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db import InterfaceError, OperationalError, connections

import functions.retention
import functions.tasks
import platform_site.tasks
import projects.tasks
import rows.tasks
import webhooks.control
import webhooks.retention
import webhooks.tasks
from functions import runs
from platform_site.api import sweeps
from platform_site.celery import app
from platform_site.figures import rollups
from platform_site.services import postgres
from platform_site.services.layout import Layout
from projects import provisioning, removal
from rows import uniques
from rows.models import CurrentVersion
from tests.serving import wait_for

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@pytest.fixture
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """No sweeps but the test's own."""
    monkeypatch.setattr(sweeps, "_sweeps", {})


def in_a_thread(sweep: sweeps.Sweep, ran: list[bool]) -> threading.Thread:
    def work() -> None:
        try:
            ran.append(sweep.run())
        finally:
            connections.close_all()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_sweep_that_runs_elsewhere_is_not_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    running, go_on = threading.Event(), threading.Event()
    calls: list[int] = []

    def slow() -> None:
        calls.append(1)
        running.set()
        assert go_on.wait(10)

    sweep, ran = sweeps.Sweep("tests.slow", 1, slow), []
    first = in_a_thread(sweep, ran)
    assert running.wait(10)
    assert sweeps.Sweep("tests.slow", 1, slow).run() is False
    assert sweeps.Sweep("tests.other", 1, lambda: None).run() is True, "another sweep has a lock of its own"
    monkeypatch.setattr(sweeps, "_PATIENCE", 0.0)
    assert sweeps.Sweep("tests.slow", 60, slow).run() is False, "it may take its time"
    time.sleep(0.2)
    past: list[int] = []
    assert sweeps.Sweep("tests.slow", 0.05, lambda: past.append(1)).run() is True, "one that stands still is passed by"
    assert past == [1]
    go_on.set()
    first.join(10)
    assert ran == [True]
    assert calls == [1]


def test_a_sweep_that_fails_or_whose_connection_dies_keeps_nobody_from_the_next() -> None:
    def bad() -> None:
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        sweeps.Sweep("tests.bad", 1, bad).run()
    assert sweeps.Sweep("tests.bad", 1, lambda: None).run() is True

    def cut() -> None:
        with postgres.connect(Layout(Path(os.environ["DATA_DIR"]))) as connection:
            connection.execute("SELECT pg_terminate_backend(%s)", [connections["default"].connection.info.backend_pid])

    assert sweeps.Sweep("tests.cut", 1, cut).run() is True
    connections.close_all()
    assert sweeps.Sweep("tests.cut", 1, lambda: None).run() is True


@pytest.fixture
def clock() -> Iterator[sweeps.Clock]:
    clock = sweeps.Clock(tick=0.02)
    yield clock
    clock.stop()
    clock.join(5)


@pytest.mark.usefixtures("empty")
def test_the_second_clock_runs_what_was_not_seen_for_three_periods_and_survives_failures(clock: sweeps.Clock) -> None:
    calls: dict[str, list[float]] = {"forsaken": [], "seen": [], "broken": []}

    def forsaken() -> None:
        calls["forsaken"].append(time.monotonic())

    def seen() -> None:
        calls["seen"].append(time.monotonic())

    def broken() -> None:
        calls["broken"].append(time.monotonic())
        raise ValueError("broken")

    for function, every in ((broken, 0.1), (forsaken, 0.1), (seen, 60)):
        sweeps.sweep(every=every)(function)
    begun = time.monotonic()
    clock.start()
    wait_for("both ran twice", lambda: len(calls["forsaken"]) >= 2 and len(calls["broken"]) >= 2)
    assert calls["forsaken"][0] - begun >= 0.25, "beat had its three periods"
    assert calls["forsaken"][1] - calls["forsaken"][0] >= 0.25
    assert calls["seen"] == []


@pytest.mark.usefixtures("empty")
def test_a_sweep_at_the_start_waits_for_no_period(clock: sweeps.Clock) -> None:
    ran = threading.Event()
    sweeps.sweep(every=3600, at_start=True)(ran.set)
    clock.start()
    assert ran.wait(10)


def test_beat_knows_every_sweep_of_every_app() -> None:
    app.loader.import_default_modules()
    names = {found.name for found in sweeps.all_sweeps()}
    assert "projects.tasks.finish_and_clean" in names
    schedule = app.conf.beat_schedule
    assert names <= set(schedule)
    for name in names:
        assert schedule[name]["task"] == "platform.run_sweep"
        expires = schedule[name]["options"]["expires"]
        assert 900 <= expires <= 3600, "stale nudges do not pile up, and a clock may be wrong by minutes"


@pytest.mark.usefixtures("empty")
def test_a_nudge_runs_its_sweep_and_an_unknown_name_is_another_releases() -> None:
    calls: list[int] = []
    sweeps.sweep(every=60)(lambda: calls.append(1))
    [found] = sweeps.all_sweeps()
    sweeps.run_sweep(found.name)
    sweeps.run_sweep("of.another.release")
    assert calls == [1]
    sweeps.run_sweep(found.name)
    assert calls == [1], "of a pile of nudges one is enough"


def _walks() -> Iterator[tuple[str, Callable[[], object], tuple[Any, str]]]:
    """Every sweep that walks regions, and what it asks of each, whose first argument is the region."""
    yield "runs", functions.tasks.settle_and_start, (runs, "settle_lost")
    yield "old runs", functions.tasks.forget_old_runs, (functions.retention, "purge")
    yield "control events", webhooks.tasks.carry_over_what_is_left, (webhooks.control, "carry_over")
    yield "due deliveries", webhooks.tasks.dispatch_what_is_due, (webhooks.tasks, "longest_wait")
    yield "unsettled", webhooks.tasks.settle_deliveries, (webhooks.tasks, "settle")
    yield "old deliveries", webhooks.tasks.forget_what_is_old, (webhooks.retention, "expire_held")
    yield "orphans", projects.tasks.finish_and_clean, (provisioning, "drop_orphans")
    yield "indexes", rows.tasks.settle, (CurrentVersion.objects, "using")
    yield "uniques", rows.tasks.clear_new_uniques, (uniques, "clear_all")
    yield "figures", platform_site.tasks.measure_regions, (rollups, "_queues")


@pytest.mark.parametrize("error", [InterfaceError, OperationalError, KeyError])
@pytest.mark.parametrize(("sweep", "asked"), [pytest.param(*walk[1:], id=walk[0]) for walk in _walks()])
def test_a_region_that_fails_keeps_no_other_from_its_turn(
    monkeypatch: pytest.MonkeyPatch,
    error: type[Exception],
    sweep: Callable[[], object],
    asked: tuple[Any, str],
) -> None:
    regions: list[str] = []

    def fail(using: str, *args: Any, **options: Any) -> None:
        regions.append(using)
        raise error("of this region alone")

    monkeypatch.setattr(*asked, fail)
    sweep()
    assert regions == list(settings.REGION_DATABASES)


def test_every_sweep_that_walks_regions_is_asked() -> None:
    walking = {
        found.name
        for found in sweeps.all_sweeps()
        if not found.name.startswith("tests.") and "REGION_DATABASES" in _source_with_helpers(found.function)
    }
    asked = {f"{walk[1].__module__}.{walk[1].__qualname__}" for walk in _walks()}
    assert walking <= asked


def _source_with_helpers(function: Callable[[], object]) -> str:
    """The source of a sweep and of the private functions of its module that it names."""
    module = inspect.getmodule(function)
    named = [getattr(module, name, None) for name in function.__code__.co_names if name.startswith("_")]
    return "".join(map(inspect.getsource, [function, *filter(inspect.isfunction, named)]))


def test_a_deletion_that_fails_keeps_no_other_from_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def finish(project_id: str) -> bool:
        asked.append(project_id)
        raise InterfaceError("of this region alone")

    monkeypatch.setattr(removal, "unfinished", lambda after="": [] if after else ["prj_a", "prj_b"])
    monkeypatch.setattr(removal, "finish", finish)
    projects.tasks.finish_and_clean()
    assert asked == ["prj_a", "prj_b"]


def test_a_worker_outlives_a_region_whose_connection_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    def claim(using: str) -> None:
        raise InterfaceError("the connection is closed")

    monkeypatch.setattr(runs, "claim", claim)
    functions.tasks.work(settings.REGION_DATABASES[0])
