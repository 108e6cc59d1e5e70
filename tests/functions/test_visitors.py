"""Whoever has a publishable key, which is everybody, calls as often as they like: the others find seats, and their turn.

Visitors come through the API with a real key; claims are a worker's.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections

from functions.deploy import service as deploy_service
from functions.execution import request_concurrency
from functions.models import Run
from functions.quotas.client_networks import Visit
from functions.runs import completion
from functions.runs import queue as run_queue
from functions.runs import start as runs_start
from functions.runs.completion import Ending
from functions.triggers import events as event_triggers
from platform_site.console import rollups
from platform_site.identity import ids
from platform_site.identity.callers import Caller, Place
from platform_site.identity.plans import PLANS
from projects.directory.environments import place_of
from tests.client import Answer
from tests.functions.test_api import SUM, deploy, invoke
from tests.functions.test_queue import FREE, claimed, key_of
from tests.projects.conftest import key_for, publishable_key_for
from tests.rows.conftest import Tracker
from tests.rows.tracker import DOCUMENT
from tests.serving import wait_for
from tests.webhooks.touched import touched

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

HALF = FREE // 2
SLOW = "export default () => new Promise((resolve) => setTimeout(resolve, 60_000))"
MOST = PLANS["free"].visitor_queued_runs
statistics = pytest.mark.parametrize("statistics", [False, True])


@pytest.fixture
def open_to_all(tracker: Tracker) -> Tracker:
    """`visitor` shows a publishable key, `server` a server key; both may invoke `sum` and `slow`."""
    tracker.tokens["visitor"] = publishable_key_for(tracker.environment_id)
    tracker.tokens["server"] = key_for(tracker.environment_id, "functions:invoke")
    deploy(tracker, "sum", SUM, invoke="public")
    deploy(tracker, "slow", SLOW, invoke="public", timeout_ms=10_000)
    return tracker


def queue(tracker: Tracker, who: str, **how: Any) -> Answer:
    return tracker.post(who, "/functions/sum/invoke", {"input": {"a": 1, "b": 1}, "async": True}, **how)


def queued(tracker: Tracker, who: str, count: int) -> list[str]:
    """The ids of so many runs, in the order in which they were queued."""
    answers = [queue(tracker, who) for _ in range(count)]
    assert [answer.status for answer in answers] == [202] * count
    return [str(answer.json["run_id"]) for answer in answers]


def visitor_of(place: Place) -> Caller:
    return Caller("anonymous", "key_x", frozenset({"functions:invoke"}), plan=place.plan, place=place)


def taken(place: Place) -> list[int]:
    return sorted(Run.objects.using(place.cluster).filter(slot__isnull=False).values_list("slot", flat=True))


def end(using: str, *run_ids: str) -> None:
    Run.objects.using(using).filter(pk__in=run_ids).update(phase="ended", status="failed", slot=None)


def pile_up(place: Place, count: int, kind: str = "anonymous") -> None:
    """So many queued runs of `sum`, longer ago than any that a test makes."""
    with connections[place.cluster].cursor() as cursor:
        cursor.execute(
            "INSERT INTO platform.functions_run (id, environment_id, function_id, version, status, phase, is_async,"
            "       input, logs, walls, caller_kind, caller_id, depth, concurrency, attempts, created_at)"
            " SELECT %s || lpad(n::text, 8, '0'), f.environment_id, f.id, 1, 'running', 'queued', true,"
            "        '{}', '[]', '{}', %s, 'key_x', 0, %s, 0, now() - interval '1 hour' + n * interval '1 ms'"
            "   FROM platform.functions_function f, generate_series(1, %s) n"
            "  WHERE f.environment_id = %s AND f.name = 'sum'",
            [ids.new("run")[:22], kind, HALF if kind == "anonymous" else FREE, count, place.environment_id],
        )


def a_history(place: Place) -> None:
    """Runs that have ended, and statistics of a moment when nobody waited: what PostgreSQL plans by."""
    pile_up(place, 1000)
    end(place.cluster, *Run.objects.using(place.cluster).values_list("pk", flat=True))
    gather_statistics(place.cluster)


def cancel_until_done(tracker: Tracker, place: Place, calls: list[Any]) -> None:
    """Cancel each run of `slow` as it begins, until every call has its response."""
    executing = Run.objects.using(place.cluster).filter(phase="executing")
    until = time.monotonic() + 30
    while not all(call.done() for call in calls):
        assert time.monotonic() < until
        for run_id in executing.values_list("pk", flat=True):
            tracker.post("owner", f"/functions/slow/runs/{run_id}/cancel", {})
        time.sleep(0.05)


def gather_statistics(using: str) -> None:
    with connections[using].cursor() as cursor:
        cursor.execute("SET statement_timeout = 0; ANALYZE platform.functions_run; RESET statement_timeout")


# ── Seats ──


def test_visitors_take_half_of_the_seats_and_everybody_else_finds_one(
    open_to_all: Tracker, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        request_concurrency, "room", request_concurrency.WaitingRoom(seats=6 * FREE, seats_each=6 * FREE)
    )
    executing = Run.objects.using(place.cluster).filter(phase="executing")

    def call(number: int) -> Answer:
        try:
            return invoke(open_to_all, "slow", who="visitor", remote_addr=f"203.0.113.{number}")
        finally:
            connections.close_all()

    with ThreadPoolExecutor(3 * FREE) as threads:
        calls = [threads.submit(call, number) for number in range(3 * FREE)]
        wait_for("half of the slots are taken", lambda: executing.count() == HALF)
        assert taken(place) == [*range(1, HALF + 1)]
        for who in ("server", "alice", "owner"):
            assert invoke(open_to_all, "sum", {"a": 1, "b": 1}, who=who).json["output"] == {"sum": 2}
        refused = invoke(open_to_all, "sum", {"a": 1, "b": 1}, who="visitor")
        assert (refused.status, refused.error, refused.headers["Retry-After"]) == (429, "rate_limited", "1")
        assert executing.count() == HALF
        cancel_until_done(open_to_all, place, calls)
    assert {call.result().status for call in calls} == {200}, "the others waited for their turn"
    assert invoke(open_to_all, "sum", {"a": 1, "b": 1}, who="visitor").json["output"] == {"sum": 2}


def test_others_take_all_of_them_and_the_visitors_half_last(open_to_all: Tracker, place: Place) -> None:
    mine = [deploy_service.begin(place, key_of(place), "sum", "{}") for _ in range(FREE - HALF)]
    assert taken(place) == [*range(HALF + 1, FREE + 1)]
    assert invoke(open_to_all, "sum", {"a": 1, "b": 1}, who="visitor").status == 200
    mine += [deploy_service.begin(place, key_of(place), "sum", "{}") for _ in range(HALF)]
    assert taken(place) == [*range(1, FREE + 1)]
    for who in ("visitor", "server"):
        assert invoke(open_to_all, "sum", {"a": 1, "b": 1}, who=who).status == 429
    completion.end(mine[0], Ending("succeeded", 1, "1"))
    assert invoke(open_to_all, "sum", {"a": 1, "b": 1}, who="visitor").status == 429, "not one of theirs"
    assert invoke(open_to_all, "sum", {"a": 1, "b": 1}, who="server").status == 200


@pytest.mark.parametrize("limit", [1, 2, 3, *(plan.function_concurrency for plan in PLANS.values())])
def test_each_seat_is_looked_at_once_from_wherever_one_begins(limit: int) -> None:
    shared = runs_start.visitor_seats(limit)
    assert 1 <= shared <= max(1, limit // 2)
    for start in range(limit):
        order = [int(seat) for seat in runs_start._seats(limit, limit, start).strip(b"{}").split(b",")]
        assert sorted(order) == [*range(1, limit + 1)]
        assert sorted(order[-shared:]) == [*range(1, shared + 1)]
        visits = [int(seat) for seat in runs_start._seats(limit, shared, start).strip(b"{}").split(b",")]
        assert visits == order[-shared:]


def test_a_plan_has_a_seat_that_no_visitor_takes() -> None:
    for plan in PLANS.values():
        assert runs_start.visitor_seats(plan.function_concurrency) < plan.function_concurrency


def test_visitors_who_wait_leave_threads_for_everybody_else(
    open_to_all: Tracker, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those who queued a run and wait for its end: they hold a thread and no seat."""
    room = request_concurrency.WaitingRoom(seats=8, seats_each=4)
    monkeypatch.setattr(request_concurrency, "room", room)
    prefer = {"Prefer": "respond-async, wait=30"}
    here = place.environment_id
    one, two, three = Visit(1), Visit(2), Visit(3)
    with room.seat(here, visit=one), room.seat(here, visit=two), room.seat("env_other", visit=three):
        refused = invoke(open_to_all, "sum", {"a": 1, "b": 1}, who="visitor")
        assert (refused.status, refused.error) == (429, "rate_limited")
        assert invoke(open_to_all, "sum", {"a": 1, "b": 1}, who="visitor", headers=prefer).status == 202
        assert invoke(open_to_all, "sum", {"a": 1, "b": 1}, who="server").status == 200
        with room.seat(here), room.seat(here):
            assert invoke(open_to_all, "sum", {"a": 1, "b": 1}, who="server").status == 429
    assert invoke(open_to_all, "sum", {"a": 1, "b": 1}, who="visitor").status == 200
    assert not Run.objects.using(place.cluster).filter(phase="executing").exists()


# ── Turns ──


def test_a_queued_run_of_a_visitor_comes_after_all_others(open_to_all: Tracker, place: Place) -> None:
    visits = queued(open_to_all, "visitor", FREE + 2)
    others = [*queued(open_to_all, "server", 1), *queued(open_to_all, "alice", 1)]
    began = [started.run_id for _ in range(FREE + 2) if (started := claimed(place.cluster)) is not None]
    assert began == [*others, *visits[:HALF]]
    assert taken(place) == [*range(-FREE, 0)]
    late = queued(open_to_all, "server", 1)
    end(place.cluster, visits[0])
    assert [claimed(place.cluster).run_id] == late, "a seat that visitors left is everybody's"  # type: ignore[union-attr]
    end(place.cluster, *others)
    assert claimed(place.cluster) is None, "visitors wait for their half, though others are free"
    end(place.cluster, visits[1])
    assert [claimed(place.cluster).run_id] == visits[HALF : HALF + 1]  # type: ignore[union-attr]


def test_visitors_are_executed_where_nobody_else_waits(open_to_all: Tracker, place: Place) -> None:
    """Seats that others hold are not theirs: one of those who wait for a time of their own lets them pass, too."""
    [later] = queued(open_to_all, "server", 1)
    Run.objects.using(place.cluster).filter(pk=later).update(claimed_until="2999-01-01T00:00:00Z")
    held = queued(open_to_all, "server", FREE - HALF)
    assert {started.run_id for _ in held if (started := claimed(place.cluster))} == set(held)
    assert taken(place) == [*range(-FREE, -HALF)]
    visits = queued(open_to_all, "visitor", HALF + 1)
    assert [started.run_id for _ in visits if (started := claimed(place.cluster))] == visits[:HALF]


# ── Backlog ──


def test_so_many_queued_runs_of_visitors_wait_and_others_queue_on(
    open_to_all: Tracker, place: Place, make_tracker: Any
) -> None:
    pile_up(place, MOST - 1)
    pile_up(place, 3 * MOST, "key")
    once = {"headers": {"Idempotency-Key": "once"}}
    last = queue(open_to_all, "visitor", **once)
    assert last.status == 202
    kept = Run.objects.using(place.cluster)
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
def _nobody_gathers_statistics(place: Place) -> Iterator[None]:
    """On a slow machine PostgreSQL would do so by itself in the middle of a test of those that are old."""
    with connections[place.cluster].cursor() as cursor:
        cursor.execute("ALTER TABLE platform.functions_run SET (autovacuum_enabled = off)")
        yield
        cursor.execute("ALTER TABLE platform.functions_run RESET (autovacuum_enabled)")


@pytest.mark.usefixtures("_nobody_gathers_statistics")
@statistics
def test_a_claim_leaps_over_a_backlog_of_visitors(open_to_all: Tracker, place: Place, statistics: bool) -> None:
    """Also by statistics that know nothing of it: a queue grows faster than they are gathered."""
    using = place.cluster
    a_history(place)
    pile_up(place, 20_000)
    if statistics:
        gather_statistics(using)
    [other] = queued(open_to_all, "server", 1)
    for expected in (other, None):
        with touched(using, "platform.functions_run") as cost:
            started = run_queue.claim(using)
        assert started is not None
        assert expected in (None, started[0].run_id)
        assert cost.read < 60
    with touched(using, "platform.functions_run") as cost:
        assert run_queue.is_due(using)
    assert cost.read < 20


@pytest.mark.usefixtures("_nobody_gathers_statistics")
def test_what_waits_is_not_sorted_where_postgresql_has_cleaned_up_and_knows_of_no_queue(
    open_to_all: Tracker, place: Place
) -> None:
    """`VACUUM` says how large the indexes are, and old statistics that next to nothing is found by any of them."""
    using = place.cluster
    a_history(place)
    pile_up(place, 15_000, "key")
    with connections[using].cursor() as cursor:
        for statement in ("SET statement_timeout = 0", "VACUUM platform.functions_run", "RESET statement_timeout"):
            cursor.execute(statement)
    [visit] = queued(open_to_all, "visitor", 1)
    looks: list[tuple[Callable[[], Any], int]] = [
        (lambda: run_queue.claim(using), 60),
        (lambda: run_queue.claim(using), 60),
        (lambda: run_queue.is_due(using), 20),
        (lambda: runs_start.waiting_visits(place), 20),
        (lambda: event_triggers.queue(using), 20),
        (lambda: rollups._queues(using), rollups.MOST + 60),
    ]
    for look, most in looks:
        with touched(using, "platform.functions_run") as cost:
            assert look() is not None
        assert cost.read < most, look
    assert runs_start.waiting_visits(place)[0] == 1
    Run.objects.using(using).filter(phase="queued").exclude(pk=visit).delete()
    started = claimed(using)
    assert started is not None
    assert started.run_id == visit


@statistics
def test_whether_one_more_may_wait_is_seen_within_the_limit(
    open_to_all: Tracker, place: Place, make_tracker: Any, statistics: bool
) -> None:
    """Whatever waits besides; and of a call that is no queued one of a visitor it is not asked."""
    using = place.cluster
    a_history(place)
    pile_up(place, 20_000)
    other: Tracker = make_tracker(DOCUMENT, name="Other")
    neighbour = place_of(other.environment_id)
    assert neighbour is not None
    deploy(other, "sum", SUM)
    pile_up(neighbour, 20_000, "key")
    if statistics:
        gather_statistics(using)
    for where, expected in ((place, MOST), (neighbour, 0)):
        with touched(using, "platform.functions_run") as cost:
            assert runs_start.waiting_visits(where)[0] == expected
        assert cost.read <= expected
    for begin in (
        lambda: runs_start.begin(place, key_of(place), "sum", "{}", is_async=True),
        lambda: runs_start.begin(place, key_of(place), "sum", "{}"),
        lambda: runs_start.begin(place, visitor_of(place), "sum", "{}"),
    ):
        with touched(using, "platform.functions_run") as cost:
            begin()
        assert cost.read <= 2 * FREE
