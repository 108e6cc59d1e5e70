"""Queued runs: callers, full queues and statistics for the planner."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from secrets import token_hex
from typing import Any

import pytest
from django.db import connections

from functions.execution.request_concurrency import Admission, ConcurrencyLimiter, State
from functions.models import Run
from functions.quotas.client_networks import AnonymousCall
from functions.runs import queue as run_queue
from functions.runs.start import CreatedRun
from platform_site.identity import ids
from platform_site.identity.callers import ENVIRONMENT_SCOPES, Caller, EnvironmentRef
from tests.projects.conftest import key_for, publishable_key_for
from tests.rows.conftest import Tracker
from tests.support.client import Answer
from tests.support.functions import SUM, deploy

FREE = 4
"""Concurrency slots of the plan `free`."""


def key_of(environment: EnvironmentRef) -> Caller:
    return Caller("key", "key_x", frozenset(ENVIRONMENT_SCOPES), plan=environment.plan, environment=environment)


@contextmanager
def held(room: ConcurrencyLimiter, *environment_ids: str, anonymous: AnonymousCall | None = None) -> Iterator[None]:
    """A slot of `room` for a call of each environment."""
    calls = [Admission(each, limit=100, anonymous=anonymous) for each in environment_ids]
    for each in calls:
        room.take(each)
    assert all(each.state is State.HELD for each in calls)
    try:
        yield
    finally:
        for each in calls:
            room.release(each)


def claimed(using: str) -> CreatedRun | None:
    found = run_queue.claim(using)
    return found and found[0]


HALF = FREE // 2


SLOW = "export default () => new Promise((resolve) => setTimeout(resolve, 60_000))"


statistics = pytest.mark.parametrize("statistics", [False, True])


@pytest.fixture
def open_to_all(tracker: Tracker) -> Tracker:
    """`visitor` has a publishable key, `server` a server key; both may invoke `sum` and `slow`. A call of `sum` is refused
    after waiting for a slot for 1.5 s."""
    tracker.tokens["visitor"] = publishable_key_for(tracker.environment_id)
    tracker.tokens["server"] = key_for(tracker.environment_id, "functions:invoke")
    deploy(tracker, "sum", SUM, invoke="public", timeout_ms=1_500)
    deploy(tracker, "slow", SLOW, invoke="public", timeout_ms=10_000)
    return tracker


def queue(tracker: Tracker, who: str, **how: Any) -> Answer:
    return tracker.post(who, "/functions/sum/invoke", {"input": {"a": 1, "b": 1}, "async": True}, **how)


def queued(tracker: Tracker, who: str, count: int) -> list[str]:
    """The ids of so many runs, in the order in which they were queued."""
    answers = [queue(tracker, who) for _ in range(count)]
    assert [answer.status for answer in answers] == [202] * count
    return [str(answer.json["run_id"]) for answer in answers]


def anonymous_caller(environment: EnvironmentRef) -> Caller:
    return Caller("anonymous", "key_x", frozenset({"functions:invoke"}), plan=environment.plan, environment=environment)


def taken(environment: EnvironmentRef) -> list[int]:
    return sorted(Run.objects.using(environment.cluster).filter(slot__isnull=False).values_list("slot", flat=True))


def end(using: str, *run_ids: str) -> None:
    Run.objects.using(using).filter(pk__in=run_ids).update(phase="ended", status="failed", slot=None)


def pile_up(environment: EnvironmentRef, count: int, kind: str = "anonymous") -> None:
    """So many queued runs of `sum`, longer ago than any that a test makes."""
    with connections[environment.cluster].cursor() as cursor:
        cursor.execute(
            "INSERT INTO platform.functions_run (id, environment_id, function_id, version, status, phase, is_async,"
            "       input, logs, sandbox_layers, caller_kind, caller_id, depth, concurrency, attempts, created_at)"
            " SELECT %s || lpad(n::text, 8, '0'), f.environment_id, f.id, 1, 'running', 'queued', true,"
            "        '{}', '[]', '{}', %s, 'key_x', 0, %s, 0, now() - interval '1 hour' + n * interval '1 ms'"
            "   FROM platform.functions_function f, generate_series(1, %s) n"
            "  WHERE f.environment_id = %s AND f.name = 'sum'",
            [
                ids.new("run")[:14] + token_hex(4),
                kind,
                HALF if kind == "anonymous" else FREE,
                count,
                environment.environment_id,
            ],
        )


def record_past_runs(environment: EnvironmentRef) -> None:
    """Ended runs, and statistics of a moment with an empty queue, for the query planner."""
    pile_up(environment, 1000)
    end(environment.cluster, *Run.objects.using(environment.cluster).values_list("pk", flat=True))
    gather_statistics(environment.cluster)


def cancel_until_done(tracker: Tracker, environment: EnvironmentRef, calls: list[Any]) -> None:
    """Cancel each run of `slow` as it begins, until every call has its response."""
    executing = Run.objects.using(environment.cluster).filter(phase="executing")
    until = time.monotonic() + 30
    while not all(call.done() for call in calls):
        assert time.monotonic() < until
        for run_id in executing.values_list("pk", flat=True):
            tracker.post("owner", f"/functions/slow/runs/{run_id}/cancel", {})
        time.sleep(0.05)


def gather_statistics(using: str) -> None:
    with connections[using].cursor() as cursor:
        cursor.execute("SET statement_timeout = 0; ANALYZE platform.functions_run; RESET statement_timeout")
