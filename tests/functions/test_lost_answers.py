"""A run whose beginning was committed, and the connection to PostgreSQL was lost before that was known: it goes on.

No other worker would execute it, and it would keep a concurrency slot for as long as its lease.
"""

import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

import pytest

from functions.execution import executor
from functions.models import Run
from functions.runs.start import CreatedRun, NewRun, start_run
from functions.worker import Worker
from platform_site.identity.callers import EnvironmentRef
from platform_site.postgres import availability
from tests.rows.conftest import Tracker
from tests.support.client import Answer
from tests.support.connection_cuts import Break, BreakingProxy, postgres_behind
from tests.support.function_queue import key_of
from tests.support.functions import SUM, deploy

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(databases="__all__", transaction=True)]

T = TypeVar("T")
BEGINS = "WITH chosen AS"
each_way = pytest.mark.parametrize("how", [Break.UNSENT, Break.UNANSWERED])
each_kind = pytest.mark.parametrize("is_async", [False, True])


@pytest.fixture
def cuts(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> Iterator[BreakingProxy]:
    monkeypatch.setattr(availability, "SILENT_SECONDS", 60.0)  # a busy machine is not an unavailable database
    deploy(tracker, "sum", SUM)
    with postgres_behind() as made:
        yield made


def caller(tracker: Tracker, *, is_async: bool, is_keyed: bool) -> Callable[[], Answer]:
    """A call that is always another one."""

    def call() -> Answer:
        headers = {"Idempotency-Key": secrets.token_hex(8)} if is_keyed else {}
        body = {"input": {"a": 1, "b": 2}, "async": is_async}
        return tracker.post("owner", "/functions/sum/invoke", body, headers=headers)

    return call


def cut_at(cuts: BreakingProxy, call: Callable[[], T], statement: str, how: Break) -> T:
    """The answer to a call that is cut off at the last step with this in it, as the call before had it."""
    for _ in range(3):  # what a process and a connection learn, they have learned
        call()
    cuts.plan()
    call()
    at = max(number for number, step in enumerate(cuts.stop().steps, 1) if statement in step)
    cuts.plan(at, how)
    answer = call()
    assert statement in cuts.stop().was_cut
    return answer


def all_runs(tracker: Tracker) -> list[Run]:
    return list(Run.objects.using(tracker.project.cluster).order_by("created_at"))


@each_way
@each_kind
@pytest.mark.parametrize("at", [BEGINS, "COMMIT", None])
def test_it_goes_on_and_is_one(
    tracker: Tracker, cuts: BreakingProxy, how: Break, is_async: bool, at: str | None
) -> None:
    """`at` with an Idempotency-Key: within the transaction of its record, and at its end; None: without one."""
    call = caller(tracker, is_async=is_async, is_keyed=at is not None)
    answer = cut_at(cuts, call, at or BEGINS, how)
    found = all_runs(tracker)
    assert len(found) == 5
    assert answer.json["run_id"] == found[-1].pk
    if is_async:
        assert (answer.status, found[-1].phase) == (202, "queued")
        assert Worker(tracker.project.cluster).run() == 5
    else:
        assert (answer.status, answer.json["output"]) == (200, {"sum": 3})
    assert {(run.status, run.phase, run.slot, run.attempts) for run in all_runs(tracker)} == {
        ("succeeded", "ended", None, 1)
    }


@each_way
def test_so_does_one_whose_source_was_being_read(tracker: Tracker, cuts: BreakingProxy, how: Break) -> None:
    call = caller(tracker, is_async=False, is_keyed=False)

    def cold() -> Answer:
        executor._sources.clear()
        return call()

    answer = cut_at(cuts, cold, "SELECT source FROM platform.functions_version", how)
    assert (answer.status, answer.json["output"]) == (200, {"sum": 3})
    assert {run.phase for run in all_runs(tracker)} == {"ended"}


def test_what_is_found_again_is_what_was_begun(
    tracker: Tracker, environment: EnvironmentRef, cuts: BreakingProxy
) -> None:
    deploy(tracker, "sum", SUM, secrets={"TOKEN": "s3cr3t"}, allowed_hosts=["api.example.com"])
    begun: list[CreatedRun] = []

    def begin() -> CreatedRun:
        begun.append(start_run(NewRun(environment, key_of(environment), "sum", '{"a": 1}', depth=2)))
        Run.objects.using(environment.cluster).update(phase="ended", slot=None, claimed_until=None)
        return begun[-1]

    found, first = cut_at(cuts, begin, BEGINS, Break.UNANSWERED), begun[0]
    assert replace(found, run_id=first.run_id) == first
    assert found.run_id != first.run_id
    assert len(all_runs(tracker)) == len(begun)
