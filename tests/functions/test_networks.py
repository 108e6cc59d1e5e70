"""One client network has not all that visitors may have: seats, threads, places in the queue, and the next turn."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections
from django.test import RequestFactory

from functions.deploy import service as deploy_service
from functions.execution import request_concurrency
from functions.models import Run
from functions.quotas import client_networks
from functions.quotas.client_networks import ALLOWED, Recent, Visit, has_share, open_to_all, visit
from platform_site.http import client_ip
from platform_site.identity.callers import Place
from platform_site.identity.plans import PLANS
from tests.client import Answer
from tests.functions.test_api import deploy, invoke
from tests.functions.test_queue import FREE, claimed
from tests.functions.test_visitors import (
    cancel_until_done,
    end,
    pile_up,
    queue,
    taken,
    visitor_of,
)
from tests.functions.test_visitors import (
    open_to_all as open_tracker,  # noqa: F401 - a fixture
)
from tests.rows.conftest import Tracker
from tests.serving import wait_for
from tests.webhooks.touched import touched

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

MOST = PLANS["free"].visitor_queued_runs
HERE, THERE = "127.0.0.1", "203.0.113.9"


@pytest.fixture
def crowded(open_tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> Tracker:  # noqa: F811
    """With threads for everybody who waits."""
    monkeypatch.setattr(request_concurrency, "room", request_concurrency.WaitingRoom(seats=100, seats_each=100))
    return open_tracker


def called(tracker: Tracker, remote_addr: str = HERE, **how: Any) -> Answer:
    return invoke(tracker, "sum", {"a": 1, "b": 1}, who="visitor", remote_addr=remote_addr, **how)


# ── Seats ──


def test_one_network_takes_half_of_the_visitors_seats_and_another_finds_one(crowded: Tracker, place: Place) -> None:
    executing = Run.objects.using(place.cluster).filter(phase="executing")

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
        cancel_until_done(crowded, place, calls)
    assert {call.result().status for call in calls} == {200}, "the others waited for their turn"
    assert called(crowded).status == 200


def test_of_more_seats_it_takes_half_and_others_one_each(place: Place, crowded: Tracker) -> None:
    """On a larger plan, and whoever else sits there counts as taken."""
    team = Place(**{**{name: getattr(place, name) for name in place.__slots__}, "plan": "team"})
    visitors, half = PLANS["team"].function_concurrency // 2, PLANS["team"].function_concurrency // 4

    def sit(network: int) -> bool:
        try:
            deploy_service.begin(team, visitor_of(team), "sum", "{}", visit=Visit(network))
        except deploy_service.start.TooManyRuns:
            return False
        return True

    assert [sit(1) for _ in range(half + 2)] == [True] * half + [False] * 2
    for network in range(2, 2 + half):
        assert sit(network)
        assert not sit(network)
    assert not sit(99), "all of the visitors' half is taken"
    assert taken(place) == [*range(1, visitors + 1)]


def test_who_sat_for_long_leaves_a_seat_to_those_who_did_not(
    crowded: Tracker, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy(crowded, "nap", "export default () => new Promise((resolve) => setTimeout(resolve, 300))", invoke="public")
    first, second = (deploy_service.begin(place, visitor_of(place), "sum", "{}", visit=Visit(n)) for n in (1, 2))
    end(place.cluster, second.run_id)
    assert invoke(crowded, "nap", who="visitor", remote_addr=HERE).status == 200
    monkeypatch.setattr(client_networks, "ALLOWED", 0.2)
    assert taken(place) == [2], "who is light takes the seats that are for the light"
    assert called(crowded).status == 200, "it has the others"
    second = deploy_service.begin(place, visitor_of(place), "sum", "{}", visit=Visit(2))
    end(place.cluster, first.run_id)
    assert taken(place) == [1]
    assert called(crowded).status == 429
    assert called(crowded, THERE).status == 200
    monkeypatch.setattr(client_networks, "ALLOWED", ALLOWED)
    assert called(crowded).status == 200


def test_what_a_network_sat_is_forgotten_at_a_second_a_minute() -> None:
    now = 1000.0
    recent = Recent(clock=lambda: now)
    recent.book(1, ALLOWED)
    assert not recent.is_heavy(1)
    recent.book(1, 1)
    assert recent.is_heavy(1)
    assert not recent.is_heavy(2)
    now += 61
    assert not recent.is_heavy(1)
    recent.book(1, 10**6)
    now += 3600
    assert not recent.is_heavy(1), "after an hour in any case"


def test_what_is_remembered_of_networks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_networks, "_NETWORKS", 10)
    recent = Recent(clock=lambda: 0.0)
    for network in range(100):
        recent.book(network, 10)
    assert [network for network in range(100) if recent.is_heavy(network)] == [*range(90, 100)]


@pytest.mark.parametrize("most", [2, 3, 8, 32, MOST])
def test_it_takes_more_networks_than_half_of_the_places_to_fill_them(most: int) -> None:
    filled, count = 0, 0
    while filled < most:
        own = 0
        while has_share(most, filled, own):
            filled, own = filled + 1, own + 1
        assert own, "whoever has none finds one while there is any"
        count += 1
    assert count == most // 2 + 1
    assert open_to_all(1) == 1
    assert 1 <= open_to_all(most) < most


# ── Threads ──


def test_who_waits_for_queued_runs_leaves_threads_to_other_networks(
    open_tracker: Tracker,  # noqa: F811
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = request_concurrency.WaitingRoom(seats=100, seats_each=8)
    monkeypatch.setattr(request_concurrency, "room", room)
    mine = visit(place.environment_id, HERE)
    with room.seat(place.environment_id, visit=mine), room.seat(place.environment_id, visit=mine):
        refused = called(open_tracker)
        assert (refused.status, refused.error) == (429, "rate_limited")
        assert called(open_tracker, THERE).status == 200
        assert invoke(open_tracker, "sum", {"a": 1, "b": 1}, who="server").status == 200
        heavy = Visit(7, is_heavy=True)
        with room.seat(place.environment_id, visit=Visit(6)):
            with pytest.raises(request_concurrency.Full), room.seat(place.environment_id, visit=heavy):
                pass
            assert called(open_tracker, THERE).status == 200
    assert called(open_tracker).status == 200
    assert not room._networks
    assert not room._visits


# ── The queue ──


def test_of_the_queue_one_network_has_half_and_others_one_each(crowded: Tracker, place: Place) -> None:
    kept = Run.objects.using(place.cluster)
    once = {"headers": {"Idempotency-Key": "once"}}
    answers = [queue(crowded, "visitor", remote_addr=HERE).status for _ in range(MOST // 2 + 1)]
    assert answers == [202] * (MOST // 2) + [429]
    refused = queue(crowded, "visitor", remote_addr=HERE)
    assert "some of it from your network" in refused.json["error"]["message"]
    assert kept.count() == MOST // 2
    accepted = queue(crowded, "visitor", remote_addr=THERE, **once)
    assert accepted.status == 202
    assert queue(crowded, "visitor", remote_addr=THERE).status == 429
    assert queue(crowded, "visitor", remote_addr=THERE, **once).json == accepted.json
    assert queue(crowded, "server", remote_addr=HERE).status == 202
    pile_up(place, MOST // 2 - 1)
    assert queue(crowded, "visitor", remote_addr="203.0.113.10").status == 429, "they are all taken"
    assert len(set(kept.filter(caller_kind="anonymous", network__isnull=False).values_list("network"))) == 2
    assert not kept.filter(caller_kind="key", network__isnull=False).exists()


def test_a_newcomer_waits_behind_one_of_each_network_and_nobody_for_nothing(crowded: Tracker, place: Place) -> None:
    def queued(remote_addr: str, count: int) -> list[str]:
        return [str(queue(crowded, "visitor", remote_addr=remote_addr).json["run_id"]) for _ in range(count)]

    many = queued(HERE, 5)
    [newcomer], two = queued(THERE, 1), queued("203.0.113.10", 2)
    own = str(queue(crowded, "server").json["run_id"])
    began = []
    while (started := claimed(place.cluster)) is not None:
        began.append(started.run_id)
        end(place.cluster, started.run_id)
    assert began == [own, many[0], newcomer, two[0], many[1], two[1], *many[2:]]


def test_a_site_of_many_addresses_is_one_network(crowded: Tracker, place: Place) -> None:
    pile_up(place, MOST // 2)
    assert queue(crowded, "visitor", remote_addr="2001:db8:1:1::1").status == 202
    assert queue(crowded, "visitor", remote_addr="2001:db8:1:ffff::2").status == 429
    assert queue(crowded, "visitor", remote_addr="2001:db8:2:1::1").status == 202

    def site(address: str) -> str:
        return client_ip.site_of(RequestFactory().get("/", REMOTE_ADDR=address))

    assert site("2001:db8:1:ffff::2") == "2001:db8:1::"
    assert (site("203.0.113.9"), site("::ffff:203.0.113.9"), site("")) == (THERE, THERE, client_ip.UNKNOWN)


def test_no_address_can_be_read_from_a_network_and_environments_number_their_own() -> None:
    assert visit("env_a", HERE).network == visit("env_a", HERE).network
    assert visit("env_a", HERE).network != visit("env_b", HERE).network
    assert -(2**63) <= visit("env_a", HERE).network < 2**63


# ── What it costs ──


def test_a_share_is_looked_up_in_the_statement_that_makes_the_run(crowded: Tracker, place: Place) -> None:
    pile_up(place, 5_000, "key")
    pile_up(place, 5_000)
    with touched(place.cluster, "platform.functions_run") as cost:
        deploy_service.begin(place, visitor_of(place), "sum", "{}", visit=Visit(1))
    assert cost.read <= 3 * FREE
