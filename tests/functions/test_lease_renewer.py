"""Leases of executing runs are renewed, and cancelled runs ended, although a check or a region fails."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from django.conf import settings
from django.db import InterfaceError

from functions.runs import lease_renewer
from functions.runs.lease_renewer import LeaseRenewer
from functions.runs.start import CreatedRun
from tests.support.timing import within

HERE, ELSEWHERE = settings.REGION_DATABASES[:2]


def started(run_id: str, cluster: str) -> CreatedRun:
    return CreatedRun(
        run_id=run_id, attempt=1, environment_id="env_a", function_id="fn_a", version=1,
        source_hash="", timeout_ms=1000, memory_mb=128, allowed_hosts=(), sealed_secrets={}, input_text="null", depth=0,
        is_async=True, caller_kind="key", caller_id="key_a", cluster=cluster,
    )  # fmt: skip


@contextmanager
def over(renewer: LeaseRenewer, run: CreatedRun) -> Iterator[None]:
    """While the run executes."""
    try:
        renewer.start_renewing(run)
        yield
    finally:
        renewer.stop_renewing(run)


@pytest.fixture(autouse=True)
def closely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_renewer, "RENEW_SECONDS", 0.01)


@pytest.mark.parametrize("error", [InterfaceError("the connection is closed"), KeyError("of our own making")])
def test_a_check_that_fails_is_not_the_last(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """One that ended the thread would leave every later run of the process without a lease."""
    checks: list[list[str]] = []

    def cancelled_among(using: str, run_ids: list[str]) -> list[str]:
        checks.append(run_ids)
        if len(checks) == 1:
            raise error
        return run_ids

    monkeypatch.setattr(lease_renewer.leases, "cancelled_among", cancelled_among)
    ended = threading.Event()
    with over(LeaseRenewer(lambda _: ended.set()), started("run_a", HERE)):
        assert ended.wait(within(2))


def test_a_renewal_that_failed_is_due_at_the_next_check(monkeypatch: pytest.MonkeyPatch) -> None:
    renewals: list[Any] = []
    renewed = threading.Event()

    def renew(using: str, executing: Any) -> set[str]:
        renewals.append(executing)
        if len(renewals) == 1:
            raise InterfaceError("the connection is closed")
        renewed.set()
        return {each.run_id for each in executing}

    monkeypatch.setattr(lease_renewer.leases, "cancelled_among", lambda using, run_ids: [])
    monkeypatch.setattr(lease_renewer.leases, "renew", renew)
    mine = threading.local()  # threads of other tests may still check, too

    def monotonic() -> float:
        at = getattr(mine, "at", 0.0)
        mine.at = 10.0
        return at

    monkeypatch.setattr(lease_renewer, "time", SimpleNamespace(sleep=time.sleep, monotonic=monotonic))
    with over(LeaseRenewer(lambda _: None), started("run_a", HERE)):
        assert renewed.wait(within(2))
    assert len(renewals) == 2


def test_a_region_that_does_not_answer_keeps_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, asked = threading.Event(), threading.Event()

    def cancelled_among(using: str, run_ids: list[str]) -> list[str]:
        if using == HERE:
            asked.set()
            answers.wait(within(20))
            return []
        return run_ids

    monkeypatch.setattr(lease_renewer.leases, "cancelled_among", cancelled_among)
    ended = threading.Event()
    renewer = LeaseRenewer(lambda _: ended.set())
    try:
        with over(renewer, started("run_a", HERE)):
            assert asked.wait(within(2))
            with over(renewer, started("run_b", ELSEWHERE)):
                assert ended.wait(within(2))
    finally:
        answers.set()


def test_a_thread_that_cannot_be_started_is_started_for_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    renewer = LeaseRenewer(lambda _: ended.set())
    with monkeypatch.context() as full:

        def start(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        full.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError), over(renewer, started("run_a", HERE)):
            raise AssertionError
    monkeypatch.setattr(lease_renewer.leases, "cancelled_among", lambda using, run_ids: run_ids)
    with over(renewer, started("run_b", HERE)):
        assert ended.wait(within(2))
    assert renewer._executing[HERE] == {}
