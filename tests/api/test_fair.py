"""A semaphore shared with owners of whom any number is slow on purpose. The clock is the test's; waiting is real."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from platform_site.concurrency.fair_semaphore import FIRST_PENALTY, LONGEST_PENALTY, FairSemaphore, Full, Hold

FIRM = 1.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def held(places: FairSemaphore, owner: str, most: int = 1000) -> list[Hold]:
    """What `owner` gets at once, up to so many."""
    got: list[Hold] = []
    while len(got) < most and (hold := places.take(owner, wait=0)) is not None:
        got.append(hold)
    return got


def be_quick(places: FairSemaphore, *owners: str) -> None:
    for owner in owners:
        with places.held(owner, wait=0):
            pass


def be_slow(places: FairSemaphore, clock: Clock, *owners: str) -> None:
    for owner in owners:
        with places.held(owner, wait=0):
            clock.now += FIRM + 0.1


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_share_shrinks_with_use_by_others_and_new_owner_gets_last_slot(clock: Clock) -> None:
    places = FairSemaphore(8, each=4, firm=FIRM, clock=clock)
    be_quick(places, *"abcde")
    assert [len(held(places, owner)) for owner in "abcde"] == [4, 2, 1, 1, 0]


def test_limit_of_one_eighth_leaves_room_beside_eight_busy_owners(clock: Clock) -> None:
    places = FairSemaphore(64, each=8, firm=FIRM, clock=clock)
    taken = [len(held(places, f"hostile {number}")) for number in range(8)]
    assert taken == sorted(taken, reverse=True)
    assert taken[0] == 8
    assert sum(taken) <= 44
    assert len(held(places, "somebody", 2)) == 2


@pytest.mark.parametrize(("most", "each", "unknown"), [(8, 4, 6), (64, 8, 48), (3, 2, 2), (2, 2, 1), (1, 1, 1)])
def test_any_number_of_newcomers_leaves_a_quarter_to_who_was_quick_before(
    clock: Clock, most: int, each: int, unknown: int
) -> None:
    places = FairSemaphore(most, each=each, firm=FIRM, clock=clock)
    be_quick(places, "known", "known too")
    taken = sum(len(held(places, f"newcomer {number}")) for number in range(most * 2))
    assert taken == unknown
    assert bool(held(places, "known too", 1)) == (most > 1)


def test_any_number_of_slow_ones_holds_half_and_each_a_quarter_of_a_share(clock: Clock) -> None:
    places = FairSemaphore(8, each=4, firm=FIRM, clock=clock)
    be_slow(places, clock, *(f"slow {number}" for number in range(9)))
    assert [len(held(places, f"slow {number}")) for number in range(9)] == [1, 1, 1, 1, 0, 0, 0, 0, 0]
    assert held(places, "newcomer", 1)


def test_slow_is_remembered_longer_each_time_and_forgotten_by_who_behaves(clock: Clock) -> None:
    places = FairSemaphore(4, each=4, firm=FIRM, clock=clock)

    def is_known_as_slow() -> bool:
        got = held(places, "it")
        for hold in got:
            places.give_back(hold)
        return len(got) == 1

    penalty = FIRST_PENALTY
    for _ in range(9):
        be_slow(places, clock, "it")
        clock.now += penalty - 1
        assert is_known_as_slow()
        clock.now += 2
        assert not is_known_as_slow()
        penalty = min(LONGEST_PENALTY, penalty * 2)
    clock.now += LONGEST_PENALTY + 1
    be_quick(places, "it")
    be_slow(places, clock, "it")
    clock.now += FIRST_PENALTY + 1
    assert not is_known_as_slow()


def test_one_slow_moment_counts_once_however_many_places_it_met(clock: Clock) -> None:
    places = FairSemaphore(8, each=8, firm=FIRM, clock=clock)
    be_quick(places, "it")
    met = held(places, "it")
    assert len(met) == 8
    clock.now += FIRM + 1
    for hold in met:
        clock.now += 0.1
        places.give_back(hold)
    clock.now += FIRST_PENALTY - 1
    of_the_slow = held(places, "it")
    for hold in of_the_slow:
        places.give_back(hold)
    clock.now += 2
    assert (len(of_the_slow), len(held(places, "it"))) == (2, 6)


def test_who_is_slow_gives_way_to_who_waits_and_not_before_its_time(clock: Clock) -> None:
    places = FairSemaphore(2, each=2, firm=FIRM, clock=clock)
    be_quick(places, "a", "b", "c")
    asked: list[str] = []
    holds = {name: places.take(name, wait=0, give_way=lambda name=name: asked.append(name)) for name in "ab"}
    with ThreadPoolExecutor() as threads:
        clock.now += FIRM / 2
        waits = threads.submit(places.take, "c", wait=600)
        until(lambda: len(places._line) == 1)
        time.sleep(0.1)
        assert asked == []
        clock.now += FIRM
        until(lambda: bool(asked))
        time.sleep(0.1)
        assert asked == ["a"], "the oldest, and no other"
        assert not waits.done(), "it has not left yet"
        assert holds["a"] is not None
        assert holds["a"].is_leaving
        places.give_back(holds["a"])
        got = waits.result(20)
    assert got is not None
    assert got.owner == "c"
    assert [hold.owner for hold in places._holds] == ["b", "c"]


def test_nobody_gives_way_to_a_worse_standing(clock: Clock) -> None:
    places = FairSemaphore(2, each=1, firm=FIRM, clock=clock)
    be_slow(places, clock, "slow")
    be_quick(places, "a", "b")
    asked: list[str] = []
    for name in "ab":
        places.take(name, wait=0, give_way=lambda name=name: asked.append(name))
    clock.now += 2 * FIRM
    with ThreadPoolExecutor() as threads:
        waits = threads.submit(places.take, "slow", wait=5)
        until(lambda: len(places._line) == 1)
        clock.now += 10
        assert waits.result(20) is None
    assert asked == []


def test_waiters_are_ordered_by_priority_and_then_by_usage(clock: Clock) -> None:
    places = FairSemaphore(2, each=2, firm=600, clock=clock)
    be_quick(places, "greedy", "other")
    with places.held("slow", wait=0):
        clock.now += 601
    first, second = places.take("greedy", wait=0), places.take("other", wait=0)
    assert first is not None
    assert second is not None
    came: list[str] = []

    def wait(name: str) -> None:
        with places.held(name, wait=3600):
            came.append(name)

    waiting = []
    for number, name in enumerate(["slow", "newcomer", "greedy", "other"]):
        waiting.append(threading.Thread(target=wait, args=[name], daemon=True))
        waiting[-1].start()
        until(lambda number=number: len(places._line) == number + 1)
    places.give_back(second)
    until(lambda: len(came) == 2)
    places.give_back(first)
    for thread in waiting:
        thread.join(20)
    assert came == ["other", "greedy", "newcomer", "slow"]
    assert places._holds == []
    assert places._line == []


def test_queue_is_bounded_and_higher_priority_takes_the_last_place(clock: Clock) -> None:
    places = FairSemaphore(1, each=1, firm=600, line=1, clock=clock)
    be_quick(places, "known")
    first = places.take("somebody", wait=0)
    with ThreadPoolExecutor() as threads:
        newcomer = threads.submit(places.take, "newcomer", wait=3600)
        until(lambda: len(places._line) == 1)
        assert places.take("another", wait=3600) is None, "a later owner with no higher priority"
        known = threads.submit(places.take, "known", wait=3600)
        assert newcomer.result(20) is None
        assert first is not None
        places.give_back(first)
        got = known.result(20)
    assert got is not None
    assert got.owner == "known"


def test_who_waits_in_vain_is_told_so_and_leaves_nothing(clock: Clock) -> None:
    places = FairSemaphore(1, each=1, firm=FIRM)
    with places.held("a", wait=0):
        with pytest.raises(Full), places.held("b", wait=0.05):
            pytest.fail("there was no place")
        assert places._line == []
    with places.held("b", wait=0):
        pass
    assert places._holds == []


def test_owners_are_forgotten_but_those_under_way(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform_site.concurrency.fair_semaphore.OWNERS", 3)
    places = FairSemaphore(8, each=4, firm=FIRM, clock=clock)
    hold = places.take("under way", wait=0)
    be_quick(places, *"abcdef")
    assert len(places._owners) == 3
    assert "under way" in places._owners
    assert hold is not None
    places.give_back(hold)
    assert places._owners["under way"].held == 0
