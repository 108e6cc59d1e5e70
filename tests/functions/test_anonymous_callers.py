"""Anonymous callers with a publishable key call without limit: other callers still get concurrency slots in time.

Visitors come through the API with a real key; claims are a worker's.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections

from functions.execution import request_concurrency
from functions.models import Run
from functions.quotas import anonymous_queue, slots
from functions.quotas.client_networks import AnonymousCall
from functions.runs import completion
from functions.runs import queue as run_queue
from functions.runs.start import NewRun, start_run
from functions.runtime.calls import Outcome
from functions.triggers import events as event_triggers
from platform_site.console import rollups
from platform_site.identity.callers import EnvironmentRef
from platform_site.identity.plans import PLANS
from projects.directory.environments import environment_ref
from tests.projects.conftest import publishable_key_for
from tests.rows.conftest import Tracker
from tests.support.client import Answer
from tests.support.function_queue import (
    FREE,
    HALF,
    anonymous_caller,
    cancel_until_done,
    claimed,
    end,
    gather_statistics,
    held,
    key_of,
    pile_up,
    queue,
    queued,
    record_past_runs,
    statistics,
    taken,
)
from tests.support.function_queue import open_to_all as open_to_all
from tests.support.functions import SUM, deploy, invoke
from tests.support.row_statistics import count_touched_rows
from tests.support.service import wait_for
from tests.support.tracker import DOCUMENT

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(databases="__all__", transaction=True)]

MOST = PLANS["free"].visitor_queued_runs


# ── Seats ──


def test_anonymous_callers_take_half_of_the_slots(
    open_to_all: Tracker, environment: EnvironmentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        request_concurrency, "limiter", request_concurrency.ConcurrencyLimiter(slots=6 * FREE, shared=6 * FREE)
    )
    executing = Run.objects.using(environment.cluster).filter(phase="executing")

    def call(number: int) -> Answer:
        try:
            return invoke(open_to_all, "slow", who="visitor", remote_addr=f"203.0.113.{number}")
        finally:
            connections.close_all()

    with ThreadPoolExecutor(3 * FREE) as threads:
        calls = [threads.submit(call, number) for number in range(3 * FREE)]
        wait_for("half of the slots are taken", lambda: executing.count() == HALF)
        assert taken(environment) == [*range(1, HALF + 1)]
        for who in ("server", "alice", "owner"):
            assert invoke(open_to_all, "sum", {"a": 1, "b": 1}, who=who).json["output"] == {"sum": 2}
        refused = invoke(open_to_all, "sum", {"a": 1, "b": 1}, who="visitor")
        assert (refused.status, refused.error, refused.headers["Retry-After"]) == (429, "rate_limited", "1")
        assert executing.count() == HALF
        cancel_until_done(open_to_all, environment, calls)
    assert {call.result().status for call in calls} == {200}, "the others waited for their turn"
    assert invoke(open_to_all, "sum", {"a": 1, "b": 1}, who="visitor").json["output"] == {"sum": 2}


def test_others_take_all_slots_and_the_anonymous_half_last(open_to_all: Tracker, environment: EnvironmentRef) -> None:
    mine = [start_run(NewRun(environment, key_of(environment), "sum", "{}")) for _ in range(FREE - HALF)]
    assert taken(environment) == [*range(HALF + 1, FREE + 1)]
    assert invoke(open_to_all, "sum", {"a": 1, "b": 1}, who="visitor").status == 200
    mine += [start_run(NewRun(environment, key_of(environment), "sum", "{}")) for _ in range(HALF)]
    assert taken(environment) == [*range(1, FREE + 1)]
    for who in ("visitor", "server"):
        assert invoke(open_to_all, "sum", {"a": 1, "b": 1}, who=who).status == 429
    completion.record_end(mine[0], Outcome(0.001, "1"))
    assert invoke(open_to_all, "sum", {"a": 1, "b": 1}, who="visitor").status == 429, "not one of theirs"
    assert invoke(open_to_all, "sum", {"a": 1, "b": 1}, who="server").status == 200


@pytest.mark.parametrize("limit", [1, 2, 3, *(plan.function_concurrency for plan in PLANS.values())])
def test_each_slot_is_tried_once_from_any_start(limit: int) -> None:
    shared = slots.anonymous_slots(limit)
    assert 1 <= shared <= max(1, limit // 2)
    for start in range(limit):
        order = [int(seat) for seat in slots.in_order(limit, limit, start).strip("{}").split(",")]
        assert sorted(order) == [*range(1, limit + 1)]
        assert sorted(order[-shared:]) == [*range(1, shared + 1)]
        visits = [int(seat) for seat in slots.in_order(limit, shared, start).strip("{}").split(",")]
        assert visits == order[-shared:]


def test_each_plan_has_a_slot_without_anonymous_use() -> None:
    for plan in PLANS.values():
        assert slots.anonymous_slots(plan.function_concurrency) < plan.function_concurrency


def test_waiting_anonymous_callers_leave_threads_for_others(
    open_to_all: Tracker, environment: EnvironmentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also callers that queued a run and wait for its end: they use a thread and no concurrency slot."""
    room = request_concurrency.ConcurrencyLimiter(slots=8, shared=5)
    monkeypatch.setattr(request_concurrency, "limiter", room)
    prefer = {"Prefer": "respond-async, wait=30"}
    here = environment.environment_id
    one, two, three = AnonymousCall(1), AnonymousCall(2), AnonymousCall(3)
    with held(room, here, anonymous=one), held(room, here, anonymous=two), held(room, "env_other", anonymous=three):
        refused = invoke(open_to_all, "sum", {"a": 1, "b": 1}, who="visitor")
        assert (refused.status, refused.error) == (429, "rate_limited")
        assert invoke(open_to_all, "sum", {"a": 1, "b": 1}, who="visitor", headers=prefer).status == 202
        assert invoke(open_to_all, "sum", {"a": 1, "b": 1}, who="server").status == 200
        with held(room, here, here):
            assert invoke(open_to_all, "sum", {"a": 1, "b": 1}, who="server").status == 429
    assert invoke(open_to_all, "sum", {"a": 1, "b": 1}, who="visitor").status == 200
    assert not Run.objects.using(environment.cluster).filter(phase="executing").exists()


# ── Turns ──


def test_anonymous_queued_runs_start_after_all_others(open_to_all: Tracker, environment: EnvironmentRef) -> None:
    visits = queued(open_to_all, "visitor", FREE + 2)
    others = [*queued(open_to_all, "server", 1), *queued(open_to_all, "alice", 1)]
    began = [started.run_id for _ in range(FREE + 2) if (started := claimed(environment.cluster)) is not None]
    assert began == [*others, *visits[:HALF]]
    assert taken(environment) == [*range(-FREE, 0)]
    late = queued(open_to_all, "server", 1)
    end(environment.cluster, visits[0])
    assert [claimed(environment.cluster).run_id] == late, "a slot that anonymous callers left is free for all"  # type: ignore[union-attr]
    end(environment.cluster, *others)
    assert claimed(environment.cluster) is None, "anonymous callers wait for their half, though other slots are free"
    end(environment.cluster, visits[1])
    assert [claimed(environment.cluster).run_id] == visits[HALF : HALF + 1]  # type: ignore[union-attr]


def test_anonymous_runs_start_when_no_others_wait(open_to_all: Tracker, environment: EnvironmentRef) -> None:
    """Slots of other callers do not count as theirs: waiting for another time lets them pass, too."""
    [later] = queued(open_to_all, "server", 1)
    Run.objects.using(environment.cluster).filter(pk=later).update(claimed_until="2999-01-01T00:00:00Z")
    held = queued(open_to_all, "server", FREE - HALF)
    assert {started.run_id for _ in held if (started := claimed(environment.cluster))} == set(held)
    assert taken(environment) == [*range(-FREE, -HALF)]
    visits = queued(open_to_all, "visitor", HALF + 1)
    assert [started.run_id for _ in visits if (started := claimed(environment.cluster))] == visits[:HALF]


# ── Backlog ──


def test_anonymous_queue_is_limited_and_others_still_queue(
    open_to_all: Tracker, environment: EnvironmentRef, make_tracker: Any
) -> None:
    pile_up(environment, MOST - 1)
    pile_up(environment, 3 * MOST, "key")
    once = {"headers": {"Idempotency-Key": "once"}}
    last = queue(open_to_all, "visitor", **once)
    assert last.status == 202
    kept = Run.objects.using(environment.cluster)
    before = kept.count()
    for more in ({}, {"headers": {"Idempotency-Key": "twice"}}, {"remote_addr": "203.0.113.9"}):
        refused = queue(open_to_all, "visitor", **more)
        assert (refused.status, refused.error, refused.headers["Retry-After"]) == (429, "rate_limited", "10")
        assert str(MOST) in refused.json["error"]["message"]
    preferred = invoke(open_to_all, "sum", {"a": 1}, who="visitor", headers={"Prefer": "respond-async, wait=1"})
    assert preferred.status == 429
    assert kept.count() == before, "what is refused is no run"
    assert queue(open_to_all, "visitor", **once).json == last.json, "what was accepted is answered again"
    assert invoke(open_to_all, "sum", {"a": 1, "b": 1}, who="visitor").status == 200
    for who in ("server", "alice", "owner"):
        assert queue(open_to_all, who).status == 202
    shown = open_to_all.get("owner", "/limits").json["limits"]["visitor_queued_runs"]
    assert shown == {"limit": MOST, "used": MOST}
    other: Tracker = make_tracker(DOCUMENT, name="Other")
    other.tokens["visitor"] = publishable_key_for(other.environment_id)
    deploy(other, "sum", SUM, invoke="public")
    assert queue(other, "visitor").status == 202
    kept.filter(pk=last.json["run_id"]).update(phase="executing", slot=-1)
    assert [queue(open_to_all, "visitor").status for _ in range(2)] == [202, 429]


# ── What it costs ──


@pytest.fixture
def _nobody_gathers_statistics(environment: EnvironmentRef) -> Iterator[None]:
    """On a slow machine PostgreSQL would do so by itself in the middle of a test of those that are old. Those of earlier
    tests are forgotten."""
    with connections[environment.cluster].cursor() as cursor:
        cursor.execute("ALTER TABLE platform.functions_run SET (autovacuum_enabled = off)")
        cursor.execute("SELECT pg_clear_relation_stats('platform', 'functions_run')")
        cursor.execute(
            "SELECT pg_clear_attribute_stats('platform', 'functions_run', attname, false) FROM pg_attribute"
            " WHERE attrelid = 'platform.functions_run'::regclass AND attnum > 0 AND NOT attisdropped"
        )
        yield
        cursor.execute("ALTER TABLE platform.functions_run RESET (autovacuum_enabled)")


@pytest.mark.usefixtures("_nobody_gathers_statistics")
@statistics
def test_claim_skips_a_backlog_of_anonymous_runs(
    open_to_all: Tracker, environment: EnvironmentRef, statistics: bool
) -> None:
    """Also by statistics that know nothing of it: a queue grows faster than they are gathered."""
    using = environment.cluster
    record_past_runs(environment)
    pile_up(environment, 20_000)
    if statistics:
        gather_statistics(using)
    [other] = queued(open_to_all, "server", 1)
    for expected in (other, None):
        with count_touched_rows(using, "platform.functions_run") as cost:
            started = run_queue.claim(using)
        assert started is not None
        assert expected in (None, started[0].run_id)
        assert cost.read < 60
    with count_touched_rows(using, "platform.functions_run") as cost:
        assert run_queue.is_due(using)
    assert cost.read < 20


@pytest.mark.usefixtures("_nobody_gathers_statistics")
def test_queued_runs_are_not_sorted_after_vacuum_without_statistics(
    open_to_all: Tracker, environment: EnvironmentRef
) -> None:
    """`VACUUM` says how large the indexes are, and old statistics that next to nothing is found by any of them."""
    using = environment.cluster
    record_past_runs(environment)
    pile_up(environment, 15_000, "key")
    with connections[using].cursor() as cursor:
        for statement in ("SET statement_timeout = 0", "VACUUM platform.functions_run", "RESET statement_timeout"):
            cursor.execute(statement)
    [visit] = queued(open_to_all, "visitor", 1)
    looks: list[tuple[Callable[[], Any], int]] = [
        (lambda: run_queue.claim(using), 60),
        (lambda: run_queue.claim(using), 60),
        (lambda: run_queue.is_due(using), 20),
        (lambda: anonymous_queue.waiting(environment), 20),
        (lambda: event_triggers.queue(using), 20),
        (lambda: rollups._queues(using), rollups.MAX_COUNTED + 60),
    ]
    for look, most in looks:
        with count_touched_rows(using, "platform.functions_run") as cost:
            assert look() is not None
        assert cost.read < most, look
    assert anonymous_queue.waiting(environment)[0] == 1
    Run.objects.using(using).filter(phase="queued").exclude(pk=visit).delete()
    started = claimed(using)
    assert started is not None
    assert started.run_id == visit


@statistics
def test_whether_one_more_may_wait_is_seen_within_the_limit(
    open_to_all: Tracker, environment: EnvironmentRef, make_tracker: Any, statistics: bool
) -> None:
    """Regardless of other queues; and it does not apply to calls that are not queued by an anonymous caller."""
    using = environment.cluster
    record_past_runs(environment)
    pile_up(environment, 20_000)
    other: Tracker = make_tracker(DOCUMENT, name="Other")
    neighbour = environment_ref(other.environment_id)
    assert neighbour is not None
    deploy(other, "sum", SUM)
    pile_up(neighbour, 20_000, "key")
    if statistics:
        gather_statistics(using)
    for where, expected in ((environment, MOST), (neighbour, 0)):
        with count_touched_rows(using, "platform.functions_run") as cost:
            assert anonymous_queue.waiting(where)[0] == expected
        assert cost.read <= expected
    for begin in (
        lambda: start_run(NewRun(environment, key_of(environment), "sum", "{}", is_async=True)),
        lambda: start_run(NewRun(environment, key_of(environment), "sum", "{}")),
        lambda: start_run(NewRun(environment, anonymous_caller(environment), "sum", "{}")),
    ):
        with count_touched_rows(using, "platform.functions_run") as cost:
            begin()
        assert cost.read <= 2 * FREE
