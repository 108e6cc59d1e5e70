"""What the settings of the runtime change (docs/reference/settings.md): over the API, with real Deno, each at another
value."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import connections

from functions.execution import executor, request_concurrency
from functions.execution.request_concurrency import ConcurrencyLimiter
from functions.models import Run
from functions.worker import Worker
from platform_site.identity.callers import EnvironmentRef
from tests.rows.conftest import Tracker
from tests.support.functions import deploy, invoke
from tests.support.service import wait_for

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(databases="__all__", transaction=True)]

COUNT = "let n = 0; export default () => ++n"
SLOW = "export default ({ms}: {ms: number}) => new Promise((done) => setTimeout(() => done(ms), ms))"
ENDLESS = "export default () => { while (true) {} }"


@pytest.fixture(autouse=True)
def a_pool_of_its_own() -> Iterator[None]:
    """The process's pool reads the settings when it is made."""
    executor.close_pool()
    yield
    executor.close_pool()


def outputs(tracker: Tracker, name: str, times: int) -> list[Any]:
    return [invoke(tracker, name).json["output"] for _ in range(times)]


def test_a_process_is_replaced_after_so_many_calls(tracker: Tracker, settings: LazySettings) -> None:
    settings.FUNCTION_MAX_CALLS = 3
    deploy(tracker, "count", COUNT)
    assert outputs(tracker, "count", 5) == [1, 2, 3, 1, 2]


def test_idle_process_ends_on_time(tracker: Tracker, settings: LazySettings) -> None:
    settings.FUNCTION_IDLE_SECONDS = 1
    deploy(tracker, "count", COUNT)
    assert outputs(tracker, "count", 1) == [1]
    wait_for("the process is gone", lambda: executor.pool().sizes() == (0, 0))
    assert outputs(tracker, "count", 1) == [1]


def test_a_module_has_so_long_to_load(tracker: Tracker, settings: LazySettings) -> None:
    settings.FUNCTION_LOAD_SECONDS = 0.5
    refused = deploy(tracker, "stuck", "while (true) {}\nexport default () => 1")
    assert (refused.status, refused.error) == (422, "validation_failed")
    assert "its top level ran longer than 0.5 s" in refused.body.decode()


def at_once(tracker: Tracker, first: tuple[str, Any], second: tuple[str, Any]) -> tuple[Any, Any]:
    """What two calls answer, the second made while the first one runs."""
    found: list[Any] = []

    def call() -> None:
        try:
            found.append(invoke(tracker, *first).json)
        finally:
            connections.close_all()

    thread = threading.Thread(target=call)
    thread.start()
    wait_for("the first one runs", lambda: executor.pool().sizes()[1] == 1)
    answer = invoke(tracker, *second).json
    thread.join(30)
    return found[0], answer


def test_a_full_pool_is_waited_for_so_long(
    tracker: Tracker, settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def use_pool(size: int, wait: float) -> None:
        settings.FUNCTION_POOL_SIZE, settings.FUNCTION_POOL_WAIT = size, wait
        executor.close_pool()
        monkeypatch.setattr(request_concurrency, "limiter", ConcurrencyLimiter())

    deploy(tracker, "slow", SLOW)
    deploy(tracker, "count", COUNT)
    use_pool(1, 0.1)
    first, second = at_once(tracker, ("slow", {"ms": 1500}), ("count", None))
    assert (first["output"], second["output"]) == (1500, 1), "it waited in the queue of the environment"
    use_pool(1, 30)
    first, second = at_once(tracker, ("slow", {"ms": 700}), ("count", None))
    assert (first["output"], second["output"]) == (700, 1)
    use_pool(2, 0.1)
    first, second = at_once(tracker, ("slow", {"ms": 700}), ("count", None))
    assert (first["output"], second["output"]) == (700, 1)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_worker_has_so_many_hands(
    tracker: Tracker, environment: EnvironmentRef, settings: LazySettings, threads: int
) -> None:
    settings.FUNCTION_WORKER_THREADS = threads
    deploy(tracker, "endless", ENDLESS, timeout_ms=1_500)
    deploy(tracker, "count", COUNT)
    for _ in range(3):
        assert tracker.post("owner", "/functions/endless/invoke", {"async": True}).status == 202
    worker, done, at_once = Worker(environment.cluster), list[int](), set[int]()

    def work() -> None:
        try:
            done.append(worker.run())
        finally:
            connections.close_all()

    assert worker.run(lambda: True) == 0, "a stopping worker begins nothing more"
    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        running = executor.pool().sizes()[1]
        if running == threads and running not in at_once:
            assert worker.run() == 0
            assert thread.is_alive(), "with all threads busy a notification waits for none"
        at_once.add(running)
        thread.join(0.01)
    assert (done, max(at_once)) == ([3], threads)
    assert Run.objects.using(environment.cluster).filter(error__reason="timeout").count() == 3
    for _ in range(threads + 1):  # an ended call releases the slot
        assert tracker.post("owner", "/functions/count/invoke", {"async": True}).status == 202
        assert worker.run() == 1
