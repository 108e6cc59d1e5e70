"""One client network does not get all that anonymous callers may have: slots, threads, queue places, and the next
start."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections
from django.test import RequestFactory

from functions.errors import TooManyRuns
from functions.execution import request_concurrency
from functions.models import Run
from functions.quotas import client_networks
from functions.quotas.client_networks import FREE_SECONDS, AnonymousCall, RecentUsage, anonymous_call_of
from functions.quotas.slots import has_share, slots_for_all_networks
from functions.runs.start import NewRun, start_run
from platform_site.http import requests
from platform_site.identity.callers import EnvironmentRef
from platform_site.identity.plans import PLANS
from tests.rows.conftest import Tracker
from tests.support.client import Answer
from tests.support.function_queue import FREE, anonymous_caller, cancel_until_done, claimed, end, pile_up, queue, taken
from tests.support.function_queue import open_to_all as open_to_all
from tests.support.functions import deploy, invoke
from tests.support.row_statistics import count_touched_rows
from tests.support.service import wait_for

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(databases="__all__", transaction=True)]

MOST = PLANS["free"].visitor_queued_runs
HERE, THERE = "127.0.0.1", "203.0.113.9"


@pytest.fixture
def crowded(open_to_all: Tracker, monkeypatch: pytest.MonkeyPatch) -> Tracker:
    """With a thread for each waiting caller."""
    monkeypatch.setattr(request_concurrency, "limiter", request_concurrency.ConcurrencyLimiter(slots=100, shared=100))
    return open_to_all


def called(tracker: Tracker, remote_addr: str = HERE, **how: Any) -> Answer:
    return invoke(tracker, "sum", {"a": 1, "b": 1}, who="visitor", remote_addr=remote_addr, **how)


# ── Seats ──


def test_one_network_takes_half_the_anonymous_slots_and_another_gets_one(
    crowded: Tracker, environment: EnvironmentRef
) -> None:
    executing = Run.objects.using(environment.cluster).filter(phase="executing")

    def call(_: int) -> Answer:
        try:
            return invoke(crowded, "slow", who="visitor", remote_addr=HERE)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(6) as threads:
        calls = [threads.submit(call, number) for number in range(6)]
        wait_for("one is executing", lambda: executing.count() == 1)
        refused = called(crowded)
        assert (refused.status, refused.error, refused.headers["Retry-After"]) == (429, "rate_limited", "1")
        assert executing.count() == 1
        assert called(crowded, THERE).json["output"] == {"sum": 2}
        assert invoke(crowded, "sum", {"a": 1, "b": 1}, who="server").status == 200, "keys have no network"
        cancel_until_done(crowded, environment, calls)
    assert {call.result().status for call in calls} == {200}, "the others waited for their turn"
    assert called(crowded).status == 200


def test_network_takes_half_of_more_slots_and_others_one_each(environment: EnvironmentRef, crowded: Tracker) -> None:
    """On a larger plan, and slots of other callers count as taken."""
    team = EnvironmentRef(**{**{name: getattr(environment, name) for name in environment.__slots__}, "plan": "team"})
    visitors, half = PLANS["team"].function_concurrency // 2, PLANS["team"].function_concurrency // 4

    def sit(network: int) -> bool:
        try:
            start_run(NewRun(team, anonymous_caller(team), "sum", "{}", anonymous=AnonymousCall(network)))
        except TooManyRuns:
            return False
        return True

    assert [sit(1) for _ in range(half + 2)] == [True] * half + [False] * 2
    for network in range(2, 2 + half):
        assert sit(network)
        assert not sit(network)
    assert not sit(99), "the anonymous half is taken"
    assert taken(environment) == [*range(1, visitors + 1)]


def test_heavy_network_leaves_a_slot_to_light_ones(
    crowded: Tracker, environment: EnvironmentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy(crowded, "nap", "export default () => new Promise((resolve) => setTimeout(resolve, 300))", invoke="public")
    first, second = (
        start_run(NewRun(environment, anonymous_caller(environment), "sum", "{}", anonymous=AnonymousCall(n)))
        for n in (1, 2)
    )
    end(environment.cluster, second.run_id)
    assert invoke(crowded, "nap", who="visitor", remote_addr=HERE).status == 200
    monkeypatch.setattr(client_networks, "FREE_SECONDS", 0.2)
    assert taken(environment) == [2], "a light caller takes the slots reserved for light callers"
    assert called(crowded).status == 200, "it has the others"
    second = start_run(NewRun(environment, anonymous_caller(environment), "sum", "{}", anonymous=AnonymousCall(2)))
    end(environment.cluster, first.run_id)
    assert taken(environment) == [1]
    assert called(crowded).status == 429
    assert called(crowded, THERE).status == 200
    monkeypatch.setattr(client_networks, "FREE_SECONDS", FREE_SECONDS)
    assert called(crowded).status == 200


def test_network_usage_decays_by_one_second_per_minute() -> None:
    now = 1000.0
    recent = RecentUsage(clock=lambda: now)
    recent.record(1, FREE_SECONDS)
    assert not recent.is_heavy(1)
    recent.record(1, 1)
    assert recent.is_heavy(1)
    assert not recent.is_heavy(2)
    now += 61
    assert not recent.is_heavy(1)
    recent.record(1, 10**6)
    now += 3600
    assert not recent.is_heavy(1), "after an hour in any case"


def test_what_is_remembered_of_networks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_networks, "_MAX_NETWORKS", 10)
    recent = RecentUsage(clock=lambda: 0.0)
    for network in range(100):
        recent.record(network, 10)
    assert [network for network in range(100) if recent.is_heavy(network)] == [*range(90, 100)]


@pytest.mark.parametrize("most", [2, 3, 8, 32, MOST])
def test_it_takes_more_networks_than_half_of_the_places_to_fill_them(most: int) -> None:
    filled, count = 0, 0
    while filled < most:
        own = 0
        while has_share(most, filled, own):
            filled, own = filled + 1, own + 1
        assert own, "a caller without a slot gets one while one is free"
        count += 1
    assert count == most // 2 + 1
    assert slots_for_all_networks(1) == 1
    assert 1 <= slots_for_all_networks(most) < most


# ── Threads ──


def test_waiting_network_leaves_threads_to_others(
    open_to_all: Tracker,
    environment: EnvironmentRef,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = request_concurrency.ConcurrencyLimiter(slots=100, shared=8)
    monkeypatch.setattr(request_concurrency, "limiter", room)
    mine = anonymous_call_of(environment.environment_id, HERE)
    with room.slot(environment.environment_id, anonymous=mine), room.slot(environment.environment_id, anonymous=mine):
        refused = called(open_to_all)
        assert (refused.status, refused.error) == (429, "rate_limited")
        assert called(open_to_all, THERE).status == 200
        assert invoke(open_to_all, "sum", {"a": 1, "b": 1}, who="server").status == 200
        heavy = AnonymousCall(7, is_heavy=True)
        with room.slot(environment.environment_id, anonymous=AnonymousCall(6)):
            with pytest.raises(request_concurrency.Full), room.slot(environment.environment_id, anonymous=heavy):
                pass
            assert called(open_to_all, THERE).status == 200
    assert called(open_to_all).status == 200
    assert not room._held


# ── The queue ──


def test_of_the_queue_one_network_has_half_and_others_one_each(crowded: Tracker, environment: EnvironmentRef) -> None:
    kept = Run.objects.using(environment.cluster)
    once = {"headers": {"Idempotency-Key": "once"}}
    answers = [queue(crowded, "visitor", remote_addr=HERE).status for _ in range(MOST // 2 + 1)]
    assert answers == [202] * (MOST // 2) + [429]
    refused = queue(crowded, "visitor", remote_addr=HERE)
    assert "some from your network" in refused.json["error"]["message"]
    assert kept.count() == MOST // 2
    accepted = queue(crowded, "visitor", remote_addr=THERE, **once)
    assert accepted.status == 202
    assert queue(crowded, "visitor", remote_addr=THERE).status == 429
    assert queue(crowded, "visitor", remote_addr=THERE, **once).json == accepted.json
    assert queue(crowded, "server", remote_addr=HERE).status == 202
    pile_up(environment, MOST // 2 - 1)
    assert queue(crowded, "visitor", remote_addr="203.0.113.10").status == 429, "they are all taken"
    assert len(set(kept.filter(caller_kind="anonymous", network__isnull=False).values_list("network"))) == 2
    assert not kept.filter(caller_kind="key", network__isnull=False).exists()


def test_new_network_waits_behind_one_run_of_each_other_network(crowded: Tracker, environment: EnvironmentRef) -> None:
    def queued(remote_addr: str, count: int) -> list[str]:
        return [str(queue(crowded, "visitor", remote_addr=remote_addr).json["run_id"]) for _ in range(count)]

    many = queued(HERE, 5)
    [newcomer], two = queued(THERE, 1), queued("203.0.113.10", 2)
    own = str(queue(crowded, "server").json["run_id"])
    began = []
    while (started := claimed(environment.cluster)) is not None:
        began.append(started.run_id)
        end(environment.cluster, started.run_id)
    assert began == [own, many[0], newcomer, two[0], many[1], two[1], *many[2:]]


def test_a_site_of_many_addresses_is_one_network(crowded: Tracker, environment: EnvironmentRef) -> None:
    pile_up(environment, MOST // 2)
    assert queue(crowded, "visitor", remote_addr="2001:db8:1:1::1").status == 202
    assert queue(crowded, "visitor", remote_addr="2001:db8:1:ffff::2").status == 429
    assert queue(crowded, "visitor", remote_addr="2001:db8:2:1::1").status == 202

    def site(address: str) -> str:
        return requests.site_of(RequestFactory().get("/", REMOTE_ADDR=address))

    assert site("2001:db8:1:ffff::2") == "2001:db8:1::"
    assert (site("203.0.113.9"), site("::ffff:203.0.113.9"), site("")) == (THERE, THERE, requests.UNKNOWN_CLIENT)


def test_network_ids_reveal_no_ip_address_and_differ_by_environment() -> None:
    assert anonymous_call_of("env_a", HERE).network == anonymous_call_of("env_a", HERE).network
    assert anonymous_call_of("env_a", HERE).network != anonymous_call_of("env_b", HERE).network
    assert -(2**63) <= anonymous_call_of("env_a", HERE).network < 2**63


# ── What it costs ──


def test_a_share_is_looked_up_in_the_statement_that_makes_the_run(
    crowded: Tracker, environment: EnvironmentRef
) -> None:
    pile_up(environment, 5_000, "key")
    pile_up(environment, 5_000)
    with count_touched_rows(environment.cluster, "platform.functions_run") as cost:
        start_run(NewRun(environment, anonymous_caller(environment), "sum", "{}", anonymous=AnonymousCall(1)))
    assert cost.read <= 3 * FREE
